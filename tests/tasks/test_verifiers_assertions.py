"""The data sets' own tests: what is right passes, what is wrong does not, nothing can be forged."""

import json

import pytest
from refusals import refused

from hostile_programs import HOSTILE_PROGRAMS
from troll.tasks.sandbox.pool import Limits, sandbox_available
from troll.tasks.types import Problem
from troll.tasks.verifiers import assertions
from troll.tasks.verifiers.code import code_rewards, verify_code

pytestmark = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")

ASSERTIONS = {
    "prompt": '"""\nThree times x plus one.\n"""\n',
    "entry_point": "f",
    "canonical_solution": "def f(x):\n    return 3 * x + 1\n",
    "test_list": ["assert f(1) == 4", "assert f(2) == 7", "assert f(10) == int('31')", "assert f(0)"],
    "test_setup_code": "offset = 0",
}
STDIO = {
    "prompt": "",
    "entry_point": "",
    "canonical_solution": "",
    "inputs": ["1\n", "2\n"],
    "outputs": ["4\n", "7"],
}
CALLS = {**STDIO, "entry_point": "f", "inputs": [[1], "2"], "outputs": [[4, [1]], json.dumps([7, [2]])]}


def statuses(record, *completions, **limits):
    found = verify_code([record] * len(completions), list(completions), limits=Limits(**limits))
    return [verdict.status for verdict in found]


def test_assertions_are_decided_outside():
    right = "def f(x):\n    return 3 * x + 1\n"
    assert statuses(
        ASSERTIONS,
        right,
        f"Here:\n```python\n{right}```",
        "def f(x):\n    return float(3 * x + 1)\n",
        "def f(x):\n    return 3 * x\n",
        "def f(x):\n    return None\n",
        "def g(x):\n    return 3 * x + 1\n",
        "def f(x):\n    raise ValueError\n",
        "def f(x):\n    return (",
        "def f(x):\n    while True: pass\n",
        "class A(int):\n    def __eq__(self, other): return True\ndef f(x):\n    return A()\n",
        "class A(int):\n    pass\ndef f(x):\n    return A(3 * x + 1)\n",
        "from fractions import Fraction\ndef f(x):\n    return Fraction(9 * x + 3, 3)\n",
        "def f(x):\n    return iter([3 * x + 1])\n",
        cpu_s=0.5,
    ) == [
        *["passed"] * 3,
        *["wrong"] * 2,
        *["crash"] * 3,
        "timeout",
        "wrong",
        *["passed"] * 2,
        "rejected",
    ]


def test_a_program_may_be_a_few_times_slower_than_the_reference(monkeypatch):
    monkeypatch.setattr(assertions, "_LIMITS", Limits(cpu_s=0.4, wall_s=20))
    works = "import time\ndef f(x):\n    while time.process_time() < {}: sum(range(20000))\n"
    works += "    return 3 * x + 1\n"
    slow = {**ASSERTIONS, "test_list": ["assert f(1) == 4"], "canonical_solution": works.format(0.8)}
    quick = {**slow, "canonical_solution": works.format(0)}
    verdicts = verify_code([slow, quick], [works.format(2)] * 2)
    assert [verdict.status for verdict in verdicts] == ["passed", "timeout"]


@pytest.mark.timeout(120)
@pytest.mark.slow
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_hostile_program_passes_assertions(every):
    names = list(HOSTILE_PROGRAMS)[::every]
    found = statuses(ASSERTIONS, *map(HOSTILE_PROGRAMS.get, names), cpu_s=0.3, wall_s=2)
    assert [
        name for name, status in zip(names, found, strict=True) if status in ("passed", "infrastructure")
    ] == []


@pytest.mark.parametrize("question", ["Task\n====\nPrint f(x).", "n\nis given.", "exit()\nis not allowed."])
def test_a_question_is_not_run_as_the_start_of_a_program(question):
    # Rows of problems hold the question as their prompt.
    program = "def f(x, more=None):\n    return [3 * x + 1, [1]]\n"
    record = Problem("1", question, "", record={**STDIO, "inputs": ["1\n"], "outputs": ["4\n"]}).as_row()
    assert statuses(record, "```python\nprint(3 * int(input()) + 1)\n```") == ["passed"]
    record = Problem("1", question, "", record={**CALLS, "inputs": [[1]], "outputs": [[4, [1]]]}).as_row()
    assert statuses(record, f"```python\n{program}```", program) == ["passed"] * 2


FRAMES = """
import inspect
def f(x):
    return inspect.currentframe().f_back.f_locals["expected"]
"""
GARBAGE = """
import gc
def f(x):
    return next(item[-1] for item in gc.get_objects() if isinstance(item, list) and 31 in item)
"""
PROBE = """
def troll_evaluate_expression(number):
    return [4, 7, 31, True][number]
"""
FORGED = """
import os
os.write(5, b'["value",true]\\n' * 4)
os._exit(0)
"""


@pytest.mark.parametrize("cheat", [FRAMES, GARBAGE, PROBE, FORGED])
def test_expected_values_cannot_be_read_nor_a_verdict_forged(cheat):
    (status,) = statuses(ASSERTIONS, cheat)
    assert status in ("wrong", "crash", "rejected")


def test_unusable_tests_are_a_fault_of_the_data():
    broken = {**ASSERTIONS, "test_list": ["assert f(1) == undefined"]}
    with refused("mbpp", "'assert f(1) == undefined'"):
        statuses(broken, "")


def test_what_stands_around_a_program_does_not_count():
    right = "def f(x):\n    return 3 * x + 1\n"
    texts = (
        f"{right}\nThat's it.",
        f"{right}\ndef g(x):\n    y = (",
        f"{right}assert f(1) == 5\n",
        f"Here:\n{right}",
    )
    assert statuses(ASSERTIONS, *texts, *(text.replace("3", "4") for text in texts)) == [
        *["passed"] * 4,
        *["wrong"] * 4,
    ]
    called = "def f(x):\n    return [3 * x + 1, [x]]\n"
    assert statuses(CALLS, f"Here:\n{called}It's done.", f"{called}print(f(") == ["passed", "passed"]
    script = "x = int(input())\nprint(3 * x + 1)\n"
    texts = (f"{script}\nThat's it.", f"{script}print(", "It's 4.")
    assert statuses(STDIO, *texts) == ["passed", "passed", "crash"]


def test_standard_input_and_output():
    right = "x = int(input())\nprint(3 * x + 1)\n"
    assert statuses(
        STDIO,
        right,
        f"```python\n{right}```",
        "print(int(input()) * 3 + 1, end='  \\n\\n')",
        "print(4)",
        "print(input())",
        "import sys\nsys.exit(1)",
        "raise SystemExit",
        "while True: pass",
        cpu_s=0.5,
    ) == ["passed", "passed", "passed", "wrong", "wrong", "crash", "wrong", "timeout"]


def test_calls_with_inputs_and_outputs():
    assert statuses(
        CALLS,
        "def f(x):\n    return [3 * x + 1, (x,)]\n",
        "def f(x):\n    return 3 * x + 1, [x]\n",
        "def f(x):\n    return [3 * x, [x]]\n",
        "def f(x):\n    return [4, [1]]\n",
        "",
    ) == ["passed", "passed", "wrong", "wrong", "crash"]


def test_rewards_mix_all_kinds():
    problems = [Problem("a", "", "", 0, record) for record in (STDIO, ASSERTIONS, CALLS)]
    texts = ["print(3 * int(input()) + 1)", "def f(x):\n    return 3 * x + 1\n", "def f(x):\n    return 0\n"]
    assert code_rewards(problems, texts) == [1.0, 1.0, 0.0]
