"""The first table of the README: what people ask, TROLL minus clip, the answer, and the command behind it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from troll.analysis.claims.ledger import findings
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.claims.wording import both_below, label, short
from troll.analysis.leaderboard.protocol import read_protocol
from troll.analysis.render.formats import bracketed, points, significant
from troll.analysis.report.questions import BELOW, Question, contrast, step_ratio

_ANSWERS = {
    "supported everywhere": "**yes**, in every setting",
    "supported on average": "**yes**, on average",
    "not shown": "**not shown**",
    "inconclusive": "**inconclusive**",
}
"""Of verdicts; of others the answer is the verdict itself."""
_OUTCOMES = {
    "above": "**yes**",
    "below": "**no**: below",
    "within": "**no**: within {margin} points",
    "undecided": "**inconclusive**",
}
"""Of a contrast that a protocol fixed."""

_TESTBED = (
    "`make results SEEDS=0,1,2,3,4`, and the same with `EXPERIMENT=workflow/config/testbed-estimators.yaml` "
    "and `testbed-ablations.yaml`"
)

QUESTIONS = (
    Question(
        "Fresh rollouts (one pass over each batch, small steps): is its final pass@1 within 5 points of "
        "clip's?",
        _TESTBED,
        "testbed-gentle-not-worse",
    ),
    Question(
        "Stale rollouts (three passes, large steps): is it above clip's?",
        _TESTBED,
        "testbed-stale-better",
    ),
    Question(
        "Stale rollouts, a pretrained model of 135M parameters: is it above clip's?",
        "`make results EXPERIMENT=workflow/config/smollm2.yaml REPEAT=1`; on a GPU "
        "[`gpu_runs.sh`](workflow/benchmarks/gpu_runs.sh) `workflow/config/smollm2-gpu.yaml`",
        "smollm2-stale-better",
    ),
    Question(
        "Is the range of learning rates that work wider by at least 0.2 decades?",
        "`make results EXPERIMENT=workflow/config/benchmark-map.yaml REPEAT=1`",
        "benchmark-wider-range-of-rates",
    ),
)


def front(judged: Sequence[ClaimVerdict], results: Path) -> str:
    """The table in Markdown, without rows that have no runs, and how many claims got which verdict.

    The testbed's claims are judged over all its experiments; the duel's contrasts and what a GPU measured
    come from ``results``, the directory of what is released.
    """
    known = {item.claim.id: item for item in judged if item.verdict != "not run"}
    rows = [_claim(item, known[item.claim]) for item in QUESTIONS if item.claim in known]
    # Below the testbed's: what is asked next.
    rows[2:2] = _duel(results / "duel/contrasts.csv")
    rows += _step(results / "gpu")
    header = ["| Question | TROLL against clip | Answer | Command |", "| --- | ---: | --- | --- |"]
    tally = f"{findings(judged, 0)[-1]} [Each of them](docs/findings.md#verdicts)."
    duel, every = results / "duel", "[Every contrast](results/released/duel/contrasts.md)."
    said = [f"The duel: {contrast(duel)}. {every}", ""] if (duel / "contrasts.csv").exists() else []
    return "\n".join([*header, *rows, "", *said, tally]) + "\n"


def _claim(question: Question, verdict: ClaimVerdict) -> str:
    answer = _ANSWERS.get(verdict.verdict, f"**{label(verdict)}**")
    if below := both_below(verdict):
        answer = f"{answer}, but {below.replace(*BELOW)}"
    return _row(question.text, short(verdict), answer, question.command)


def _duel(path: Path) -> Iterator[str]:
    """The first contrast of the duel."""
    if not path.exists():
        return
    first, comparison = pd.read_csv(path).iloc[0], read_protocol(path.with_name("protocol.yaml")).comparison
    assert comparison is not None  # there are contrasts
    yield _row(
        f"Both tuned, {int(first['seeds'])} new seeds ([the duel](docs/leaderboard.md#the-duel)): is it "
        "above clip's?",
        f"{points(first['difference'])} {bracketed(first, 'difference')} points",
        _OUTCOMES[str(first["reading"])].format(margin=f"{100 * comparison.margin:g}"),
        "`troll rank workflow/config/duel.yaml --repeat`",
    )


def _step(directory: Path) -> Iterator[str]:
    """What a whole step of TROLL takes on a GPU."""
    if (directory / "gpu_check.json").exists() and (value := step_ratio(directory)) is not None:
        yield _row(
            "How long is an optimiser step (random weights of 0.6B parameters, 10 % of the tokens projected, "
            "[one GPU](results/released/gpu/README.md))?",
            f"{significant(value)} times clip's",
            f"**{points(value - 1)} %** of time",
            "`python workflow/benchmarks/gpu_check.py --out DIR`",
        )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
