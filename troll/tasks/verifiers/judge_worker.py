"""A worker process that compares outputs of programs; see ``judge.py``.

It reads a JSON question per line and writes true, false or a reason for each of its pairs. It limits its own
memory and CPU time: the timer's signal ends the process, whatever it is doing.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.program import Output
from troll.tasks.verifiers.comparison import (
    equal,
    equal_as_lists,
    load_second_answers,
    outputs_match,
    special_oracle,
)

_MEMORY_BYTES = 4 * 2**30  # expected outputs of public problems may be long


def main() -> None:
    """Answers questions until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    gc.disable()  # plain data holds no cycles
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        match = _rule(question["rule"], question["tolerance"])
        signal.setitimer(signal.ITIMER_PROF, question["cpu_s"])
        for arguments, output, expected in question["pairs"]:
            print(json.dumps(_answer(match, arguments, output, expected)), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _rule(rule: str | list[str], tolerance: float) -> Callable[[str | None, Output, Output], bool]:
    if isinstance(rule, list):
        oracle = special_oracle(*rule)
        assert oracle is not None
        load_second_answers(*rule)
        return lambda arguments, output, expected: oracle(
            plain_data.decode(arguments or "[]"), output, expected, tolerance
        )
    if rule == "evalplus":
        return lambda _, output, expected: outputs_match(output, expected, tolerance)
    plain = {"exact": equal, "lists": equal_as_lists}[rule]
    return lambda _, output, expected: plain(output, expected)


def _answer(match: Callable[..., bool], arguments: Any, output: list[Any], expected: list[Any]) -> bool | str:
    try:
        return bool(match(arguments, Output(*output), Output(*expected)))
    except Exception as error:  # an exception is this output's verdict; the others go on
        return f"cannot be compared: {type(error).__name__}"


if __name__ == "__main__":
    main()
