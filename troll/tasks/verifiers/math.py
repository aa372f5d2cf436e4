r"""Judges answers in ``\boxed{}``, or after ``####``.

The last box of a completion is compared with the reference answer. A completion without a box is wrong. There
are two standards, and a lenient one of rewards (``lenient.py``). Evaluation uses math-verify as published
(https://github.com/huggingface/Math-Verify), so that results are comparable with published ones. Rewards
require the exact value of the whole answer, since a policy learns to exploit whatever math-verify accepts.
For references in scientific notation (``4.5e33``), which math-verify reads as multiples of e, both use the
standard of rewards.

A problem whose record has ``answers: "####"`` is judged as GSM8K is by verl, the library that the paper's
code is made of (``verl/utils/reward_score/gsm8k.py``; the released repository's copy could not be read): of
the numbers after ``####`` in the last 300 characters the last one, without commas, must be the reference's
text. Rewards and evaluation then agree.

math-verify runs in worker processes (``math_worker.py``), each limited in memory and in CPU time per
comparison, so that right answers do not count as wrong on a busy machine. math-verify's own timeouts are
signals handled in Python, which work in the main thread only and cannot interrupt a long operation on huge
numbers.
"""

import functools
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any, Literal

from troll.common.errors import UserError
from troll.common.processor import available_cores
from troll.tasks.types import Problem
from troll.tasks.verifiers.lenient import plain_value
from troll.tasks.verifiers.notation import is_scientific
from troll.tasks.verifiers.numbers import same_number
from troll.tasks.verifiers.worker import EndError, Worker

Standard = Literal["evaluation", "reward", "lenient"]
Form = Literal["boxed", "lenient", "####"]
"""Notation of an answer and its reward: field ``answers`` of the problem's record; default ``boxed``."""
MathStatus = Literal["passed", "wrong", "timeout", "crash"]

_BOXED: list[Form] = ["boxed"]
TIMEOUT_S = 5.0  # math-verify's own default per operation
# Wall time of a comparison per second of its CPU limit: it may have to wait for a core, but a hang must end.
_WALL_FACTOR = 24.0
_START_S = 60.0  # enough to import sympy on a loaded machine
_CACHE_SIZE = 100_000
# Longer answers count as wrong, since parsing takes more than linear time.
_MAX_ANSWER_CHARACTERS = 2_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")
# The answer is at the end; what a policy repeats endlessly before it is not searched.
_MAX_SEARCHED_CHARACTERS = 200_000
_AFTER_HASHES = re.compile(r"#### (-?[0-9.,]+)")
_HASHES_SEARCHED = 300  # characters at the end (verl)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# An escaped character, which is not a brace, or a brace.
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def math_rewards(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """Returns the training reward of each completion: 1.0 if the answer is right, else 0.0."""
    answers = [problem.answer for problem in problems]
    forms = [form_of(problem.record) for problem in problems]
    statuses = judge_math(answers, completions, standard="reward", forms=forms)
    return [float(status == "passed") for status in statuses]


def form_of(record: Mapping[str, Any]) -> Form:
    """Returns how a problem's answer is written and rewarded."""
    form: Form = record.get("answers", "boxed")
    return form


def judge_math(
    answers: Sequence[str],
    completions: Sequence[str],
    *,
    standard: Standard = "evaluation",
    timeout_s: float = TIMEOUT_S,
    extraction: Literal["box", "text"] = "box",
    forms: Sequence[Form] | None = None,
) -> list[MathStatus]:
    r"""Judges completions against reference answers.

    Args:
        answers: reference answers (the content of the box, without ``\boxed{}``).
        completions: texts, one per answer.
        standard: ``evaluation`` (math-verify as published), ``reward`` (the exact value) or ``lenient``; see
            the module.
        timeout_s: CPU seconds for one comparison; a worker that exceeds them is killed, and the status is
            ``timeout``.
        extraction: ``box`` compares the last box. ``text`` leaves everything to math-verify, which searches
            the whole completion for an answer and decides all pairs itself.
        forms: how each answer is written and rewarded; default ``boxed``. With ``lenient``, the standard
            ``reward`` is the lenient one.

    Returns:
        One status per completion; ``crash`` means that the worker died (out of memory).
    """
    pairs = [
        ("text", answer.strip(), completion)
        if extraction == "text"
        else _pair(form, standard, answer, completion)
        for answer, completion, form in zip(answers, completions, forms or _BOXED * len(answers), strict=True)
    ]
    different = {pair for pair in pairs if pair is not None}
    verdicts = {pair: status for pair in different if (status := _quick(*pair)) is not None}
    # Sorted, so that neighbours with the same reference share its parsed form in the worker.
    if hard := sorted(different - verdicts.keys()):
        verdicts |= _pool().judge(hard, timeout_s)
    return ["wrong" if pair is None else verdicts[pair] for pair in pairs]


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last ``\boxed{...}`` or ``\fbox{...}`` with balanced braces; None if none.

    Takes linear time, and searches only the last 200,000 characters.
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


def _pair(form: Form, standard: Standard, answer: str, completion: str) -> _Pair | None:
    if form == "####":
        numbers = _AFTER_HASHES.findall(completion[-_HASHES_SEARCHED:])
        return (form, answer, numbers[-1].replace(",", "")) if numbers else None
    if form == "lenient" and standard == "reward":
        standard = "lenient"
    box = last_boxed(completion)
    if box is None or not box.strip():
        return None
    if is_scientific(answer) and standard == "evaluation":
        standard = "reward"
    return (standard, answer.strip(), box.strip())


def _quick(standard: str, answer: str, box: str) -> MathStatus | None:
    """Decides pairs that need no algebra; returns None for the others."""
    if standard == "text":
        return None
    if standard == "####":
        return "passed" if answer == box else "wrong"
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(box):
        return "passed" if int(answer) == int(box) else "wrong"
    if answer == box:
        return "passed"
    if len(box) > _MAX_ANSWER_CHARACTERS:
        return "wrong"
    same = same_number(answer, box) if standard != "evaluation" else None
    if standard == "lenient" and not same:
        # What is wrong as it stands may be right without the marks around it, so only a worker can refuse it.
        same = same_number(plain_value(answer), plain_value(box)) or None
    return None if same is None else "passed" if same else "wrong"


class _Pool:
    """Worker processes that outlive a batch, since importing sympy takes longer than most batches."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[Worker] = []  # the idle ones
        self._cache: OrderedDict[tuple[_Pair, float], MathStatus] = OrderedDict()
        self._lock = threading.Lock()

    def judge(self, pairs: Sequence[_Pair], timeout_s: float) -> dict[_Pair, MathStatus]:
        """Returns the verdicts on pairs, each of which is given once."""
        with self._lock:
            known = {pair: self._cache[pair, timeout_s] for pair in pairs if (pair, timeout_s) in self._cache}
            new = [pair for pair in pairs if pair not in known]
            # One worker per eight comparisons: starting one costs about as much as a hundred comparisons.
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
