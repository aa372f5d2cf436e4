"""Former names of commands, each answered by an error message with the current name."""

from typing import Any

from typer.core import TyperGroup

from troll.common.progress import say

_JOBS = (
    "problems",
    "tokenizer",
    "base-model",
    "hub-model",
    "configure",
    "train",
    "sample-suites",
    "grade-suites",
    "collect",
    "append",
    "table",
    "figure",
    "claims",
)
FORMER = {
    **{name: f"troll job {name}" for name in _JOBS},
    "sample": "troll grade` (samples and grades) or `troll job sample",
    "job grade": "troll grade --samples FILE",
    "page": "troll job report",
    "job page": "troll job report",
    "fetch --config": "troll fetch FILE",
    "benchmark": "troll job",
    "benchmark oracle": "troll job oracle",
    "benchmark table": "troll job benchmark-table",
    "benchmark lm-eval-tasks": "troll job lm-eval-tasks",
    "budget": "troll check FILE --cost",
    "schema": "troll check --rule NAME` or `troll release schema",
    "leaderboard": "troll rank PROTOCOL.yaml",
    "leaderboard run": "troll rank PROTOCOL.yaml",
    "leaderboard trials": "troll release trials",
    "leaderboard final": "troll release final",
    "leaderboard board": "troll release board",
    "leaderboard error-rates": "python workflow/benchmarks/measure.py error-rates",
    "readme": "troll release readme",
    "check-results": "troll release check",
    "comparisons": "troll release comparisons",
    "coverage": "python workflow/benchmarks/measure.py coverage",
}
"""Current names by former ones."""


class Commands(TyperGroup):
    """The commands; a former name ends with an error message and status 2."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Looks up a command; for a former name, says the current one and exits."""
        former = next((name for name in (" ".join(args[:2]), *args[:1]) if name in FORMER), None)
        if former is not None:
            say(f"error: `troll {former}` is now `{FORMER[former]}`")
            ctx.exit(2)
        return super().resolve_command(ctx, args)
