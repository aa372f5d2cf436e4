r"""Judges answers in ``\boxed{}``.

The last box of a completion is compared with the reference answer, plain integers directly and everything
else by math-verify (https://github.com/huggingface/Math-Verify). A completion without a box is wrong.

math-verify runs in processes of its own (``math_worker.py``), each bounded in memory and in the CPU time of a
comparison, so that a busy machine turns no right answer into a wrong one. Its own timeouts are signals that
Python handles, which work in the main thread only and cannot interrupt a long operation on huge numbers.
"""

import atexit
import functools
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from troll.errors import UserError

MathStatus = Literal["passed", "wrong", "timeout", "crash"]

TIMEOUT_S = 5.0  # math-verify's own default per operation
# A comparison that waits for a core may take this much longer than its CPU time; then something is wrong.
_WALL_FACTOR = 24.0
_START_S = 60.0  # importing sympy on a loaded machine
_CACHE_SIZE = 100_000
# Longer answers are no answers, and parsing is not linear.
_MAX_ANSWER_CHARACTERS = 2_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")


class _HasAnswer(Protocol):
    @property
    def answer(self) -> str: ...


def math_rewards(problems: Sequence[_HasAnswer], completions: Sequence[str]) -> list[float]:
    """Rewards for training: 1.0 where the boxed answer is right, else 0.0.

    Args:
        problems: objects with a reference ``answer``, one per completion.
        completions: the texts that the model wrote.

    Raises:
        UserError: math-verify is not installed and an answer needs it.
    """
    answers = [problem.answer for problem in problems]
    return [float(status == "passed") for status in judge_math(answers, completions)]


def judge_math(
    answers: Sequence[str],
    completions: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    extraction: Literal["box", "text"] = "box",
) -> list[MathStatus]:
    r"""Judges completions against reference answers.

    Args:
        answers: reference answers (the content of the box, without ``\boxed{}``).
        completions: texts, one per answer.
        timeout_s: CPU seconds for one comparison; beyond, the worker is killed and the status is ``timeout``.
        extraction: ``box`` is the convention above. With ``text`` everything is left to math-verify: it
            looks for an answer anywhere in the completion, and decides all pairs itself.

    Returns:
        One status per completion; ``crash`` means that math-verify's process died on it (out of memory).

    Raises:
        UserError: math-verify is not installed and an answer needs it.
    """
    pairs = [
        (answer.strip(), completion, "text") if extraction == "text" else _boxed_pair(answer, completion)
        for answer, completion in zip(answers, completions, strict=True)
    ]
    verdicts: dict[tuple[str, ...], MathStatus] = {}
    for pair in pairs:
        if pair is not None and len(pair) == 2 and pair not in verdicts:
            quick = _quick(*pair)
            if quick is not None:
                verdicts[pair] = quick
    # Side by side, pairs with one reference share its parsed form in the worker.
    hard = sorted({pair for pair in pairs if pair is not None and pair not in verdicts})
    if hard:
        verdicts.update(zip(hard, _pool().judge(hard, timeout_s), strict=True))
    return ["wrong" if pair is None else verdicts[pair] for pair in pairs]


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}`` or ``\fbox{...}``, braces balanced; None if none."""
    for start in reversed([match.end() for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)]):
        depth = 1
        position = start
        while position < len(text):
            character = text[position]
            if character == "\\":
                position += 1  # an escaped brace does not count
            elif character == "{":
                depth += 1
            elif character == "}":
                depth -= 1
                if depth == 0:
                    return text[start:position]
            position += 1
    return None


def _boxed_pair(answer: str, completion: str) -> tuple[str, ...] | None:
    box = last_boxed(completion)
    return None if box is None or not box.strip() else (answer.strip(), box.strip())


def _quick(answer: str, box: str) -> MathStatus | None:
    """Decides pairs that need no algebra; None for the others."""
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(box):
        return "passed" if int(answer) == int(box) else "wrong"
    if answer == box:
        return "passed"
    return "wrong" if len(box) > _MAX_ANSWER_CHARACTERS else None


class _Worker:
    """A math-verify process that answers one JSON line per JSON line."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "troll.tasks.verifiers.math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self.output = self._process.stdin, self._process.stdout
        self.deadline = time.monotonic() + _START_S
        self.ready = False
        self.item: int | None = None

    def ask(self, item: int, pair: tuple[str, ...], timeout_s: float) -> None:
        self.item, self.deadline = item, time.monotonic() + _WALL_FACTOR * timeout_s
        self._input.write(json.dumps([timeout_s, *pair]).encode() + b"\n")
        self._input.flush()

    def answer(self) -> str:
        """The next line; empty when the process has died."""
        return self.output.readline().decode().strip()

    def close(self) -> bool:
        """Ends the process; returns whether it had used up its CPU time."""
        self._process.kill()
        status = self._process.wait()
        self._input.close()
        self.output.close()
        return status == -signal.SIGPROF


class _Pool:
    """Workers that outlive a batch, since importing sympy takes longer than most batches."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[_Worker] = []
        self._cache: OrderedDict[tuple[str | float, ...], MathStatus] = OrderedDict()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def judge(self, pairs: Sequence[tuple[str, ...]], timeout_s: float) -> list[MathStatus]:
        with self._lock:
            known = [self._cache.get((*pair, timeout_s)) for pair in pairs]
            todo = [i for i, status in enumerate(known) if status is None]
            found = {i: status for i, status in enumerate(known) if status is not None}
            found.update(self._run(pairs, todo, timeout_s))
            for i in todo:
                self._cache[(*pairs[i], timeout_s)] = found[i]
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return [found[i] for i in range(len(pairs))]

    def _run(
        self, pairs: Sequence[tuple[str, ...]], todo: Iterable[int], timeout_s: float
    ) -> dict[int, MathStatus]:
        waiting = list(reversed(list(todo)))
        found: dict[int, MathStatus] = {}
        total = len(waiting)
        while len(found) < total:
            # A worker for every eight comparisons: starting one costs about as much as a hundred.
            wanted = min(self._size, max(1, (len(waiting) + 7) // 8))
            while len(self._workers) < wanted and waiting:
                self._workers.append(_Worker())
            for worker in self._workers:
                if worker.ready and worker.item is None and waiting:
                    item = waiting.pop()
                    worker.ask(item, pairs[item], timeout_s)
            for worker in self._next_events():
                self._take(worker, found)
        return found

    def _next_events(self) -> list[_Worker]:
        busy = [worker for worker in self._workers if worker.item is not None or not worker.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            timeout = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            ready = [key.data for key, _ in selector.select(timeout)]
        return ready or [worker for worker in busy if worker.deadline <= time.monotonic()]

    def _take(self, worker: _Worker, found: dict[int, MathStatus]) -> None:
        overrun = worker.deadline <= time.monotonic()
        line = "" if overrun else worker.answer()
        if line in ("ready", "true", "false"):
            worker.ready = True
            if worker.item is not None:
                found[worker.item] = "passed" if line == "true" else "wrong"
                worker.item = None
            return
        self._workers.remove(worker)
        overrun |= worker.close()
        if worker.item is None:
            raise UserError(
                "math-verify: its process does not start; install it: pip install 'troll[evaluate]'"
            )
        found[worker.item] = "timeout" if overrun else "crash"

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()


@functools.cache
def _pool() -> _Pool:
    # Not every system says how many cores this process may use.
    return _Pool(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
