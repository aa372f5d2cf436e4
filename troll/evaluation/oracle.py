"""Reference solutions as samples: what a model that is always right would write."""

from pathlib import Path

from troll.common.files import write_jsonl
from troll.tasks.types import Problem, Task


def write_oracle(task: Task, problems: Path, out: Path) -> None:
    """Writes one sample per problem: its reference solution, ended with a box where the set has none."""
    rows = [
        {
            "task_id": problem.task_id,
            "sample": 0,
            "completion": _solution(problem) if task.kind == "math" else problem.answer,
        }
        for problem in task.load(problems)
    ]
    write_jsonl(out, rows)


def _solution(problem: Problem) -> str:
    r"""The reference solution where it ends with a box, else with the reference answer in one.

    The box ends the text: for lm-eval's gsm8k, the last number of ``$\boxed{18}$.`` is ``$.``.
    """
    solution = str(problem.record.get("solution") or "")
    return solution if "\\boxed{" in solution else f"{solution}\n\n\\boxed{{{problem.answer}}}"
