import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troll.tasks.verifiers.extraction import extract_code, whole_program

BODY = "    return x + 1\n"
WHOLE = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        (BODY, BODY),
        (WHOLE, WHOLE),
        ("", ""),
        (f"```python\n{WHOLE}```", "\n" + WHOLE),
        (f"Sure!\n\n```python\n{WHOLE}```\nIt adds one.", "\n" + WHOLE),
        (f"```\n{WHOLE}\n```\n", "\n" + WHOLE + "\n"),
        (f"~~~py\n{WHOLE}~~~", "\n" + WHOLE),
        (f"```python\n{BODY}```", BODY),
        (f"```python\n{WHOLE}", "\n" + WHOLE),  # cut off
        (f"```python\r\n{WHOLE}```", "\n" + WHOLE),
        # the block that defines the function, not the example after it
        (f"```python\n{WHOLE}```\nUse it:\n```python\nprint(f(1))\n```", "\n" + WHOLE),
        # the corrected one of two
        (f"```python\ndef f(x): pass\n```\nBetter:\n```python\n{WHOLE}```", "\n" + WHOLE),
        # a shell block beside the code
        (f"```bash\npip install x\n```\n```python\n{WHOLE}```\n```text\n2\n```", "\n" + WHOLE),
        (f"<think>Maybe\n```python\ndef f(x): wrong\n```\n</think>\n```python\n{WHOLE}```", "\n" + WHOLE),
        (f"<think>hm</think>{BODY}", BODY),
        # longer fences hold shorter ones
        (f"````python\n{WHOLE}# ```\n````", "\n" + WHOLE + "# ```\n"),
        # a fence inside a docstring is no fence
        (
            f'    """\n    ```\n    f(1)\n    ```\n    """\n{BODY}',
            f'    """\n    ```\n    f(1)\n    ```\n    """\n{BODY}',
        ),
        ("def fx(x): pass\n", "def fx(x): pass\n"),
        # in a list a block is indented as a whole
        ("1. Here:\n   ```python\n   def f(x):\n       return x + 1\n   ```\n2. Done.", "\n" + WHOLE),
        ("- a\n  - b\n\n    ```\n    def f(x):\n        return x + 1\n    ```\n", "\n" + WHOLE),
        (f"```python\n{WHOLE}```\n```python\ndef fx(x): pass\n```", "\n" + WHOLE),
    ],
)
def test_the_program_is_found(completion, code):
    assert extract_code(completion, "f") == code


def test_without_a_name_the_last_block_counts():
    assert extract_code("```\na = 1\n```\n```\nb = 2\n```") == "\nb = 2\n"


@given(st.text(alphabet="`~ \nabc#:()", max_size=60))
def test_any_text_is_extracted_to_part_of_itself(text):
    found, whole = (re.sub("^ +", "", part, flags=re.M) for part in (extract_code(text, "f"), text))
    assert found.removeprefix("\n") in whole  # a block in a list loses its indentation


@given(st.text().filter(lambda text: "```" not in text and "~~~" not in text and "</think" not in text))
def test_text_without_fences_is_left_alone(text):
    assert extract_code(text, "f") == text


@pytest.mark.parametrize(
    "start",
    [
        "from __future__ import annotations\n",
        "# a\n\nfrom __future__ import division, annotations  # b\n",
        '"""It says: import."""\nfrom __future__ import (\n    annotations,\n)\n',
    ],
)
def test_imports_from_the_future_come_before_the_prompt(start):
    prompt = '"""Add one."""\nimport math\n'
    program = whole_program(prompt, f"```python\n{start}def f(x: Undefined):\n    return x + 1\n```", "f")
    space = {}
    exec(program, space)
    assert space["f"](1) == 2 and space["math"]
    assert program.count("__future__") == 1


def test_a_long_start_takes_no_time():
    for text in ("#\n" * 100_000, " \n" * 100_000 + "x", '"""' * 50_000, "from __future__ import (" * 20_000):
        assert whole_program("p\n", text, "f") == "p\n" + text
