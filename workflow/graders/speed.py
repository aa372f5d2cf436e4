"""Speed of the graders compared with evalplus, measured in one run on one machine."""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from cases import math_answer, math_paraphrase, math_wrong
from troll.evaluation.evalplus.check import evalplus_verdicts
from troll.tasks.datasets.load import load
from troll.tasks.sandbox.pool import Limits, Program, run_batch
from troll.tasks.types import Problem
from troll.tasks.verifiers import references
from troll.tasks.verifiers.code import verify_code
from troll.tasks.verifiers.math import judge_math


@dataclass(frozen=True)
class _Goal:
    """A goal for two cores, in words and as a rate on all of them."""

    text: str
    per_second: float


_CORES = 2
_HUMANEVAL = _Goal("164 in 60 s on 2 cores", 164 / 60)
_MATHEMATICS = _Goal("2,048 in 10 s on 2 cores", 2048 / 10)
_SANDBOX = _Goal("30 per second and core", 30 * _CORES)


def speed(
    *, problems: int | None = None, completions: int = 2048, programs: int = 512
) -> list[dict[str, Any]]:
    """Measures canonical solutions of HumanEval+, mathematics rewards and the sandbox.

    Args:
        problems: number of problems of HumanEval+; by default all.
        completions: number of completions of MATH, eight per problem, as in training.
        programs: number of small programs for the sandbox.

    Returns:
        Rows with ``what``, ``count``, ``passed``, ``seconds`` (wall-clock), ``per_second``, ``goal``, ``met``
        (yes, no, or empty without a goal), ``cores`` and ``load`` (runnable processes just before the
        measurement; timings are unreliable if they exceed the number of cores).

    Raises:
        UserError: the data, the sandbox, evalplus or math-verify is missing.
    """
    code = load("humaneval+").problems[:problems]
    records = {problem.task_id: problem.record for problem in code}
    sources = [(problem.task_id, problem.prompt + problem.answer) for problem in code]

    def ours() -> int:
        found = verify_code([problem.record for problem in code], [problem.answer for problem in code])
        return sum(verdict.passed for verdict in found)

    def theirs() -> int:
        return sum(bool(verdict.passed) for verdict in evalplus_verdicts("humaneval", records, sources))

    group = [problem for problem in load("math").problems[: completions // 8] for _ in range(8)]
    texts = [_answer(problem, number % 8) for number, problem in enumerate(group)]

    def mathematics() -> int:
        answers = [problem.answer for problem in group]
        return judge_math(answers, texts, standard="reward").count("passed")

    small = [Program(f"def f(x):\n    return x + {number}\n", "f", "[[1]]") for number in range(programs)]

    def sandbox() -> int:
        return sum(item.status == "finished" for item in run_batch(small, Limits(5, 30)))

    # A warm-up, which starts the workers.
    judge_math(["x"] * 64, [f"\\boxed{{{number}x}}" for number in range(64)], standard="reward")
    # As on a new machine: expected outputs are computed anew, and stored for the time inside only.
    with (
        tempfile.TemporaryDirectory() as cache,
        patch.dict(os.environ, XDG_CACHE_HOME=cache),
        patch.dict(references._REFERENCES, clear=True),
    ):
        rows = [
            _measure("HumanEval+ canonical solutions, expected outputs computed", len(code), ours),
            _measure("HumanEval+ canonical solutions, expected outputs known", len(code), ours, _HUMANEVAL),
        ]
    return [
        *rows,
        _measure("the same by evalplus in the sandbox, expected outputs computed", len(code), theirs),
        _measure("mathematics rewards", len(texts), mathematics, _MATHEMATICS),
        _measure("small programs in the sandbox", programs, sandbox, _SANDBOX),
    ]


def _answer(problem: Problem, number: int) -> str:
    """One of eight different answers, of which about half are right."""
    if number < 3:
        return (math_answer, math_paraphrase, math_wrong)[number](problem)
    return f"\\boxed{{{problem.answer}{' + 0' if number % 2 else f' + {number}'}}}"


def _measure(what: str, count: int, work: Callable[[], int], goal: _Goal | None = None) -> dict[str, Any]:
    load_before = os.getloadavg()[0]
    start = time.perf_counter()
    passed = work()
    seconds = time.perf_counter() - start
    cores = len(os.sched_getaffinity(0))
    met = goal is not None and count / seconds >= goal.per_second * cores / _CORES
    return {
        "what": what,
        "count": count,
        "passed": passed,
        "seconds": round(seconds, 2),
        "per_second": round(count / seconds, 1),
        "goal": goal.text if goal else "",
        "met": "" if goal is None else "yes" if met else "no",
        "cores": cores,
        "load": round(load_before, 1),
    }
