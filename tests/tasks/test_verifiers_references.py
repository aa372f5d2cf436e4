import gzip
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.pool import Output, run_batch, sandbox_available
from troll.tasks.verifiers import comparison, references
from troll.tasks.verifiers.code import verify_code
from troll.tasks.verifiers.references import read_problem, reference_outputs

needs_sandbox = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")


def value(thing):
    return Output("value", plain_data.encode(thing))


OPAQUE, RAISED = Output("opaque", "type Match"), Output("raised", "ValueError")


def judge(dataset, name, arguments, output, expected, tolerance=0.0):
    return comparison.special_oracle(dataset, name)(arguments, output, expected, tolerance)


def test_the_names_are_those_of_evalplus():
    special = pytest.importorskip("evalplus.eval._special_oracle", reason="evalplus is not installed")
    assert set(special.MBPP_OUTPUT_SET_EQ_TASKS) == set(comparison.SET_EQUAL)
    assert set(special.MBPP_OUTPUT_NOT_NONE_TASKS) == set(comparison.OPAQUE_ALLOWED)
    source = Path(
        pytest.importorskip("evalplus.eval", reason="evalplus is not installed").__file__
    ).read_text()
    for name in re.findall(r'"(\w+)" == entry_point', source) + re.findall(
        r'"(\w+)"\s+== entry_point', source
    ):
        dataset = "humaneval" if name == "find_zero" else "mbpp"
        assert comparison.special_oracle(dataset, name) is not None
        assert comparison.special_oracle("mbpp" if dataset == "humaneval" else "humaneval", name) is None


@pytest.mark.parametrize(
    ("output", "right"),
    [
        (-0.5, True),
        (-0.5 + 1e-6, True),
        (Fraction(-1, 2), True),
        (-0.4, False),
        (Fraction(-2, 5), False),
        (Fraction(-1, 2) + Fraction(1, 10**400), False),  # too long to be tried
        (0, False),
        (float("nan"), False),
        (None, False),
    ],
)
def test_any_zero_of_the_polynomial_will_do(output, right):
    assert judge("humaneval", "find_zero", [[1, 2]], value(output), value(7.0), 1e-4) is right


def test_a_zero_must_be_a_number():
    for output in (OPAQUE, RAISED, value(True), value("x"), value(1e308), Output("value", "[")):
        assert not judge("humaneval", "find_zero", [[1, 2, 3]], output, value(7.0), 1e-4)


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ([2, 1], True),
        ((1, 2, 2), True),
        ({1, 2}, True),
        ([1], False),
        ([[1], [2]], False),
        (3, False),
        (None, False),
        ([i * (2**61 - 1) for i in range(5000)], False),
        ([1] * 5000 + [2], True),
    ],
)
def test_order_and_repetition_do_not_count_for_sets(output, right):
    assert judge("mbpp", "similar_elements", [], value(output), value((1, 2))) is right


@pytest.mark.parametrize(
    ("output", "expected", "right"),
    [
        (OPAQUE, OPAQUE, True),
        (value(True), OPAQUE, True),
        (value("Found a match!"), OPAQUE, True),
        (value(False), OPAQUE, False),
        (value(None), OPAQUE, False),
        (value(None), value(None), True),
        (value(False), value(None), True),
        (OPAQUE, value(None), False),
        (RAISED, OPAQUE, False),
    ],
)
def test_only_whether_there_is_a_match_counts(output, expected, right):
    assert judge("mbpp", "check_str", [], output, expected) is right


def test_second_answers_of_mbpp():
    assert judge("mbpp", "sum_div", [8], value(0), value(7)) and judge(
        "mbpp", "sum_div", [8], value(7), value(7)
    )
    assert not judge("mbpp", "sum_div", [8], value(1), value(7))
    assert judge("mbpp", "digit_distance_nums", [1, 256], value(12), value(1))
    assert not judge("mbpp", "digit_distance_nums", [1, 256], value("12"), value(1))
    assert judge("mbpp", "surface_Area", [3, 4], value(35), value(33))
    assert not judge("mbpp", "surface_Area", [3, 4], value(34), value(33))
    assert judge("mbpp", "are_equivalent", [], value(None), value(True))
    assert not judge("mbpp", "are_equivalent", [], RAISED, value(True))


def record(name="test/0", **changes):
    return {
        "task_id": name,
        "prompt": "",
        "entry_point": "f",
        "canonical_solution": "def f(x): return [0] * x\n",
        "base_input": [[1], [30]],
        "plus_input": [[2], [40], [3]],
        "atol": 0,
        **changes,
    }


def test_special_rules_hold_for_the_data_sets_they_were_made_for_only():
    assert read_problem(record("HumanEval/32", entry_point="find_zero")).oracle is not None
    assert read_problem(record("functions/test/1", entry_point="find_zero")).oracle is None


def test_the_digest_covers_all_that_decides_a_verdict():
    base = read_problem(record()).digest
    assert read_problem(record("test/1")).digest == base
    for changes in (
        {"prompt": "\n"},
        {"entry_point": "g"},
        {"canonical_solution": "def f(x): return x"},
        {"base_input": [[1]], "plus_input": [[30], [2], [40], [3]]},
        {"plus_input": [[2], [40], [3.0]]},
        {"atol": 1e-6},
    ):
        assert read_problem(record(**changes)).digest != base


@needs_sandbox
def test_calls_too_large_to_cross_are_left_out_for_all(monkeypatch):
    """The limit holds inside the sandbox too; here the reference's results are cut as if they were larger."""

    def cut(programs, *arguments, **settings):
        for execution in run_batch(programs, *arguments, **settings):
            large = Output("opaque", plain_data.TOO_LARGE)
            outputs = tuple(large if len(output.text) > 50 else output for output in execution.outputs)
            yield type(execution)(execution.status, outputs, cpu_s=execution.cpu_s)

    monkeypatch.setattr(references, "run_batch", cut)
    monkeypatch.setattr(references, "_REFERENCES", {})
    (reference,) = reference_outputs([read_problem(record())]).values()
    assert reference.skipped == (1, 3)
    assert reference.problem.arguments == [[1], [2], [3]] and reference.problem.base_count == 1
    completions = [
        "def f(x): return [0] * x if x < 10 else None",
        "def f(x): return [0] * x if x < 3 else None",
        "def f(x): return [0] * x if x > 1 else None",
    ]
    verdicts = verify_code([record()] * 3, completions)
    assert [(verdict.base, verdict.plus) for verdict in verdicts] == [
        (True, True),
        (True, False),
        (False, True),
    ]


@needs_sandbox
def test_slow_references_are_kept_on_disk_and_damaged_files_are_not_believed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(references, "_DISK_CPU_S", 0.0)
    problem = read_problem(record())

    def fresh():
        monkeypatch.setattr(references, "_REFERENCES", {})
        return reference_outputs([problem])[problem.digest]

    first = fresh()
    (path,) = (tmp_path / "troll/references").iterdir()
    ran = []
    monkeypatch.setattr(
        references,
        "run_batch",
        lambda programs, *a, **k: (ran.extend(programs), run_batch(programs, *a, **k))[1],
    )
    assert fresh() == first and ran == []
    path.write_bytes(b"damaged")
    assert fresh().outputs == first.outputs and len(ran) == 1
    path.write_bytes(gzip.compress(b'{"cpu_s": 1, "outputs": 7}'))
    assert fresh().outputs == first.outputs and len(ran) == 2


@needs_sandbox
def test_reference_solutions_of_mbpp_plus_pass_and_others_do_not(real_data, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = {"Mbpp/2", "Mbpp/63", "Mbpp/124", "Mbpp/252", "Mbpp/7", "Mbpp/737", "Mbpp/750"}
    with gzip.open(real_data / "mbppplus/MbppPlus.jsonl.gz", "rt") as lines:
        records = [row for row in map(json.loads, lines) if row["task_id"] in wanted]
    assert len(records) == len(wanted)
    right = verify_code(records, [row["canonical_solution"] for row in records])
    assert [verdict.status for verdict in right] == ["passed"] * len(records)
    wrong = verify_code(records, [f"def {row['entry_point']}(*_): return 0\n" for row in records])
    assert not any(verdict.passed for verdict in wrong)
