"""Rewards that are the share of tests passed: what counts, and that no program gets more than it earns."""

import random

import pytest
from refusals import refused

from hostile_fractions import EARNED, HOSTILE_FRACTIONS, TESTS, fenced
from troll.tasks.registry import check_settings, get_task
from troll.tasks.sandbox.pool import Limits, sandbox_available
from troll.tasks.types import Problem
from troll.tasks.verifiers import code
from troll.tasks.verifiers.code import code_fractions, code_rewards
from troll.tasks.verifiers.fractions import SCORED, code_block
from troll.tasks.verifiers.judge import CodeVerdict

needs_sandbox = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")
FAST = Limits(cpu_s=0.3, wall_s=2)
RIGHT = "print(3 * int(input()) + 1)\n"


def stdio(numbers, scored=None):
    inputs, outputs = [f"{n}\n" for n in numbers], [f"{3 * n + 1}\n" for n in numbers]
    return {"prompt": "", "entry_point": "", "inputs": inputs, "outputs": outputs} | {
        SCORED: scored or len(numbers)
    }


@needs_sandbox
def test_the_share_is_that_of_the_first_tests():
    generator = random.Random(0)
    records, texts, expected = [], [], []
    for _ in range(6):
        numbers = generator.sample(range(1000), generator.randint(3, 7))
        known = set(generator.sample(numbers, generator.randint(0, len(numbers))))
        scored = generator.randint(1, len(numbers))
        records.append(stdio(numbers, scored))
        texts.append(fenced(f"n = int(input())\nprint(3 * n + 1 if n in {known} else 'no')\n"))
        expected.append(sum(n in known for n in numbers[:scored]) / scored)
    assert code_fractions(records, texts) == expected
    assert len(set(expected)) > 3, "the cases differ"


@needs_sandbox
def test_what_one_test_does_counts_in_no_other():
    record = stdio([1, 2, 3, 4])
    programs = {
        "n = int(input())\nif n == 2:\n    raise SystemExit(1)\nprint(3 * n + 1)\n": 0.75,
        "n = int(input())\nwhile n == 2: pass\nprint(3 * n + 1)\n": 0.75,
        "n = int(input())\nx = [0] * (10**12 if n == 2 else 1)\nprint(3 * n + 1)\n": 0.75,
        "print(": 0.0,
    }
    found = code_fractions([record] * len(programs), [fenced(text) for text in programs], limits=FAST)
    assert found == list(programs.values())


@needs_sandbox
def test_functions_are_found_as_the_released_reward_finds_them():
    record = TESTS["calls"]
    texts = [
        fenced("def f(x):\n    return 3 * x + 1\n"),
        fenced(
            "class Solution:\n    def f(self, x: int) -> List[int]:\n        return int(floor(3 * x + 1))\n"
        ),
        fenced("def g(x):\n    return 3 * x + 1\n"),
    ]
    assert code_fractions([record] * 3, texts) == [1.0, 1.0, 0.0]
    lists = {**record, "inputs": ["[1]\n2"], "outputs": ["[[1], 2]"], SCORED: 1}
    assert code_fractions([lists], [fenced("def f(a, b):\n    return a, b\n")]) == [1.0]


@needs_sandbox
def test_assertions_count_one_by_one():
    record = {
        "prompt": '"""Three times x plus one."""\n',
        "entry_point": "f",
        "canonical_solution": "def f(x):\n    return 3 * x + 1\n",
        "test_list": ["assert f(1) == 4", "assert f(2) == 7", "assert f(10) == int('31')"],
        "test_setup_code": "",
        SCORED: 2,
    }
    texts = [fenced(f"def f(x):\n    return {body}\n") for body in ("3 * x + 1", "4", "31", "7 // (x - 1)")]
    assert code_fractions([record] * 4, texts) == [1.0, 0.5, 0.0, 0.5]
    problem = Problem("mbpp/1", "", "", 0, record)
    assert code_rewards([problem] * 4, texts) == [1.0, 0.5, 0.0, 0.5]


def test_the_block_is_the_last_python_block_else_the_first():
    assert code_block("no block") is None and code_block("") is None
    assert code_block("```python\na\n```\n```python\nb\n```\n```\noutput\n```") == "\nb\n"
    assert code_block("```\na\n```\n```\nb\n```") == "\na\n"
    assert code_block("```cpp\na\n```") == "a\n"
    assert code_block("```python\nnever closed") == "\nnever closed"
    assert code_block("```python" * 300_000) == ""


@needs_sandbox
def test_an_answer_without_a_block_gets_nothing():
    assert code_fractions([stdio([1])] * 2, [RIGHT, fenced(RIGHT)]) == [0.0, 1.0]


def test_a_program_that_takes_too_long_in_all_gets_nothing(monkeypatch):
    def slow(records, texts, **_):
        return [CodeVerdict(True, True, "passed", cpu_s=9.0 if "slow" in text else 0.1) for text in texts]

    monkeypatch.setattr(code, "verify_code", slow)
    record = stdio(range(40))
    assert code_fractions([record] * 2, [fenced("slow"), fenced("quick")]) == [0.0, 1.0]


def test_a_failing_sandbox_is_no_verdict(monkeypatch):
    lost = CodeVerdict(False, False, "infrastructure", "lost")
    monkeypatch.setattr(code, "verify_code", lambda records, texts, **_: [lost] * len(texts))
    with refused("sandbox", "lost"):
        code_fractions([stdio([1])], [fenced(RIGHT)])


@pytest.fixture(scope="module")
def shares():
    found = code_fractions(
        [TESTS[kind] for kind, _ in HOSTILE_FRACTIONS],
        [fenced(source) for source in HOSTILE_FRACTIONS.values()],
        limits=FAST,
    )
    return dict(zip(HOSTILE_FRACTIONS, found, strict=True))


@needs_sandbox
@pytest.mark.parametrize("attack", HOSTILE_FRACTIONS, ids=" ".join)
def test_no_program_gets_more_than_it_earns(shares, attack):
    assert shares[attack] <= EARNED


@needs_sandbox
def test_what_is_earned_is_given(shares):
    assert shares["stdio", "prints the first"] == shares["calls", "does not return"] == EARNED


def test_settings_name_what_is_wrong():
    task = get_task("eurus-code")
    assert check_settings(task, {}) == {}, "defaults are left out, so that older digests stay the same"
    given = {"tests": "fraction", "first": 10}
    assert check_settings(task, given) == given
    for settings, facts in (
        ({"tests": "some"}, ("tests", "'some'", "'all'", "'fraction'")),
        ({"first": 10}, ("first", "tests", "fraction")),
        ({"tests": "fraction", "first": 0}, ("first", 0, "> 0")),
        ({"test": "fraction"}, ("'test'", "'tests'")),
    ):
        with refused("task eurus-code", *facts):
            check_settings(task, settings)
