"""Splits code problems into single tests, for rewards that are the share of tests passed.

The rules are those of the reward released with the paper (repository NiklasFreymuth/troll,
``verl/verl/utils/reward_score/sandbox_fusion`` at 348066bf and 4f0a4e70, which the reward manager ``prime``
calls with ``continuous=True``): the first tests of a problem, each in a process of its own with 10 s; the
program is the last block that is marked as Python, else the first block; without a block nothing passes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from troll.tasks.sandbox.program import Limits

SCORED = "scored_tests"
"""Field of a record: how many of its tests, from the first, the reward counts."""

TEST_LIMITS = Limits(cpu_s=10, wall_s=20, memory_bytes=2**30)
WHOLE_CPU_S = 300.0
"""Largest CPU time of all tests of a program together; a program that takes more gets 0."""

# Calls of a function come with these names, so that programs may use `List` or `sqrt` without an import, and
# may define the function as a method of `Solution`.
_STAR = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io "
    "sys json builtins typing"
)
_PRELUDE = "".join(f"from {name} import *\nimport {name}\n" for name in _STAR.split())
_METHOD = "\n\nif {0!r} not in globals() and 'Solution' in globals():\n    {0} = getattr(Solution(), {0!r})\n"


def code_block(completion: str) -> str | None:
    """Returns the text after the last mark of a Python block, else the first block; None without a block."""
    _, mark, rest = completion.rpartition("```python")
    if mark:
        return rest.partition("```")[0]
    _, mark, rest = completion.partition("```")
    if not mark:
        return None
    block = rest.partition("```")[0]
    language, newline, code = block.partition("\n")
    return code if newline and language.strip().isalpha() else block


def single_tests(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a record for each test that the reward counts, without a prompt: programs run as they are."""
    fields = ("test_list",) if "test_list" in record else ("inputs", "outputs")
    for number in range(record[SCORED]):
        yield {**record, **{field: [record[field][number]] for field in fields}, "prompt": None}


def with_names(program: str, record: Mapping[str, Any]) -> str:
    """Returns a program for calls of a function with the names that the released reward defines for it."""
    name = record["entry_point"]
    if "test_list" in record or not name:
        return program
    return _PRELUDE + program + _METHOD.format(name)
