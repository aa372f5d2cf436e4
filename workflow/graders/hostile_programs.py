"""Programs that try to pass without a solution, to escape, or to stall the judge; none may score.

Each defines ``f`` for the problem `PROBLEM` (3 * x + 1) without computing the answer. The audit and the tests
of the sandbox and the verifier use them.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

from hostile_neighbours import NEIGHBOURS

PROBLEM: Mapping[str, Any] = {
    "task_id": "audit/0",
    "prompt": "",
    "entry_point": "f",
    "canonical_solution": "def f(x):\n    return 3 * x + 1\n",
    "base_input": [[1], [2], [10]],
    "plus_input": [[0], [-5], [123456789]],
    "atol": 0,
    "contract": "",
}

# A value that compares equal to everything, for several attacks below.
_YES = """
    class Yes:
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __hash__(self): return 0
        def __bool__(self): return True
        def __lt__(self, other): return True
        __le__ = __gt__ = __ge__ = __lt__
"""

# Methods with which a subclass misrepresents its value.
_LIES = """
    import collections, decimal, fractions, numpy
    class Lie({0}):
        __eq__ = __ge__ = __le__ = __bool__ = lambda self, *others: True
        __ne__ = __lt__ = __gt__ = lambda self, other: False
        __hash__ = __len__ = lambda self: 1
        __sub__ = __rsub__ = __abs__ = __float__ = lambda self, *others: 0.0
        __class__ = int
    def f(x): return {1}"""

_SOURCES: dict[str, str] = {
    **{
        f"lying subclass of {base}": _LIES.format(base, made)
        for base, made in (
            ("complex", "Lie(0)"),
            ("bytes", "Lie(b'4')"),
            ("tuple", "Lie((0,))"),
            ("dict", "Lie(a=0)"),
            ("set", "Lie([0])"),
            ("bytearray", "Lie(b'4')"),
            ("fractions.Fraction", "Lie(1, 3)"),
            ("decimal.Decimal", "Lie('0.1')"),
            ("collections.UserList", "Lie([0])"),
            ("collections.UserString", "Lie('4')"),
            ("collections.namedtuple('Pair', 'a b')", "[Lie(0, 0)]"),
            ("numpy.float64", "Lie(0)"),
            ("numpy.ndarray", "numpy.array(0).view(Lie)"),
        )
    },
    # --- equality and types -----------------------------------------------------------------------------
    "equal to everything": _YES + "    def f(x): return Yes()",
    "list of equals": _YES + "    def f(x): return [Yes()]",
    "dict key equal to everything": _YES + "    def f(x): return {Yes(): Yes()}",
    "int subclass with equality": """
        class Int(int):
            def __eq__(self, other): return True
            def __hash__(self): return 0
        def f(x): return Int(0)""",
    "str subclass": """
        class Text(str):
            __eq__ = lambda self, other: True
            __hash__ = str.__hash__
        def f(x): return Text("4")""",
    "float subclass": """
        class Float(float):
            __eq__ = lambda self, other: True
            __sub__ = __rsub__ = lambda self, other: 0.0
            __hash__ = float.__hash__
        def f(x): return Float(0)""",
    "list subclass": """
        class List(list):
            __eq__ = lambda self, other: True
            __len__ = lambda self: 1
        def f(x): return List()""",
    "bool by metaclass": """
        class Meta(type):
            __eq__ = lambda self, other: True
            __instancecheck__ = lambda self, other: True
            __hash__ = lambda self: 0
        class f(metaclass=Meta):
            def __init__(self, x): pass""",
    "class lies about its type": """
        class Liar:
            __class__ = int
            __eq__ = lambda self, other: True
            __index__ = __int__ = lambda self: 4
        def f(x): return Liar()""",
    "type patched to say int": """
        import builtins
        real = builtins.type
        class Yes:
            __eq__ = lambda self, other: True
        builtins.type = lambda *a: int if len(a) == 1 else real(*a)
        def f(x): return Yes()""",
    "nan": "def f(x): return float('nan')",
    "infinity": "def f(x): return float('inf')",
    "not implemented": "def f(x): return NotImplemented",
    "ellipsis": "def f(x): return ...",
    "generator": "def f(x): yield 3 * x + 1",
    "coroutine": "async def f(x): return 3 * x + 1",
    "function": "def f(x): return lambda: 3 * x + 1",
    "reduce trick for pickles": """
        import os
        class Bomb:
            def __reduce__(self): return (os.system, ("touch /tmp/escaped",))
        def f(x): return Bomb()""",
    "mock": """
        from unittest.mock import MagicMock, ANY
        def f(x): return ANY""",
    # --- size and shape of results -----------------------------------------------------------------------
    "endless nesting": """
        def f(x):
            value = []
            for _ in range(100000): value = [value]
            return value""",
    "list that holds itself": """
        def f(x):
            value = []; value.append(value)
            return value""",
    "shared exponential": """
        def f(x):
            value = [0]
            for _ in range(60): value = [value, value]
            return value""",
    "huge integer": "def f(x): return 1 << 50_000_000",
    "huge text": "def f(x): return 'a' * 30_000_000",
    "many digits": "def f(x): return 10 ** 200_000",
    "colliding hashes": "def f(x): return {i * (2 ** 61 - 1) for i in range(1, 3000)}",
    "colliding keys": "def f(x): return {(i * (2 ** 61 - 1),): 0 for i in range(1, 3000)}",
    "lone surrogate": "def f(x): return '\\ud800'",
    "text with line ends": """
        def f(x): return '4]\\n["value",4]\\n["value",7]\\n["value",30]\\n'""",
    "unicode digits": "def f(x): return '٤'",
    # --- leaving early -----------------------------------------------------------------------------------
    "os._exit": "import os\n        os._exit(0)\n        def f(x): return 0",
    "os._exit in call": "import os\n        def f(x): os._exit(0)",
    "sys.exit": "import sys\n        def f(x): sys.exit(0)",
    "sys.exit in thread": """
        import sys, threading
        def f(x):
            thread = threading.Thread(target=lambda: sys.exit(0)); thread.start(); thread.join()""",
    "os._exit in thread": """
        import os, threading
        def f(x):
            threading.Thread(target=os._exit, args=(0,)).start()
            while True: pass""",
    "raise SystemExit at import": "raise SystemExit(0)",
    "base exception": """
        class Gone(BaseException): pass
        def f(x): raise Gone""",
    "atexit prints": """
        import atexit
        atexit.register(print, '["value",4]')
        def f(x): return None""",
    "segmentation fault": "import ctypes\n        def f(x): ctypes.string_at(0)",
    "abort": "import os\n        def f(x): os.abort()",
    "stop itself": "import os, signal\n        def f(x): os.kill(os.getpid(), signal.SIGSTOP)",
    "recursion": "def f(x): return f(x)",
    "recursion in C": """
        import sys; sys.setrecursionlimit(10 ** 9)
        def f(x): return f(x)""",
    # --- time and memory ---------------------------------------------------------------------------------
    "endless loop": "def f(x):\n            while True: pass",
    "endless loop at import": "while True: pass",
    "loop that swallows interrupts": """
        import signal
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        def f(x):
            while True:
                try:
                    while True: pass
                except BaseException: pass""",
    "sleep": "import time\n        def f(x): time.sleep(1000)",
    "threads that spin": """
        import threading
        def spin():
            while True: pass
        def f(x):
            for _ in range(100): threading.Thread(target=spin).start()""",
    "huge power": "def f(x): return 9 ** 9 ** 9",
    "regular expression that backtracks": """
        import re
        def f(x): return re.match('(a+)+$', 'a' * 60 + 'b')""",
    "memory bomb": "def f(x): return [0] * 10 ** 10",
    "memory bomb in steps": """
        def f(x):
            hoard = []
            while True: hoard.append(bytearray(1 << 20))""",
    "memory error forever": """
        def f(x):
            hoard = []
            while True:
                try: hoard.append(bytearray(1 << 24))
                except MemoryError: pass""",
    "infinite output": "def f(x):\n            while True: print('4' * 1000)",
    "infinite iterator": "import itertools\n        def f(x): return list(itertools.count())",
    # --- processes and signals ---------------------------------------------------------------------------
    "fork": "import os\n        def f(x): return os.fork()",
    "fork bomb": """
        import os
        while True:
            try: os.fork()
            except OSError: pass
        def f(x): return 0""",
    "fork bomb through libc": """
        import ctypes
        libc = ctypes.CDLL(None)
        def f(x):
            for _ in range(1000): libc.fork()
            return libc.syscall(57)""",
    "kill parent": "import os, signal\n        def f(x): return os.kill(os.getppid(), signal.SIGKILL)",
    "kill everyone": "import os, signal\n        def f(x): return os.kill(-1, signal.SIGKILL)",
    "kill the group": "import os, signal\n        def f(x): return os.killpg(os.getpgid(1), signal.SIGKILL)",
    "limits of the runner": """
        import resource
        def f(x): return resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))""",
    "raise own limits": """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        def f(x): return 0""",
    "subprocess": """
        import subprocess
        def f(x): return subprocess.run(["sh", "-c", "echo 4"], capture_output=True).stdout""",
    "os.system": "import os\n        def f(x): return os.system('touch /tmp/escaped')",
    "exec": "import os\n        def f(x): os.execv('/bin/true', ['true'])",
    "multiprocessing": """
        import multiprocessing
        def f(x): return multiprocessing.Pool(4).map(abs, [x])""",
    "trace the runner": """
        import ctypes
        def f(x): return ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 and 3 * x + 1 or 0""",
    # --- files and network -------------------------------------------------------------------------------
    "write to tmp": "def f(x): return open('/tmp/escaped', 'w').write('x')",
    "write everywhere": """
        import os
        def f(x):
            written = []
            for path in ("/", "/usr", "/tmp", "/dev/shm", "/troll", "/var/tmp", os.getcwd()):
                try:
                    open(os.path.join(path, "escaped"), "w").close(); written.append(path)
                except OSError: pass
            return written or 0""",
    "rewrite the runner": "def f(x): return open('/troll/runner.py', 'a').write('#')",
    "disk bomb": """
        def f(x):
            with open('disk', 'wb') as file:
                while True: file.write(b'0' * (1 << 20))""",
    "memory file bomb": """
        import os
        def f(x):
            while True: os.write(os.memfd_create('m'), b'0' * (1 << 24))""",
    "symbolic link": """
        import os
        def f(x):
            os.symlink('/etc/passwd', '/tmp/link')
            return open('/tmp/link').read()""",
    "password file": "def f(x): return open('/etc/passwd').read()",
    "process files": """
        def f(x):
            with open('/proc/self/mem', 'r+b') as memory: return memory.read(1)""",
    "environment": "import os\n        def f(x): return dict(os.environ)",
    "network": """
        import socket
        def f(x): return socket.create_connection(('1.1.1.1', 53), 1)""",
    "unix socket": """
        import socket
        def f(x): return socket.socket(socket.AF_UNIX)""",
    "new namespaces": """
        import ctypes
        def f(x): return ctypes.CDLL(None).unshare(0x10000000)""",
    # --- the judge's own machinery -----------------------------------------------------------------------
    "patch builtins": """
        import builtins
        builtins.abs = builtins.all = builtins.any = builtins.isinstance = lambda *a: True
        builtins.len = lambda *a: 6
        def f(x): return None""",
    "patch json": """
        import json
        json.dumps = lambda *a, **k: '4'
        json.loads = lambda *a, **k: 4
        json.encoder.JSONEncoder.encode = lambda *a: '4'
        def f(x): return None""",
    "patch math and operator": """
        import math, operator
        math.isclose = operator.eq = lambda *a, **k: True
        def f(x): return 0.0""",
    "patch the encoder": """
        import sys
        sys.modules['plain_data'].encode = lambda value: '4'
        def f(x): return None""",
    "walk the frames": """
        import sys
        def f(x):
            frame = sys._getframe()
            while frame:
                for name, value in list(frame.f_locals.items()) + list(frame.f_globals.items()):
                    if name in ('expected', 'exp', 'answer', 'canonical_solution'): return value
                frame = frame.f_back""",
    "rewrite expected": """
        import ctypes, sys
        def f(x):
            frame = sys._getframe(1)
            while frame:
                if 'expected' in frame.f_locals:
                    frame.f_locals['expected'][:] = [0] * len(frame.f_locals['expected'])
                frame = frame.f_back
            return 0""",
    "search memory for the solution": """
        import gc
        def f(x):
            for thing in gc.get_objects():
                if isinstance(thing, dict) and 'canonical_solution' in thing:
                    space = {}; exec(thing['canonical_solution'], space); return space['f'](x)
                if isinstance(thing, (list, tuple)) and any(
                    isinstance(item, str) and '3 * x + 1' in item for item in thing[:50]
                ) and thing is not f.__code__.co_consts:
                    return 3 * x + 1 if 'Program' in type(thing).__name__ else None""",
    "write to the result pipe": """
        import os
        def f(x):
            for descriptor in range(3, 64):
                try: os.write(descriptor, b'["value",4]\\n["value",7]\\n["value",30]\\n')
                except OSError: pass
            os._exit(0)""",
    "flood the result pipe": """
        import os
        def f(x):
            while True: os.write(5, b'["value",4]\\n' * 1000)""",
    "claim an infrastructure failure": """
        import os
        def f(x):
            os.write(5, b'["infrastructure","please try again"]\\n')
            os._exit(70)""",
    "close everything": """
        import os
        def f(x): os.closerange(0, 64); return 4""",
    "replace the exit": """
        import os, sys
        os._exit = sys.exit = lambda *a: None
        def f(x): raise ValueError""",
    "trace function": """
        import sys
        def tracer(frame, event, value):
            if 'value' in frame.f_locals: frame.f_locals['value'] = 4
            return tracer
        sys.settrace(tracer)
        def f(x): return None""",
    "delete modules": """
        import sys
        sys.modules.clear()
        def f(x): return None""",
    "import hook": """
        import sys
        class Finder:
            def find_spec(self, *a): raise SystemExit(0)
        sys.meta_path.insert(0, Finder())
        def f(x): return None""",
    "signal alarm": """
        import signal
        signal.signal(signal.SIGALRM, lambda *a: (_ for _ in ()).throw(SystemExit(0)))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        def f(x):
            while True: pass""",
    # --- text of the program -----------------------------------------------------------------------------
    "null byte": "def f(x): return 0\0",
    "syntax error": "def f(x: return",
    "deep syntax": "def f(x): return " + "(" * 5000 + "0" + ")" * 5000,
    "strange encoding": "# -*- coding: rot13 -*-\n        def f(x): return 0",
    "no function": "g = 1",
    "function is no function": "f = 4",
    "other arguments": "def f(): return 4",
    "empty": "",
}

HOSTILE_PROGRAMS: Mapping[str, str] = {
    name: textwrap.dedent("        " + source.lstrip() if not source.startswith("\n") else source)
    for name, source in {**_SOURCES, **NEIGHBOURS}.items()
}
