import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troll.tasks.sandbox.extraction import extract_code, load, own_definition, whole_program

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


PROMPT = 'def f(x):\n    """Add one."""\n'


@pytest.mark.parametrize(
    ("prompt", "completion", "program"),
    [
        # what follows the function
        (PROMPT, f"{BODY}\nThat's it.\n", f"{PROMPT}{BODY}\n"),
        (PROMPT, f"{BODY}\ndef g(x):\n    return (", f"{PROMPT}{BODY}\n"),
        (PROMPT, f"{BODY}```\nIt adds.\n", f"{PROMPT}{BODY}"),
        (PROMPT, f"{BODY}</s>def f", f"{PROMPT}{BODY}"),
        (PROMPT, f"{BODY}\n{WHOLE.replace('1', '2')}", f"{PROMPT}{BODY}\n"),
        # what stands before it, and between
        (PROMPT, f"Here:\n{WHOLE}Done.", f"{PROMPT}{WHOLE}"),
        (PROMPT, f"a = 1\nThen:\nb = 2\nAnd now\n{WHOLE}", f"{PROMPT}a = 1\nb = 2\n{WHOLE}"),
        # another indentation
        (PROMPT, "return x + 1", f"{PROMPT}    return x + 1"),
        (PROMPT, "y = x\n    return y + 1", f"{PROMPT}    y = x\n    return y + 1"),
        ("def f(x):\n  2\n", "    return x\n", "def f(x):\n  2\n  return x\n"),
        # a prompt whose function has no body
        ("import math\ndef f(x):\n", WHOLE, f"import math\n{WHOLE}"),
        ("def f(x):", f"\n{BODY}", f"def f(x):\n{BODY}"),
        # nothing that could be meant
        (PROMPT, "It adds one.", f"{PROMPT}It adds one."),
        (PROMPT, "    return )", f"{PROMPT}    return )"),
        # what Python can read stays as it is
        (PROMPT, "    return 1\n", f"{PROMPT}    return 1\n"),
        (PROMPT, "f = lambda x: x + 1\n", f"{PROMPT}f = lambda x: x + 1\n"),
        (PROMPT, "exec('def f(x): return x + 1')", f"{PROMPT}exec('def f(x): return x + 1')"),
        (PROMPT, f"    pass\n{WHOLE}print(f(1))\n", f"{PROMPT}    pass\n{WHOLE}print(f(1))\n"),
    ],
)
def test_the_program_is_read_as_it_is_meant(prompt, completion, program):
    assert whole_program(prompt, completion, "f").rstrip("\n") == program.rstrip("\n")


def test_a_script_loses_the_prose_around_it():
    text = "Here it is:\nx = 1\nprint(x)\n\nIt's done."
    assert whole_program("", text).strip() == "x = 1\nprint(x)"
    assert whole_program("", "print(1)\nThat is all.") == "print(1)\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{BODY}assert f(1) == 3\n",
        f"{BODY}raise SystemExit\n",
        "    return g(x)\nprint(f(1))\ndef g(x):\n    return x + 1\ndef f(x):\n    return 0\n",
        f"python\n{WHOLE}",
        f"{BODY}import missing_package\n",
    ],
)
def test_a_statement_that_fails_ends_no_program(text):
    space = {}
    load(PROMPT, text, "f", space)
    assert space["f"](1) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise SystemExit", SystemExit),
        ("g = 1 / 0\n", ZeroDivisionError),
        (f"{BODY}raise MemoryError\n", MemoryError),  # it gets a second try with more
        ("    return )", SyntaxError),
        ("\0", (SyntaxError, ValueError)),
        ("    return " + "(" * 5000, (SyntaxError, MemoryError)),
    ],
)
def test_a_program_without_the_function_fails_as_ever(text, error):
    with pytest.raises(error):
        load(PROMPT, text, "f", {})


def test_what_is_run_as_it_is_may_not_fail():
    with pytest.raises(AssertionError):
        load(None, f"{PROMPT}{BODY}assert False\n", "f", {})


@given(st.text(alphabet="def f(x):\n return'\"\\#`1=", max_size=80))
def test_any_text_makes_a_program_or_none(text):
    found = whole_program(PROMPT, text, "f")
    try:
        compile(found, "", "exec")
    except SyntaxError:
        assert found == PROMPT + extract_code(text, "f")


@pytest.mark.parametrize(
    ("completion", "alone"),
    [
        ("def f(x):\n    return x\n", "def f(x):\n    return x\n"),
        ("So:\n```python\ndef f(x):\n    return x\n```\nDone.", "\ndef f(x):\n    return x\n"),
        ("<think>def f(x): no</think>```\nasync def f(x):\n    pass\n```", "\nasync def f(x):\n    pass\n"),
        ("    return x\n", None),
        ("    return x\n\ndef f(x):\n    pass\n", None),
        ("    return x\n```\nIt returns x.", None),
        ("```python\n    return x\n```", None),
        ("def f(x):\n    return x\n```\ng(1)\n```", None),
        ("def g(x):\n    return x\n", None),
    ],
)
def test_a_function_that_is_defined_anew_stands_alone(completion, alone):
    assert own_definition(completion, "f") == alone
