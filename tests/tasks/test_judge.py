"""Whatever a program returns, its verdict is its own: no output ends or stalls the judge."""

import os
import time

import pytest

from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.pool import Limits, sandbox_available
from troll.tasks.sandbox.program import Output
from troll.tasks.verifiers import judge
from troll.tasks.verifiers.code import code_rewards, verify_code
from troll.tasks.verifiers.judge import compare

needs_sandbox = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")


def value(thing):
    return Output("value", plain_data.encode(thing))


ONE = [value(1)]


@pytest.mark.parametrize(
    ("rule", "output", "expected", "right"),
    [
        ("evalplus", 1.0, 1, True),
        ("evalplus", (1,), [1], False),
        ("exact", (1,), (1.0,), True),
        ("exact", (1,), [1], False),
        ("lists", ((1,), 2), [[1], 2], True),
        ("lists", {1: (2,)}, {"1": [2]}, True),
        ("lists", "{10**5000: 1}", {"1": 1}, False),
        (("mbpp", "similar_elements"), (2, 1, 2), (1, 2), True),
        (("mbpp", "similar_elements"), "(10**5000,)", (1, 2), False),
        (("mbpp", "surface_Area"), 35, 33, True),
        (("humaneval", "find_zero"), -0.5, 9.0, True),
        (("humaneval", "find_zero"), "1 << 1_000_000", 9.0, False),
        (("humaneval", "find_zero"), "-(10**5000)", 9.0, False),
    ],
)
def test_rules(rule, output, expected, right):
    output = eval(output) if isinstance(output, str) else output
    arguments = [[[1, 2]] if rule == ("humaneval", "find_zero") else [3, 4]]
    found = compare(
        [value(output)],
        [value(expected)],
        rule=rule,
        tolerance=1e-4 if isinstance(rule, tuple) else 0,
        arguments=arguments,
    )
    assert found.matched == [right] and found.reasons == {}


def test_equal_texts_are_not_even_sent(monkeypatch):
    monkeypatch.setattr(judge, "_judge", lambda question: pytest.fail("asked"))
    assert compare(ONE, ONE).matched == [True]
    assert compare([], ONE).matched == []


@pytest.mark.parametrize("attack", ["loop", "memory", "exception", "death"])
def test_what_goes_wrong_is_the_outputs_verdict_with_a_reason(monkeypatch, tmp_path, attack):
    body = {
        "loop": "while True: pass",
        "memory": "bytearray(1 << 40)",
        "exception": "raise ValueError",
        "death": "import os; os._exit(3)",
    }[attack]
    (tmp_path / "sitecustomize.py").write_text(
        "import troll.tasks.verifiers.comparison as c\n"
        "real = c.outputs_match\n"
        "def match(output, expected, tolerance):\n"
        f"    if output.text == '2':\n        {body}\n"
        "    return real(output, expected, tolerance)\n"
        "c.outputs_match = match\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(judge, "_worker", None)
    found = compare([value(1.0), value(2), value(3)], [value(1)] * 3, cpu_s=0.1)
    reason = {"loop": "CPU time", "memory": "MemoryError", "exception": "ValueError", "death": "died"}[attack]
    assert found.matched == [True, False, False]
    assert reason in found.reasons[1] and (2 in found.reasons) == (attack in ("loop", "death"))
    assert compare([value(1.0)], [value(1)]).matched == [True]  # the next has a process again
    judge._worker.close()
    monkeypatch.setattr(judge, "_worker", None)


def record(name, body, entry_point, inputs, **changes):
    return {
        "task_id": name,
        "prompt": "",
        "entry_point": entry_point,
        "canonical_solution": body,
        "base_input": inputs,
        "plus_input": inputs,
        "atol": 0,
        **changes,
    }


DOUBLE = record("test/0", "def f(x):\n    return 2 * x\n", "f", [[1], [2]])
SET = record("Mbpp/2", "def similar_elements(a, b):\n    return (1,)\n", "similar_elements", [[[1], [1]]])
ZERO = record("HumanEval/32", "def find_zero(xs):\n    return -0.5\n", "find_zero", [[[1, 2]]], atol=1e-4)
CALLS = {"prompt": "", "entry_point": "f", "canonical_solution": "", "inputs": [[1]], "outputs": [2]}


@needs_sandbox
@pytest.mark.parametrize(
    ("problem", "name", "body"),
    [
        (SET, "similar_elements", "(10 ** 5000,)"),
        (SET, "similar_elements", "[10 ** 5000 + i for i in range(100)]"),
        (SET, "similar_elements", "[[]] * 100_000"),
        (DOUBLE, "f", "{10 ** 5000: 1}"),
        (DOUBLE, "f", "[[]] * 300_000"),
        (DOUBLE, "f", "10 ** 5000"),
        (CALLS, "f", "{10 ** 5000: 1}"),
        (ZERO, "find_zero", "1 << 1_000_000"),
        (ZERO, "find_zero", "-(10 ** 30000)"),
    ],
)
def test_no_output_ends_or_stalls_the_grading(problem, name, body):
    start = time.monotonic()
    honest = problem["canonical_solution"] or "def f(x):\n    return 2\n"
    texts = [honest, f"def {name}(*x):\n    return {body}\n", honest]
    verdicts = verify_code([problem] * 3, texts, limits=Limits(cpu_s=2, wall_s=20))
    assert not verdicts[1].passed and verdicts[1].status in ("wrong", "rejected", "incomparable", "timeout")
    assert verdicts[0].passed and verdicts[2].passed
    assert time.monotonic() - start < 60


@needs_sandbox
def test_rewards_say_how_many_were_not_compared(monkeypatch, capfd):
    monkeypatch.setattr(
        judge, "_judge", lambda question: ["cannot be compared: ValueError"] * len(question["pairs"])
    )

    class Problem:
        record = DOUBLE

    right, other = "def f(x):\n    return 2 * x\n", "def f(x):\n    return 2.0 * x\n"
    assert code_rewards([Problem(), Problem()], [right, other]) == [1.0, 0.0]
    assert "1 of 2 programs count as wrong without a comparison: input 0" in capfd.readouterr().err
    (verdict,) = verify_code([DOUBLE], [other])
    assert (verdict.status, verdict.detail) == ("incomparable", "input 0 cannot be compared: ValueError")
