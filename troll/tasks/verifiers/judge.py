"""Compares outputs of programs in a process with limits of its own, and says why where it cannot.

A program returns what it likes: values that take gigabytes once decoded, integers whose powers take minutes.
So this process only compares texts. What differs as text is decoded and compared in another
(``judge_worker.py``), within the program's own limit of CPU time; whatever goes wrong there is that
program's verdict, with the reason. No candidate ever runs in it.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from troll.common.errors import UserError
from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.program import Execution, Output

Rule = Literal["evalplus", "exact", "lists"] | tuple[str, str]
"""``evalplus`` (its rule for all problems), ``exact`` (equality), ``lists`` (tuples count as lists), or (data
set, entry point) of one of evalplus' special rules."""

_START_S = 60.0
_LEAST_CPU_S = 1.0
_WALL_FACTOR, _WALL_S = 20.0, 10.0  # a loaded machine must not turn a slow comparison into a failed one


Status = Literal[
    "passed", "wrong", "timeout", "memory", "crash", "rejected", "incomparable", "infrastructure"
]


@dataclass(frozen=True)
class CodeVerdict:
    """What became of one completion of a code problem."""

    base: bool  # all base inputs gave the expected outputs
    plus: bool  # all plus inputs did
    # ``passed`` when both; otherwise what went wrong first, in input order. ``incomparable``: an output could
    # not be compared with the expected one within the program's limits
    status: Status
    detail: str = ""  # a few words more

    @property
    def passed(self) -> bool:
        """Base and plus both passed."""
        return self.base and self.plus


def unfinished(execution: Execution, base: bool = False, plus: bool = False) -> CodeVerdict:
    """The verdict on a program that did not return all its outputs."""
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
    """The verdict on a program that was called; the first ``base_count`` calls are base, the others plus.

    Without that number, all are both. For the other arguments see `compare`.
    """
    outputs = execution.outputs
    if execution.status in ("infrastructure", "rejected"):
        # Whoever wrote more than the runner asked for has shown what it is after, whatever would match.
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
    """What came out."""

    matched: list[bool]  # whether each output counts as the expected one
    # why outputs could not be compared, by their number; they count as not matched
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
    """Compares outputs of one program with the expected ones, in ``cpu_s`` CPU seconds, one at least."""
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


class _Worker:
    """A comparing process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "troll.tasks.verifiers.judge_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            bufsize=0,
        )
        self._buffer = b""
        with contextlib.suppress(_EndError):
            if self._line(_START_S) == "ready":
                return
        raise UserError("verifier: the process that compares outputs does not start")

    def ask(self, question: dict[str, Any]) -> Iterator[bool | str]:
        """Answers in order, up to the first that ends the process."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + _WALL_FACTOR * question["cpu_s"] + _WALL_S
        data = memoryview(json.dumps(question).encode() + b"\n")
        while data:
            data = data[self._process.stdin.write(data) or 0 :]
        for _ in question["pairs"]:
            yield json.loads(self._line(deadline - time.monotonic()))

    def _line(self, patience: float) -> str:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([descriptor], [], [], max(patience, 0))[0]:
                raise _EndError("no answer in time")
            if not (data := os.read(descriptor, 1 << 16)):
                status = self._process.wait()
                raise _EndError(
                    "CPU time" if status == -signal.SIGPROF else f"the comparison died ({status})"
                )
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        if self.owner != os.getpid():
            return  # a copy in a fork: the process belongs to the parent
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


class _EndError(Exception):
    """The process is gone, or does not answer."""


_worker: _Worker | None = None
_lock = threading.Lock()


def _judge(question: dict[str, Any]) -> list[bool | str]:
    """The answers to all pairs. One that ends the process is not compared again, nor are those after it."""
    global _worker
    answers: list[bool | str] = []
    with _lock:
        if _worker is None or _worker.owner != os.getpid():
            _worker = _Worker()
            atexit.register(_worker.close)
        try:
            for answer in _worker.ask(question):
                answers.append(answer)
        except (OSError, ValueError, _EndError) as end:
            atexit.unregister(_worker.close)
            _worker.close()
            _worker = None
            answers += [f"cannot be compared: {end}"] * (len(question["pairs"]) - len(answers))
    return answers
