r"""Judges answers in ``\boxed{}``.

The last box of a completion is compared with the reference answer. A completion without a box is wrong. There
are two standards. Evaluation compares by math-verify as published
(https://github.com/huggingface/Math-Verify), so that its figures are comparable with those of others. Rewards
ask for the exact value of the whole answer, since a policy learns whatever math-verify lets pass. References
in scientific notation (``4.5e33``), which math-verify reads as multiples of e, get the standard of rewards in
both.

math-verify runs in processes of its own (``math_worker.py``), each bounded in memory and in the CPU time of a
comparison, so that a busy machine turns no right answer into a wrong one. Its own timeouts are signals that
Python handles, which work in the main thread only and cannot interrupt a long operation on huge numbers.
"""

import functools
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Literal

from troll.common.errors import UserError
from troll.common.processor import available_cores
from troll.tasks.types import Problem
from troll.tasks.verifiers.notation import is_scientific, same_number
from troll.tasks.verifiers.worker import EndError, Worker

Standard = Literal["evaluation", "reward"]
MathStatus = Literal["passed", "wrong", "timeout", "crash"]

TIMEOUT_S = 5.0  # math-verify's own default per operation
# A comparison that waits for a core may take this much longer than its CPU time; then something is wrong.
_WALL_FACTOR = 24.0
_START_S = 60.0  # importing sympy on a loaded machine
_CACHE_SIZE = 100_000
# Longer answers are no answers, and parsing is not linear.
_MAX_ANSWER_CHARACTERS = 2_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")
# The answer stands at the end; what a policy repeats without end before it is not searched.
_MAX_SEARCHED_CHARACTERS = 200_000
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# An escaped character, which is no brace, or a brace.
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def math_rewards(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """Rewards for training, one per completion: 1.0 where the boxed answer is right, else 0.0."""
    answers = [problem.answer for problem in problems]
    return [float(status == "passed") for status in judge_math(answers, completions, standard="reward")]


def judge_math(
    answers: Sequence[str],
    completions: Sequence[str],
    *,
    standard: Standard = "evaluation",
    timeout_s: float = TIMEOUT_S,
    extraction: Literal["box", "text"] = "box",
) -> list[MathStatus]:
    r"""Judges completions against reference answers.

    Args:
        answers: reference answers (the content of the box, without ``\boxed{}``).
        completions: texts, one per answer.
        standard: ``evaluation`` is math-verify as published, ``reward`` the exact value; see above.
        timeout_s: CPU seconds for one comparison; beyond, the worker is killed and the status is ``timeout``.
        extraction: ``box`` is the convention above. With ``text`` everything is left to math-verify: it
            looks for an answer anywhere in the completion, and decides all pairs itself.

    Returns:
        One status per completion; ``crash`` means that math-verify's process died on it (out of memory).
    """
    pairs = [
        ("text", answer.strip(), completion)
        if extraction == "text"
        else _boxed_pair(standard, answer, completion)
        for answer, completion in zip(answers, completions, strict=True)
    ]
    different = {pair for pair in pairs if pair is not None}
    verdicts = {pair: status for pair in different if (status := _quick(*pair)) is not None}
    # Side by side, pairs with one reference share its parsed form in the worker.
    if hard := sorted(different - verdicts.keys()):
        verdicts |= _pool().judge(hard, timeout_s)
    return ["wrong" if pair is None else verdicts[pair] for pair in pairs]


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}`` or ``\fbox{...}``, braces balanced; None if none.

    Takes time linear in the text, and looks at its last 200,000 characters only.
    """
    text = text[-_MAX_SEARCHED_CHARACTERS:]
    starts = {match.end() for match in _BOX.finditer(text)}
    opened: list[int] = []
    last = (-1, -1)
    for match in _BRACE.finditer(text) if starts else ():
        if match[0] == "{":
            opened.append(match.end())
        elif match[0] == "}" and opened:
            start = opened.pop()
            if start in starts and start > last[0]:
                last = (start, match.start())
    return None if last[0] < 0 else text[slice(*last)]


_Pair = tuple[str, str, str]  # standard, reference answer, answer


def _boxed_pair(standard: Standard, answer: str, completion: str) -> _Pair | None:
    box = last_boxed(completion)
    if box is None or not box.strip():
        return None
    return ("reward" if is_scientific(answer) else standard, answer.strip(), box.strip())


def _quick(standard: str, answer: str, box: str) -> MathStatus | None:
    """Decides pairs that need no algebra; None for the others."""
    if standard == "text":
        return None
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(box):
        return "passed" if int(answer) == int(box) else "wrong"
    if answer == box:
        return "passed"
    if len(box) > _MAX_ANSWER_CHARACTERS:
        return "wrong"
    same = same_number(answer, box) if standard == "reward" else None
    return None if same is None else "passed" if same else "wrong"


class _Pool:
    """Workers that outlive a batch, since importing sympy takes longer than most batches."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[Worker] = []  # those that wait
        self._cache: OrderedDict[tuple[_Pair, float], MathStatus] = OrderedDict()
        self._lock = threading.Lock()

    def judge(self, pairs: Sequence[_Pair], timeout_s: float) -> dict[_Pair, MathStatus]:
        """The verdicts on pairs that differ."""
        with self._lock:
            known = {pair: self._cache[pair, timeout_s] for pair in pairs if (pair, timeout_s) in self._cache}
            new = [pair for pair in pairs if pair not in known]
            # A worker for every eight comparisons: starting one costs about as much as a hundred.
            workers = max(1, len(self._workers), min(self._size, (len(new) + 7) // 8))
            with ThreadPoolExecutor(workers) as threads:
                statuses = threads.map(self._compare, new, repeat(timeout_s))
                known |= zip(new, statuses, strict=True)
            self._cache.update({(pair, timeout_s): known[pair] for pair in new})
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return known

    def _compare(self, pair: _Pair, timeout_s: float) -> MathStatus:
        try:
            worker = self._workers.pop()
        except IndexError:
            worker = _started()
        try:
            worker.send([timeout_s, *pair], _WALL_FACTOR * timeout_s)
            right = worker.answer()
        except (EndError, ValueError) as end:
            worker.close()
            return "timeout" if isinstance(end, EndError) and end.late else "crash"
        self._workers.append(worker)
        return "passed" if right else "wrong"

    def close(self) -> None:
        while self._workers:
            self._workers.pop().close()


def _started() -> Worker:
    try:
        return Worker("troll.tasks.verifiers.math_worker", _START_S)
    except EndError as end:
        raise UserError(
            f"math-verify: its process did not start within {_START_S:g} seconds; this machine may be "
            "too busy, try again"
            if end.late
            else "math-verify: its process does not start; install it: pip install 'troll[evaluate]'"
        ) from None


@functools.cache
def _pool() -> _Pool:
    return _Pool(available_cores())
