"""The audit passes on the real data, and fails when a grader does."""

import pytest

from troll.analysis.audit_table import audit_tables, write_audit
from troll.errors import UserError
from troll.evaluation import audit as auditing
from troll.evaluation.audit import audit, audit_hostile, require_passed
from troll.evaluation.audit_cases import (
    EXPLANATIONS,
    MATH_CASES,
    WRONG,
    code_paraphrase,
    math_paraphrase,
    math_reference,
    math_unboxed,
    math_wrong,
)
from troll.files import write_json
from troll.tasks.datasets.load import Loaded, load
from troll.tasks.sandbox import sandbox_available
from troll.tasks.types import Problem
from troll.tasks.verifiers.code import CodeVerdict
from troll.tasks.verifiers.extraction import extract_code
from troll.tasks.verifiers.math import judge_math

needs_sandbox = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")


def number(task_id, answer):
    return Problem(task_id, "?", answer, 0, {"problem": "?", "answer": answer})


def sums():
    """Four little problems in place of a data set."""
    problems = tuple(number(str(k), str(k)) for k in range(4))
    return Loaded("gsm8k", "test", problems, {"source": "here", "stand_in": False, "note": ""}, "0" * 64)


@pytest.fixture
def small(monkeypatch):
    """The audit with one small set and no hostile programs."""

    def load(name):
        if name == "gsm8k":
            return sums()
        raise UserError(f"{name}: not here")

    fine = {"ok": True, "programs": 0, "scored": [], "infrastructure": [], "honest": 0, "statuses": {}}
    monkeypatch.setattr(auditing, "load", load)
    monkeypatch.setattr(auditing, "audit_hostile", lambda: {**fine, "seconds": 0})


@pytest.mark.parametrize(
    "answer", ["7", "-3", "\\frac{3}{4}", "\\left( 3, \\frac{\\pi}{2} \\right)", "x^2+1"]
)
def test_cases_are_what_they_claim(answer):
    problem = number("5", answer)
    cases = (math_reference, math_paraphrase, math_wrong, math_unboxed)
    statuses = judge_math([answer] * 4, [case(problem) for case in cases])
    assert statuses == ["passed", "passed", "wrong", "wrong"]


def test_a_chat_answer_holds_the_whole_program():
    prompt = 'def f(x):\n    """Add one."""\n'
    problem = Problem("1", prompt, "    return x + 1\n", 0, {"entry_point": "f"})
    assert extract_code(code_paraphrase(problem), "f").strip() == (prompt + problem.answer).strip()


@needs_sandbox
def test_the_audit_lists_what_there_is_and_what_is_not(small):
    result = audit()
    assert result["ok"] and result["exceptions"] == []
    assert {row["case"]: row["rate"] for row in result["cases"]} == {
        "reference": 1.0,
        "answer": 1.0,
        "paraphrase": 1.0,
        "wrong": 0.0,
        "unboxed": 0.0,
    }
    assert result["absent"]["math"] == "math: not here"
    require_passed(result)


@needs_sandbox
@pytest.mark.parametrize(
    ("judge", "failed"),
    [
        (lambda answers, texts: ["passed"] * len(texts), "gsm8k wrong, gsm8k unboxed"),
        (lambda answers, texts: ["wrong"] * len(texts), "gsm8k reference, gsm8k answer"),
    ],
)
def test_a_grader_that_errs_fails_the_audit(small, monkeypatch, judge, failed):
    monkeypatch.setattr(auditing, "judge_math", judge)
    result = audit()
    with pytest.raises(
        UserError, match=f"audit: failed for {failed} \\(gsm8k [a-z]+ 0, gsm8k [a-z]+ 1, .*\\)"
    ):
        require_passed(result)
    assert not result["ok"]
    assert {row["task_id"] for row in result["exceptions"]} == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("verdict", "field"),
    [
        (CodeVerdict(True, True, "passed"), "scored"),
        (CodeVerdict(True, False, "wrong"), "scored"),
        (CodeVerdict(False, False, "infrastructure"), "infrastructure"),
    ],
)
def test_hostile_programs_that_score_or_break_the_sandbox_fail_the_audit(monkeypatch, verdict, field):
    def judge(_, texts, limits):
        right = CodeVerdict(True, True, "passed")
        return [right if text.startswith(auditing._HONEST) else verdict for text in texts]

    monkeypatch.setattr(auditing, "verify_code", judge)
    result = audit_hostile()
    assert not result["ok"] and len(result[field]) == result["programs"] >= 60


def test_every_explained_exception_is_one(real_data):
    for name, case, task_id in EXPLANATIONS:
        (problem,) = [problem for problem in load(name).problems if problem.task_id == task_id]
        assert judge_math([problem.answer], [MATH_CASES[case](problem)]) == ["wrong"], (name, case, task_id)
        assert case not in WRONG


@needs_sandbox
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_audit_passes_on_the_real_data(tmp_path, real_data):
    result = audit()
    require_passed(result)
    assert set(result["absent"]) == {"eurus-math", "eurus-code"}
    assert len({row["set"] for row in result["cases"]}) == 14
    assert result["hostile"]["ok"] and result["hostile"]["programs"] >= 60
    assert all(row["exact_not_boxed"] == 0 for row in result["graders"])
    write_json(tmp_path / "audit.json", result)
    write_audit(result, tmp_path / "audit")
    cases = dict(audit_tables(result))["What the graders accept"].set_index("set")
    assert set(cases["verdict"]) == {"passed"}
    assert [name for name in cases.index if name.endswith("‡")] == ["dapo ‡", "omni-math ‡"]
