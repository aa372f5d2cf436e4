"""Unusual but correct programs, which too strict a sandbox would reject.

They solve the problem of ``hostile_programs.py`` (3 * x + 1), or return values of unusual types that equal
the reference's. evalplus accepts all of them, and so must our judge.
"""

import textwrap
from collections.abc import Mapping

_SOURCES: dict[str, str] = {
    "numpy": "import numpy as np\ndef f(x): return int(np.array([3, 1]) @ np.array([x, 1]))",
    "numpy's numbers": "import numpy as np\ndef f(x): return np.int64(3) * x + 1",
    "numpy and floats": "import numpy as np\ndef f(x): return np.float64(3 * x + 1)",
    "500 MB": "room = bytearray(500_000_000)\ndef f(x): return 3 * x + 1 + room[x]",
    "500 MB of numpy": """
        import numpy
        room = numpy.ones(62_500_000)
        def f(x): return 3 * x + int(room[x % 7])""",
    "temporary file": """
        import tempfile
        def f(x):
            with tempfile.TemporaryFile("w+") as file:
                file.write(str(3 * x)); file.seek(0)
                return int(file.read()) + 1""",
    "named temporary file": """
        import tempfile
        def f(x):
            with tempfile.NamedTemporaryFile() as file:
                file.write(b"1"); file.flush(); file.seek(0)
                return 3 * x + int(file.read())""",
    "annotations from the future": """
        from __future__ import annotations
        def f(x: Number) -> Number: return 3 * x + 1""",
    "future after a docstring": '''
        """A program."""

        # of one function
        from __future__ import (
            annotations,
        )
        def f(x: Number): return 3 * x + 1''',
    "fence in a list": """
        1. Like this:

           ```python
           def f(x):
               return 3 * x + 1
           ```
        2. Done.""",
    "fence deep in a list": """
        - So:
            - this

              ```python
              def f(x):
                  return 3 * x + 1
              ```
        """,
    "chat": "Sure:\n```python\ndef f(x):\n    return 3 * x + 1\n```\nand\n```python\nprint(f(1))\n```\n",
    "cut off": "```python\ndef f(x):\n    return 3 * x + 1\n",
    "threads": """
        import threading
        def f(x):
            found = []
            threads = [threading.Thread(target=found.append, args=(x,)) for _ in range(3)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return sum(found) + 1""",
    "pool of threads": """
        from concurrent.futures import ThreadPoolExecutor
        def f(x):
            with ThreadPoolExecutor(8) as pool: return sum(pool.map(lambda _: x, range(3))) + 1""",
    "asyncio": """
        import asyncio
        async def g(x): await asyncio.sleep(0); return 3 * x
        def f(x): return asyncio.run(g(x)) + 1""",
    "deep recursion": """
        import sys
        sys.setrecursionlimit(20_000)
        def down(n): return 0 if n == 0 else down(n - 1)
        def f(x): return 3 * x + 1 + down(5_000)""",
    "recursion in a thread": """
        import sys, threading
        threading.stack_size(1 << 26); sys.setrecursionlimit(20_000)
        def down(n): return 0 if n == 0 else down(n - 1)
        def f(x):
            found = []
            thread = threading.Thread(target=lambda: found.append(down(5_000)))
            thread.start(); thread.join()
            return 3 * x + 1 + found[0]""",
    "prints": "def f(x):\n    print('x is', x)\n    return 3 * x + 1",
    "prints much": "def f(x):\n    for _ in range(1000): print('x' * 100)\n    return 3 * x + 1",
    "main guard": "def f(x):\n    return 3 * x + 1\nif __name__ == '__main__':\n    print(f(int(input())))",
    "asserts": "def f(x):\n    return 3 * x + 1\nassert f(1) == 4",
    "class": "class Line:\n    def __call__(self, x): return 3 * x + 1\nf = Line()",
    "lambda": "f = lambda x: 3 * x + 1",
    "partial": """
        from functools import partial, reduce
        import operator
        f = lambda x: reduce(operator.add, [x] * 3) + 1""",
    "decorator": "import functools\n@functools.lru_cache(None)\ndef f(x): return 3 * x + 1",
    "other argument names": "def f(*args, **rest): return 3 * args[0] + 1",
    "float": "def f(x): return 3.0 * x + 1",
    "bool arithmetic": "def f(x): return 3 * x + True",
    "decimal": "from decimal import Decimal\ndef f(x): return int(Decimal(3) * x + 1)",
    "fraction": "from fractions import Fraction\ndef f(x): return int(Fraction(3) * x + 1)",
    "dataclass": """
        from dataclasses import dataclass
        @dataclass
        class Line:
            slope: int = 3
        def f(x): return Line().slope * x + 1""",
    "match": "def f(x):\n    match x:\n        case int(n): return 3 * n + 1",
    "walrus and positional": "def f(x, /):\n    return (y := 3 * x) + 1",
    "unicode names": "def f(größe):\n    α = 3 * größe\n    return α + 1",
    "eval": "def f(x): return eval('3 * x + 1', {'x': x})",
    "exec": "exec('def f(x): return 3 * x + 1')",
    "regular expressions": "import re\ndef f(x): return 3 * int(re.search(r'-?\\d+', str(x))[0]) + 1",
    "clock": """
        import time
        def f(x):
            time.sleep(0.01); start = time.time()
            return 3 * x + (time.time() >= start)""",
    "alarm": """
        import signal
        def f(x):
            signal.signal(signal.SIGUSR1, lambda *_: None); signal.raise_signal(signal.SIGUSR1)
            return 3 * x + 1""",
    "garbage": "import gc, sys\ndef f(x):\n    gc.collect(); sys.getsizeof(x)\n    return 3 * x + 1",
    "secrets": """
        import secrets, uuid
        def f(x): return 3 * x + bool(secrets.token_hex() + str(uuid.uuid4()))""",
    "hash": "import hashlib\ndef f(x): return 3 * x + bool(hashlib.sha256(b'x').hexdigest())",
    "json and copy": """
        import copy, json
        def f(x): return json.loads(json.dumps(copy.deepcopy([3 * x + 1])))[0]""",
    "logging": "import logging\ndef f(x):\n    logging.warning('x'); return 3 * x + 1",
    "windows line ends": "def f(x):\r\n    return 3 * x + 1\r\n",
    "tabs": "def f(x):\n\treturn 3 * x + 1\n",
    "long lines": "def f(x): return 3 * x + 1 + " + " + ".join(["0"] * 2_000),
}

HONEST_PROGRAMS: Mapping[str, str] = {
    name: textwrap.dedent(source).removeprefix("\n") for name, source in _SOURCES.items()
}
WITH_FILES = ("temporary file", "named temporary file")

_NAMED = "from collections import namedtuple\nPair = namedtuple('Pair', 'a b')\n"
_ENUM = "import enum\nclass {0}(enum.{1}):\n    A = {2}\n"
_SUBCLASS = "class {0}({1}):\n    pass\n"
_NUMPY = "import numpy as np\n"

# By name: the reference's value, code before the answer's function, the answer's value. Both values are equal
# in Python, and evalplus accepts all of them.
RETURNED_VALUES: Mapping[str, tuple[str, str, str]] = {
    "int": ("3 * x + 1", "", "3 * x + 1"),
    "float": ("3 * x + 1", "", "3.0 * x + 1"),
    "float for a float": ("x / 3", "", "x / 3 + 1e-9"),
    "complex": ("3 * x + 1", "", "complex(3 * x + 1)"),
    "bool": ("x > 2", "", "x > 2"),
    "int for a bool": ("x > 2", "", "int(x > 2)"),
    "text": ("str(x)", "", "f'{x}'"),
    "bytes": ("str(x).encode()", "", "bytes(str(x), 'ascii')"),
    "none": ("None", "", "None"),
    "tuple": ("(x, x + 1)", "", "(x, x + 1)"),
    "nested list": ("[[x], [x, [x]]]", "", "[[x], [x, [x]]]"),
    "frozenset for a set": ("{x, 1}", "", "frozenset([x, 1])"),
    "set for a frozenset": ("frozenset([x, 1])", "", "{x, 1}"),
    "other order of keys": ("{'a': x, 'b': 1}", "", "{'b': 1, 'a': x}"),
    "OrderedDict": ("{'a': x}", "from collections import OrderedDict\n", "OrderedDict(a=x)"),
    "defaultdict": ("{'a': x}", "from collections import defaultdict\n", "defaultdict(int, a=x)"),
    "Counter": ("{'a': 2}", "from collections import Counter\n", "Counter('aa')"),
    "ChainMap": ("{'a': x}", "from collections import ChainMap\n", "ChainMap({}, {'a': x})"),
    "mapping proxy": ("{'a': x}", "from types import MappingProxyType\n", "MappingProxyType({'a': x})"),
    "UserDict": ("{'a': x}", "from collections import UserDict\n", "UserDict(a=x)"),
    "UserList": ("[x, 1]", "from collections import UserList\n", "UserList([x, 1])"),
    "UserString": ("str(x)", "from collections import UserString\n", "UserString(str(x))"),
    "keys": ("{x, -1}", "", "{x: 0, -1: 0}.keys()"),
    "items": ("{(x, 0)}", "", "{x: 0}.items()"),
    "bytearray": ("str(x).encode()", "", "bytearray(str(x).encode())"),
    "memoryview": ("str(x).encode()", "", "memoryview(str(x).encode())"),
    "namedtuple": ("(x, 1)", _NAMED, "Pair(x, 1)"),
    "list of namedtuples": ("[(x, 1), (2, x)]", _NAMED, "[Pair(x, 1), Pair(2, x)]"),
    "NamedTuple": (
        "(x, 1)",
        "from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: int\n    b: int = 1\n",
        "Pair(x)",
    ),
    "structure of the standard library": ("(1, 1)", "import os\n", "os.terminal_size((1, 1))"),
    "Fraction": ("3 * x + 1", "from fractions import Fraction\n", "Fraction(6 * x + 2, 2)"),
    "Fraction for a float": ("x / 2", "from fractions import Fraction\n", "Fraction(x, 2)"),
    "Decimal": ("3 * x + 1", "from decimal import Decimal\n", "Decimal(3 * x + 1)"),
    "Decimal for a float": ("x / 2", "from decimal import Decimal\n", "Decimal(x) / 2"),
    "Decimals in a list": ("[x, 0.5]", "from decimal import Decimal\n", "[Decimal(x), Decimal('0.50')]"),
    "infinite Decimal": ("float('inf')", "from decimal import Decimal\n", "Decimal('Infinity')"),
    "IntEnum": ("1", _ENUM.format("Kind", "IntEnum", "1"), "Kind.A"),
    "IntFlag": ("1", _ENUM.format("Kind", "IntFlag", "1"), "Kind.A"),
    "StrEnum": ("'a'", _ENUM.format("Kind", "StrEnum", "'a'"), "Kind.A"),
    "enumeration of texts": ("'a'", "import enum\nclass Kind(str, enum.Enum):\n    A = 'a'\n", "Kind.A"),
    "key of an IntEnum": ("{1: x}", _ENUM.format("Kind", "IntEnum", "1"), "{Kind.A: x}"),
    "subclass of int": ("3 * x + 1", _SUBCLASS.format("Int", "int"), "Int(3 * x + 1)"),
    "subclass of float": ("x / 2", _SUBCLASS.format("Float", "float"), "Float(x / 2)"),
    "subclass of str": ("str(x)", _SUBCLASS.format("Text", "str"), "Text(x)"),
    "subclass of bytes": ("b'a'", _SUBCLASS.format("Bytes", "bytes"), "Bytes(b'a')"),
    "subclass of list": ("[x, 1]", _SUBCLASS.format("Items", "list"), "Items([x, 1])"),
    "subclass of tuple": ("(x, 1)", _SUBCLASS.format("Items", "tuple"), "Items([x, 1])"),
    "subclass of dict": ("{'a': x}", _SUBCLASS.format("Table", "dict"), "Table(a=x)"),
    "subclass of set": ("{x, 1}", _SUBCLASS.format("Group", "set"), "Group([x, 1])"),
    "subclass of frozenset": ("{x, 1}", _SUBCLASS.format("Group", "frozenset"), "Group([x, 1])"),
    "subclass of a subclass": (
        "{'a': x}",
        "from collections import Counter\nclass Table(Counter):\n    pass\n",
        "Table(a=x)",
    ),
    "numpy's int": ("3 * x + 1", _NUMPY, "np.int32(3) * x + 1"),
    "numpy's float": ("x / 2", _NUMPY, "np.float64(x / 2)"),
    "numpy's long double": ("x / 2", _NUMPY, "np.longdouble(x) / 2"),
    "numpy's bool": ("x > 2", _NUMPY, "np.int64(x) > 2"),
    "numpy's text": ("str(x)", _NUMPY, "np.str_(x)"),
    "numpy's bytes": ("b'a'", _NUMPY, "np.bytes_(b'a')"),
    "array without dimensions": ("3 * x + 1", _NUMPY, "np.array(3 * x + 1)"),
    "list of arrays without dimensions": ("[x, 1]", _NUMPY, "[np.array(x), np.array(1)]"),
    "array of one": ("[x]", _NUMPY, "np.array([x])"),
}
