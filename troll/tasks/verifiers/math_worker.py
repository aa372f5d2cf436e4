r"""A process that runs math-verify: [CPU seconds, reference, answer] per line in, true or false out.

Before the pair comes the CPU time that the comparison may take, in seconds; after it may come "text", which
says that the answer is somewhere in a whole text.

It bounds its own memory and CPU time, since ``9^{9^{9}}`` is a short answer: the timer's signal ends the
process, whatever it is doing.
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

_DOLLAR = re.compile(r"(?<!\\)\$")
_MEMORY_BYTES = 2 * 2**30


def main() -> None:
    """Serves pairs until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    with contextlib.suppress(ValueError, OSError):  # some systems have no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    configs = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())

    @functools.lru_cache(maxsize=1024)
    def expression(text: str) -> Any:
        # As inline mathematics: math-verify finds percentages there, but not inside a box.
        return parse(f"${_DOLLAR.sub('', text)}$", extraction_config=configs, parsing_timeout=None)

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        cpu_s, reference, text, *mode = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        gold = expression(reference)
        answer = parse(text, parsing_timeout=None) if mode else expression(text)
        verdict = bool(verify(gold, answer, timeout_seconds=None))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=answers, flush=True)


if __name__ == "__main__":
    main()
