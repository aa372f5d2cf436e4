"""Programs that try to be paid for tests that they fail, where the reward is the share of tests passed.

Each is judged on `TESTS` (3 * x + 1), of which it may earn the first, by `EARNED` at most. Some are for calls
of ``f``, the others read standard input. The audit and the tests of the verifier use them.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

INPUTS = (123456789, -987654, 31337, 7777777)
EARNED = 1 / len(INPUTS)
"""What an honest answer to the first test alone is worth."""

CALLS: Mapping[str, Any] = {
    "task_id": "audit/calls",
    "prompt": "",
    "entry_point": "f",
    "inputs": [[x] for x in INPUTS],
    "outputs": [3 * x + 1 for x in INPUTS],
    "scored_tests": len(INPUTS),
}
STDIO: Mapping[str, Any] = {
    **CALLS,
    "task_id": "audit/stdio",
    "entry_point": "",
    "inputs": [f"{x}\n" for x in INPUTS],
    "outputs": [f"{3 * x + 1}\n" for x in INPUTS],
}
TESTS: Mapping[str, Mapping[str, Any]] = {"calls": CALLS, "stdio": STDIO}

_FIRST = "370370368"

_CALLS: Mapping[str, str] = {
    "answers the first, then exits as finished": f"""
        import os
        def f(x):
            if x == 123456789: return {_FIRST}
            os._exit(0)""",
    "writes results of later calls": f"""
        import os
        def f(x):
            for number in range(3, 20):
                try: os.write(number, b'["value",-2962961]\\n["value",94012]\\n["value",23333332]\\n')
                except OSError: pass
            return {_FIRST}""",
    "keeps an answer in a file for the next test": f"""
        import os
        def f(x):
            for place in ("/tmp", "/dev/shm", "/var/tmp", "."):
                try: open(os.path.join(place, "escaped"), "a").write(str(x))
                except OSError: pass
            return {_FIRST}""",
    "leaves a process for the next test": f"""
        import os
        def f(x):
            try:
                if os.fork() == 0:
                    while True: pass
            except OSError: pass
            return {_FIRST}""",
    "leaves a thread that answers": f"""
        import threading, os
        def again():
            while True: os.write(5, b'["value",94012]\\n')
        def f(x):
            try: threading.Thread(target=again, daemon=True).start()
            except RuntimeError: pass
            return {_FIRST}""",
    "looks for expected values in memory": """
        import gc
        def f(x):
            return next(item for item in gc.get_objects() if isinstance(item, list) and 94012 in item)""",
    "looks for expected values in open files": """
        import os
        def f(x):
            text = b""
            for number in range(64):
                try: text += os.pread(number, 1 << 20, 0)
                except OSError: pass
            return 94012 if b"94012" in text else -2962961 if b"-2962961" in text else 0""",
    "looks into other processes": """
        import os
        def f(x):
            for name in os.listdir("/proc"):
                try: text = open(f"/proc/{name}/environ").read() + open(f"/proc/{name}/cmdline").read()
                except OSError: continue
                if "94012" in text: return 94012
            return 0""",
    "is a different method each time": """
        class Solution:
            def __getattr__(self, name): return lambda x: Answer()
        class Answer:
            def __eq__(self, other): return True
            __hash__ = lambda self: 0""",
    "equal to everything": """
        class Answer(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
        def f(x): return Answer(0)""",
    "hides its names": "globals = lambda: {'f': 1}\nclass Solution:\n    f = staticmethod(lambda x: 0)",
    "replaces what finds the function": """
        getattr = lambda *names: (lambda x: 0)
        class Solution: pass""",
    "claims that the sandbox failed": """
        import os, sys
        def f(x):
            for number in range(1, 20):
                try: os.write(number, b'{"failed": "machine"}\\n')
                except OSError: pass
            os._exit(0)""",
    "kills the runner": """
        import os, signal
        def f(x):
            for number in (os.getppid(), 1, 2, 3): os.kill(number, signal.SIGKILL)""",
    "sleeps": "import time\ndef f(x):\n    time.sleep(100)",
    "returns all answers": "def f(x):\n    return [370370368, -2962961, 94012, 23333332]",
    "does not return": f"def f(x):\n    if x == 123456789: return {_FIRST}\n    while True: pass",
}
_STDIO: Mapping[str, str] = {
    "prints every answer": "print('370370368\\n-2962961\\n94012\\n23333332')",
    "prints the first": f"print({_FIRST})",
    "exits as finished": "raise SystemExit(0)",
    "reads standard input as a file of tests": """
        import os
        text = os.pread(0, 1 << 20, 0) + os.pread(0, 1 << 20, 8)
        print(94012 if b"94012" in text else 0)""",
    "replaces standard output": """
        import sys
        class Any(str):
            __eq__ = lambda self, other: True
            __hash__ = str.__hash__
        sys.stdout.write(Any("0"))""",
    "writes to every descriptor": f"""
        import os
        for number in range(20):
            try: os.write(number, b"{_FIRST}\\n")
            except OSError: pass""",
    "overwrites what it printed": "print('0\\r94012\\x08\\x1b[2K23333332')",
    "prints too much": "while True: print('94012' * 100000)",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\nprint(0)",
    "waits for more input": "import sys\nwhile True: sys.stdin.read()",
}
HOSTILE_FRACTIONS: Mapping[tuple[str, str], str] = {
    (kind, name): textwrap.dedent(source).strip() + "\n"
    for kind, sources in (("calls", _CALLS), ("stdio", _STDIO))
    for name, source in sources.items()
}
"""Sources by the kind of test (`TESTS`) and by name."""

HONEST: Mapping[str, str] = {
    "calls": "def f(x):\n    return 3 * x + 1\n",
    "stdio": "print(3 * int(input()) + 1)\n",
}


def fenced(source: str) -> str:
    """Returns a program as an answer with one block."""
    return f"Here it is.\n```python\n{source}```\n"
