r"""A process that runs math-verify: a pair [reference, answer] per line in, true or false out.

A third item, "text", says that the answer is somewhere in a whole text.

Its parent bounds the time; it bounds its own memory, since ``9^{9^{9}}`` is a short answer.
"""

import contextlib
import functools
import json
import os
import re
import resource
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
        reference, text, *mode = json.loads(line)
        gold = expression(reference)
        answer = parse(text, parsing_timeout=None) if mode else expression(text)
        print(json.dumps(bool(verify(gold, answer, timeout_seconds=None))), file=answers, flush=True)


if __name__ == "__main__":
    main()
