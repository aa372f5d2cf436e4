"""Compares outputs of programs in a worker process with limits of its own.

A program may return anything: values that take gigabytes once decoded, integers whose powers take minutes.
So this process only compares texts. Outputs that differ as text are decoded and compared in a worker
(``judge_worker.py``), within the program's own limit of CPU time; a failure there is that program's verdict,
with the reason. No candidate ever runs in the worker.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from troll.common.errors import UserError
from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.program import Execution, Output
from troll.tasks.verifiers.worker import EndError, Worker

Rule = Literal["evalplus", "exact", "lists"] | tuple[str, str]
"""``evalplus`` (its general rule), ``exact`` (equality), ``lists`` (tuples count as lists), or (data set,
entry point) for one of evalplus' special rules."""

_START_S = 60.0
_LEAST_CPU_S = 1.0
_WALL_FACTOR, _WALL_S = 20.0, 10.0  # generous: a slow comparison on a loaded machine must not fail


Status = Literal[
    "passed", "wrong", "timeout", "memory", "crash", "rejected", "incomparable", "infrastructure"
]


@dataclass(frozen=True)
class CodeVerdict:
    """The verdict on one completion of a code problem."""

    base: bool  # whether all base inputs gave the expected outputs
    plus: bool  # whether all plus inputs did
    # ``passed`` if both; otherwise what went wrong first, in input order. ``incomparable``: an output could
    # not be compared with the expected one within the program's limits
    status: Status
    detail: str = ""  # the cause, in a few words
    # CPU seconds of the program, where it is judged by a data set's own tests
    cpu_s: float = field(default=0.0, compare=False)

    @property
    def passed(self) -> bool:
        """Whether base and plus both passed."""
        return self.base and self.plus


def unfinished(execution: Execution, base: bool = False, plus: bool = False) -> CodeVerdict:
    """Returns the verdict on a program that did not return all its outputs."""
    status: Status = "crash" if execution.status == "finished" else execution.status
    return CodeVerdict(base, plus, status, execution.detail)


def judge_outputs(
    execution: Execution,
    expected: Sequence[Output],
    *,
    rule: Rule = "evalplus",
    tolerance: float = 0.0,
    arguments: Sequence[Any] | None = None,
    cpu_s: float,
    base_count: int | None = None,
) -> CodeVerdict:
    """Returns the verdict on a program; its first ``base_count`` calls are base, the others plus.

    Without ``base_count``, all calls are both. For the other arguments see `compare`.
    """
    outputs = execution.outputs
    if execution.status in ("infrastructure", "rejected"):
        # A program that wrote more than its results may be forging them, so nothing that matches counts.
        return unfinished(execution)
    comparison = compare(outputs, expected, rule=rule, tolerance=tolerance, arguments=arguments, cpu_s=cpu_s)
    matched = comparison.matched + [False] * (len(expected) - len(outputs))
    parts = (matched, matched) if base_count is None else (matched[:base_count], matched[base_count:])
    base, plus = map(all, parts)
    if base and plus:
        passed = execution.status == "finished" and len(outputs) == len(expected)
        return CodeVerdict(True, True, "passed") if passed else unfinished(execution)
    first = matched.index(False)
    if first in comparison.reasons:
        return CodeVerdict(base, plus, "incomparable", f"input {first} {comparison.reasons[first]}")
    kind = outputs[first].kind if first < len(outputs) else "raised"
    if kind == "opaque":
        return CodeVerdict(base, plus, "rejected", outputs[first].text)
    if kind == "value":
        return CodeVerdict(base, plus, "wrong", f"input {first}")
    return unfinished(execution, base, plus)


@dataclass
class Comparison:
    """The result of comparing outputs."""

    matched: list[bool]  # whether each output counts as the expected one
    # why outputs could not be compared, by index; they count as not matched
    reasons: dict[int, str] = field(default_factory=dict)


def compare(
    outputs: Sequence[Output],
    expected: Sequence[Output],
    *,
    rule: Rule = "evalplus",
    tolerance: float = 0.0,
    arguments: Sequence[Any] | None = None,
    cpu_s: float = _LEAST_CPU_S,
) -> Comparison:
    """Compares outputs of one program with the expected ones, within ``cpu_s`` CPU seconds (at least one)."""
    result = Comparison(
        [
            output.text == reference.text and output.kind == reference.kind == "value"
            for output, reference in zip(outputs, expected, strict=False)
        ]
    )
    unlike = [number for number, same in enumerate(result.matched) if not same]
    if not unlike:
        return result
    pairs = [
        [
            plain_data.encode(list(arguments[number])) if arguments is not None else None,
            [outputs[number].kind, outputs[number].text],
            [expected[number].kind, expected[number].text],
        ]
        for number in unlike
    ]
    question = {"cpu_s": max(cpu_s, _LEAST_CPU_S), "rule": rule, "tolerance": tolerance, "pairs": pairs}
    for number, answer in zip(unlike, _judge(question), strict=True):
        if isinstance(answer, str):
            result.reasons[number] = answer
        else:
            result.matched[number] = answer
    return result


_worker: Worker | None = None
_lock = threading.Lock()


def _judge(question: dict[str, Any]) -> list[bool | str]:
    """Returns the answers to all pairs; if a pair ends the worker, it and all later ones get the reason."""
    global _worker
    answers: list[bool | str] = []
    with _lock:
        if _worker is None or _worker.owner != os.getpid():
            try:
                _worker = Worker("troll.tasks.verifiers.judge_worker", _START_S, PYTHONHASHSEED="0")
            except EndError as end:
                raise UserError(
                    f"verifier: the process that compares outputs did not start ({end}); this machine may be "
                    "too busy, try again"
                ) from None
        try:
            _worker.send(question, _WALL_FACTOR * question["cpu_s"] + _WALL_S)
            while len(answers) < len(question["pairs"]):
                answers.append(_worker.answer())
        except (OSError, ValueError, EndError) as end:
            _worker.close()
            _worker = None
            answers += [f"cannot be compared: {end}"] * (len(question["pairs"]) - len(answers))
    return answers
