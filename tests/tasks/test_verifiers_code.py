import gzip
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refused

from troll.tasks.sandbox.pool import Execution, Limits, Output, run_batch, sandbox_available
from troll.tasks.verifiers import code, references
from troll.tasks.verifiers.code import code_rewards, verify_code
from troll.tasks.verifiers.comparison import outputs_match, values_match

needs_sandbox = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")


def record(**changes):
    return {
        "task_id": "test/0",
        "prompt": 'def f(x):\n    """Twice x."""\n',
        "entry_point": "f",
        "canonical_solution": "    return 2 * x\n",
        "base_input": [[1], [2]],
        "plus_input": [[0], [-3], [10**30]],
        "atol": 0,
        **changes,
    }


@needs_sandbox
@pytest.mark.parametrize(
    ("completion", "base", "plus", "status"),
    [
        ("    return x + x\n", True, True, "passed"),
        ("    return 2 * x + 0.0 if x < 5 else 2 * x\n", True, True, "passed"),
        ("    return 2 * abs(x)\n", True, False, "wrong"),
        ("    return 2 * x if x < 0 else 7\n", False, False, "wrong"),
        ("    print(2 * x)\n", False, False, "wrong"),
        ("    return str(2 * x)\n", False, False, "wrong"),
        ("    return 2 * x if x > 0 else 1 / x\n", True, False, "crash"),
        ("    return 2 * x if x > 0 else iter([2 * x])\n", True, False, "rejected"),
        ("    return 2 * x if x > 0 else [0] * 10 ** 10\n", True, False, "memory"),
        ("    while x < 0: pass\n    return 2 * x\n", True, False, "timeout"),
        ("    return 2 * x)\n", False, False, "crash"),
    ],
)
def test_verdicts(completion, base, plus, status):
    (verdict,) = verify_code([record()], [completion], limits=Limits(cpu_s=0.3, wall_s=20))
    assert (verdict.base, verdict.plus, verdict.status) == (base, plus, status)
    assert verdict.passed == (base and plus)


@needs_sandbox
def test_rewards_keep_order_and_equal_completions_run_once(monkeypatch):
    ran = []

    def spy(programs, *arguments, **settings):
        ran.append(len(programs))
        return run_batch(programs, *arguments, **settings)

    monkeypatch.setattr(code, "run_batch", spy)
    monkeypatch.setattr(references, "run_batch", spy)
    monkeypatch.setattr(references, "_REFERENCES", {})
    right, wrong = "    return 2 * x\n", "    return x\n"
    other = record(task_id="test/1", canonical_solution="    return x\n")
    problems = [SimpleNamespace(record=r) for r in (record(), other, record(), record(), other, record())]
    completions = [right, right, wrong, right, wrong, right]
    assert code_rewards(problems, completions) == [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert code_rewards(problems, completions) == [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert ran == [2, 4, 0, 4]  # two references once, then the different (problem, completion) pairs


@needs_sandbox
def test_a_problem_whose_reference_changes_gets_new_expected_outputs():
    completion = "    return 2 * x\n"
    first, second = record(), record(canonical_solution="    return 3 * x\n")
    verdicts = verify_code([first, second, first], [completion] * 3)
    assert [verdict.passed for verdict in verdicts] == [True, False, True]


@needs_sandbox
@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"canonical_solution": "    return 1 / 0\n"}, ("canonical_solution", "ZeroDivisionError")),
        ({"canonical_solution": "    return iter(())\n"}, ("canonical_solution",)),
        ({"base_input": [[object()]]}, ("base_input", "plus_input")),
    ],
)
def test_faulty_problems_are_named(changes, facts):
    with refused("test/7", *facts):
        verify_code([record(task_id="test/7", **changes)], ["    return 1\n"])


def test_a_missing_field_is_named():
    broken = record()
    del broken["plus_input"]
    with refused("test/0", "'plus_input'"):
        verify_code([broken], ["    return 1\n"])


def test_a_failing_sandbox_is_an_error_and_not_a_wrong_answer(monkeypatch):
    reference = Execution("finished", tuple(Output("value", "2") for _ in range(5)))
    monkeypatch.setattr(references, "run_batch", lambda *_, **__: [reference])
    monkeypatch.setattr(references, "_REFERENCES", {})
    lost = Execution("infrastructure", detail="no more processes")
    monkeypatch.setattr(code, "run_batch", lambda *_, reduce, **__: [reduce(0, lost)])
    with refused("sandbox", "no more processes"):
        code_rewards([SimpleNamespace(record=record())], ["    return 2\n"])


# --- comparison ---------------------------------------------------------------------------------------------


def evalplus_rule(out, exp, atol):
    """The heart of evalplus.eval.unsafe_execute (0.3.1), without its special oracles."""
    floats = isinstance(exp, float) or (
        isinstance(exp, (list, tuple)) and exp and all(isinstance(i, float) for i in exp)
    )
    exact = out == exp
    if atol == 0 and floats:
        atol = 1e-6
    try:
        if not exact and atol != 0:
            assert type(out) is type(exp)
            if isinstance(exp, (list, tuple)):
                assert len(out) == len(exp)
            assert np.allclose(out, exp, rtol=1e-07, atol=atol)
        else:
            assert exact
    except (AssertionError, TypeError, ValueError):
        return False
    return True


def shape(value):
    """Sizes of nested lists; None if their items differ in it."""
    try:
        return np.shape(value)
    except ValueError:
        return None


near = st.sampled_from(
    [0.0, 1.0, 1.0 + 1e-8, 1.0 + 3e-7, 1.0 + 5e-6, 1e9, 1e9 + 50, 1e9 + 500, -2.5, math.inf, -math.inf]
)
numbers = near | st.integers(-3, 3) | st.booleans()
flat = (
    numbers
    | st.lists(near, max_size=3)
    | st.lists(numbers, max_size=3)
    | st.lists(near, max_size=3).map(tuple)
)
anything = (
    flat | st.text("ab", max_size=2) | st.none() | st.sets(st.integers(0, 2)) | st.lists(flat, max_size=2)
)


@given(anything, anything, st.sampled_from([0, 1e-6, 1e-2]))
@example([1.0], (1.0,), 0)
@example(1, 1.0000001, 0)
@example([], [], 1e-6)
@example([1.0, 2], [1.0 + 1e-9, 2], 0)
@example([0.0], [[]], 1e-6)
def test_flat_values_compare_as_in_evalplus(value, expected, tolerance):
    nested = any(isinstance(item, (list, tuple)) for item in (expected if isinstance(expected, list) else []))
    if nested and (not evalplus_rule(value, expected, tolerance) or shape(value) != shape(expected)):
        return  # numpy broadcasts nested lists of other shapes or refuses them; we compare item by item
    if isinstance(expected, (set, str)) or expected is None or isinstance(value, (set, str)):
        assert values_match(value, expected, tolerance) == (value == expected)
        return
    if isinstance(value, list) and any(isinstance(item, (list, tuple)) for item in value) and not nested:
        return
    assert values_match(value, expected, tolerance) == evalplus_rule(value, expected, tolerance)


@pytest.mark.parametrize(
    ("value", "expected", "tolerance", "match"),
    [
        (math.nan, math.nan, 0, True),
        ([math.nan, 1], [math.nan, 1], 0, True),
        (math.nan, 1.0, 1e9, False),
        (1.0, math.nan, 1e9, False),
        (math.inf, 1e308, 1e9, False),
        (1e308, math.inf, 1e9, False),
        ([[1.0 + 1e-9]], [[1.0]], 0, False),
        ([[1.0 + 1e-9]], [[1.0]], 1e-6, True),
        ({"a": 1.0 + 1e-9}, {"a": 1.0}, 1e-6, False),
        (10**400, 1.0, 1e-6, False),
        (1.0, 10**400, 1e-6, False),
        ([1, 2], [1, 2, 3], 1e-6, False),
        ([0.0], [[]], 1e-6, False),  # numpy compares nothing with nothing
        ([1.0], [[1.0, 1.0]], 1e-6, False),  # and a number with each of a list
        ("1.0", 1.0, 1e-6, False),
    ],
)
def test_awkward_values(value, expected, tolerance, match):
    assert values_match(value, expected, tolerance) is match


def test_malformed_or_opaque_outputs_never_match():
    good = Output("value", "1")
    assert outputs_match(Output("value", "1"), good, 0)
    assert outputs_match(Output("value", " 1.0"), good, 0)
    for bad in (
        Output("value", "[" * 1000),
        Output("value", "{}"),
        Output("opaque", "1"),
        Output("raised", "1"),
    ):
        assert not outputs_match(bad, good, 1e9)
        assert not outputs_match(good, bad, 1e9)


@needs_sandbox
def test_reference_solutions_of_humaneval_plus_pass_and_empty_ones_fail(real_data):
    with gzip.open(real_data / "humanevalplus/HumanEvalPlus.jsonl.gz", "rt") as lines:
        numbers = (0, 1, 13, 14, 32, 41, 61, 126, 132, 153)
        everything = [json.loads(line) for line in lines]
    records = [everything[number] for number in numbers]
    limits = Limits(cpu_s=10, wall_s=60)
    right = verify_code(records, [item["canonical_solution"] for item in records], limits=limits)
    assert [verdict.status for verdict in right] == ["passed"] * len(records)
    wrong = verify_code(records, ["    return None\n"] * len(records), limits=limits)
    assert not any(verdict.passed for verdict in wrong)
