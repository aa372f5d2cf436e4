r"""A worker process that compares mathematical answers.

It reads [CPU seconds, standard, reference, answer] per line and writes the verdict, true or false. The
standard is ``reward`` (exact value, ``equality.py``), ``lenient`` (``lenient.py``), ``evaluation``
(math-verify as published) or ``text`` (the same, with the answer somewhere in a whole text).

It limits its own memory and CPU time, since answers as short as ``9^{9^{9}}`` take too much: the timer's
signal ends the process, whatever it is doing.
"""

import contextlib
import functools
import json
import os
import re
import resource
import signal
import sys
from typing import Any

from troll.tasks.verifiers.lenient import plain_value
from troll.tasks.verifiers.notation import with_powers_of_ten

_DOLLAR = re.compile(r"(?<!\\)\$")
_MEMORY_BYTES = 2 * 2**30


def main() -> None:
    """Compares pairs until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    from troll.tasks.verifiers.equality import equal_answers

    with contextlib.suppress(ValueError, OSError):  # some systems have no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    configs = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())

    @functools.lru_cache(maxsize=1024)
    def expression(text: str) -> Any:
        # As inline mathematics: math-verify finds percentages there, but not inside a box.
        plain = with_powers_of_ten(_DOLLAR.sub("", text))
        return parse(f"${plain}$", extraction_config=configs, parsing_timeout=None)

    def equal(standard: str, reference: str, text: str) -> bool:
        if standard == "reward":
            return equal_answers(reference, text)
        if standard == "lenient":
            plain = plain_value(reference), plain_value(text)
            return equal_answers(reference, text) or equal_answers(*plain)
        answer = parse(text, parsing_timeout=None) if standard == "text" else expression(text)
        return bool(verify(expression(reference), answer, timeout_seconds=None))

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        cpu_s, standard, reference, text = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            verdict = equal(standard, reference, text)
        except Exception:  # an answer that fails is wrong, as for math-verify, and must not end the process
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=answers, flush=True)


if __name__ == "__main__":
    main()
