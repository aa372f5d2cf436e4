"""The audit passes on the real data, and fails when a grader does."""

import ast
import inspect

import pytest
from refusals import refused

import audit as auditing
import code_judges as judging
import pairs
import paraphrases
from audit import audit, audit_hostile, require_passed
from audit_tables import audit_tables, code_judges_table, write_audit
from cases import (
    EXPLANATIONS,
    MATH_CASES,
    SHAPES,
    WRONG,
    code_paraphrase,
    math_paraphrase,
    math_reference,
    math_tiny,
    math_unboxed,
    math_wrong,
)
from code_judges import code_judges
from honest_programs import HONEST_PROGRAMS, RETURNED_VALUES, WITH_FILES
from notations import audit_forms, audit_pairs, disagreement_table, verdicts
from pairs import PAIRS
from paraphrases import right_forms, wrong_forms
from speed import speed
from troll.common.errors import UserError
from troll.common.files import read_json, write_json
from troll.evaluation.evalplus.check import EvalplusVerdict
from troll.tasks.datasets.load import Loaded, load
from troll.tasks.sandbox.extraction import extract_code
from troll.tasks.sandbox.pool import sandbox_available
from troll.tasks.types import Problem
from troll.tasks.verifiers.code import CodeVerdict, verify_code
from troll.tasks.verifiers.math import judge_math

needs_sandbox = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")


def number(task_id, answer):
    return Problem(task_id, "?", answer, 0, {"problem": "?", "answer": answer})


def sums():
    """Four little problems in place of a data set."""
    problems = tuple(number(str(k), str(k)) for k in range(4))
    return Loaded("gsm8k", "test", problems, {"source": "here", "substitute": False, "note": ""}, "0" * 64)


# Of no hostile program.
FINE = {
    "ok": True,
    "programs": 0,
    "scored": [],
    "infrastructure": [],
    "honest": 0,
    "statuses": {},
    "seconds": 0,
}


@pytest.fixture
def small(monkeypatch):
    """The audit with one small set and no hostile programs."""

    def load(name):
        if name == "gsm8k":
            return sums()
        raise UserError(f"{name}: not here")

    monkeypatch.setattr(auditing, "load", load)
    monkeypatch.setattr(auditing, "audit_hostile", lambda: dict(FINE))
    monkeypatch.setattr(auditing, "audit_fractions", lambda full: {"ok": True})
    monkeypatch.setattr(auditing, "code_judges", lambda data, hostile: [])
    monkeypatch.setattr(auditing, "audit_pairs", list)


NUMBERS = ["7", "-3", "0", "1234", "4.5e33", "1e-8", "0.50", "\\frac{3}{4}", "-\\frac{1}{3}", "75\\%"]
LISTS = ["\\left( 3, \\frac{\\pi}{2} \\right)", "[0,\\infty)", "(1,2)\\cup(3,4)"]
ANSWERS = [*NUMBERS, *LISTS, "-1./3", "x^2+1", "2\\sqrt{3}"]


@pytest.mark.parametrize("answer", ANSWERS)
def test_cases_are_what_they_claim(answer):
    problem = number("5", answer)
    cases = (math_reference, math_paraphrase, math_wrong, math_tiny, math_unboxed)
    statuses = judge_math([answer] * 5, [case(problem) for case in cases], standard="reward")
    assert statuses == ["passed", "passed", "wrong", "wrong", "wrong"]


def test_every_notation_is_judged_right_by_rewards():
    rows = audit_forms({"here": [number(str(k), answer) for k, answer in enumerate(ANSWERS)]}, 9)
    assert len(rows) > 150 and [row for row in rows if row["reward"] != row["right"]] == []


def test_forms_are_exact():
    forms = right_forms("\\frac{1}{7}")
    assert forms["period, bar"] == "0.\\overline{142857}" and forms["slash"] == "1/7"
    forms = right_forms("4.5e3")
    assert forms["digits"] == "4500" and forms["scientific"] == "4.5\\times 10^{3}"
    assert wrong_forms("4e33")["Euler's number"] == "132e"
    assert wrong_forms("\\text{odd}") == {}


def test_forms_owe_nothing_to_the_code_that_is_audited():
    for module in (paraphrases, pairs):
        nodes = ast.walk(ast.parse(inspect.getsource(module)))
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert not [name for name in names if name.startswith("troll")]


def test_rewards_judge_the_pairs_by_hand_right_and_evaluation_is_math_verify():
    rows = audit_pairs()
    assert len(rows) == sum(map(len, PAIRS.values())) > 100
    assert [row for row in rows if row["reward"] != row["right"]] == []
    published = {(row["reference"], row["answer"]): row["evaluation"] for row in rows}
    assert published[("10", "10\\%")] and published[("\\frac13", "0.3333333")]
    assert not published[("4i", "4 i")]
    # in scientific notation math-verify as published would be wrong about nearly all
    scientific = [row for row in rows if row["reference"] in ("4.5e33", "4e33", "1e-8")]
    assert all(row["evaluation"] == row["right"] for row in scientific)


def test_a_misjudged_notation_fails_the_audit():
    pair = {"notation": "percent", "reference": "10", "answer": "10%", "right": False, "reward": True}
    result = {"ok": False, "cases": [], "exceptions": [], "misjudged": [pair], "code_judges": []}
    result |= {"hostile": {"ok": True}, "fractions": {"ok": True}}
    with refused("audit", "notations", "10% for 10"):
        require_passed(result)


def test_a_chat_answer_holds_the_whole_program():
    prompt = 'def f(x):\n    """Add one."""\n'
    problem = Problem("1", prompt, "    return x + 1\n", 0, {"entry_point": "f"})
    assert extract_code(code_paraphrase(problem), "f").strip() == (prompt + problem.answer).strip()


@needs_sandbox
def test_the_audit_lists_what_there_is_and_what_is_not(small):
    result = audit()
    assert result["ok"] and result["exceptions"] == []
    rates = dict.fromkeys(("reference", "answer", "paraphrase"), 1.0)
    rates |= dict.fromkeys(("wrong", "tiny", "unboxed"), 0.0)
    assert {row["case"]: row["rate"] for row in result["cases"]} == rates
    same = [row for row in result["cases"] if row["case"] in ("answer", "unboxed")]
    assert all(row["evaluation"] == row["rate"] for row in same)
    assert result["absent"]["math"] == "math: not here"
    require_passed(result)


@needs_sandbox
def test_the_script_writes_the_audit_or_a_part_of_it(small, monkeypatch, tmp_path):
    auditing.command(tmp_path / "audit")
    assert {path.name for path in tmp_path.iterdir()} == {"audit.csv", "audit.json", "audit.md"}
    held = {"set": "gsm8k", "problems": 4, "exact": 1, "near": 0, "train_problems": 9}
    held |= {"substitute": False, "train_substitute": False}
    monkeypatch.setattr(auditing, "dapo_contamination", lambda data: [held])
    auditing.command(tmp_path / "part", only="contamination")
    assert read_json(tmp_path / "part.json") == [held]
    assert (tmp_path / "part.csv").read_text().splitlines()[1] == "gsm8k,4,1,0,0.25"


@needs_sandbox
@pytest.mark.parametrize(
    ("judge", "failed"),
    [
        (lambda answers, texts, **_: ["passed"] * len(texts), "gsm8k wrong, gsm8k tiny, gsm8k unboxed"),
        (
            lambda answers, texts, **_: ["wrong"] * len(texts),
            "gsm8k reference, gsm8k answer, gsm8k paraphrase",
        ),
    ],
)
def test_a_grader_that_errs_fails_the_audit(small, monkeypatch, judge, failed):
    monkeypatch.setattr(auditing, "judge_math", judge)
    result = audit()
    with refused("audit", failed):
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
    def judge(_, texts, limits, workers):
        right = CodeVerdict(True, True, "passed")
        return [right if text.startswith(auditing._HONEST) else verdict for text in texts]

    monkeypatch.setattr(auditing, "verify_code", judge)
    result = audit_hostile()
    assert not result["ok"] and len(result[field]) == result["programs"] >= 150


@needs_sandbox
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_no_honest_program_that_evalplus_accepts_is_refused():
    pytest.importorskip("evalplus", reason="evalplus is not installed")
    programs, values = code_judges({}, hostile=False)
    assert programs["programs"] >= len(HONEST_PROGRAMS) - len(WITH_FILES) >= 40
    assert values["programs"] == len(RETURNED_VALUES) >= 45
    for row in (programs, values):
        # Of programs that take long, evalplus refuses some on a busy machine: its limits are of wall time.
        assert row["both"] + row["troll"] == row["programs"] and row["troll"] <= 3


@needs_sandbox
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_every_shape_in_which_evalplus_finds_the_program_is_read():
    pytest.importorskip("evalplus", reason="evalplus is not installed")
    records = [judging._SHAPED] * len(SHAPES)
    row = judging._row(
        "shapes", list(SHAPES), "humaneval", records, list(SHAPES.values()), theirs=judging._sanitized
    )
    assert row["names"] == [] and row["ok"]
    assert row["both"] >= 70 and row["troll"] >= 10 and row["neither"] == 0


@needs_sandbox
def test_the_program_is_found_in_every_shape():
    verdicts = verify_code([judging._SHAPED] * len(SHAPES), list(SHAPES.values()))
    assert [name for name, verdict in zip(SHAPES, verdicts, strict=True) if not verdict.passed] == []


@needs_sandbox
def test_no_shape_makes_a_wrong_function_right():
    wrong = [text.replace("3 *", "4 *").replace("2 * x + 1", "3 * x + 1") for text in SHAPES.values()]
    verdicts = verify_code([judging._SHAPED] * len(SHAPES), wrong)
    assert [name for name, verdict in zip(SHAPES, verdicts, strict=True) if verdict.passed] == []


@needs_sandbox
def test_values_count_as_what_they_equal():
    verdicts = verify_code(*judging.returning_programs())
    assert [name for name, verdict in zip(RETURNED_VALUES, verdicts, strict=True) if not verdict.passed] == []


def test_a_program_that_is_overpaid_fails_the_audit(small, monkeypatch):
    overpaid = {"ok": False, "programs": 1, "raised": ["sleeps"], "honest": 0}
    monkeypatch.setattr(auditing, "audit_fractions", lambda full: overpaid)
    with refused("audit", "shares of tests", "sleeps"):
        require_passed(audit())


def test_a_refused_honest_program_fails_the_audit(small, monkeypatch):
    row = {"set": "unusual", "programs": 1, "both": 0, "troll": 0, "evalplus": 1, "neither": 0}
    row |= {"names": ["numpy"], "ok": False}
    monkeypatch.setattr(auditing, "code_judges", lambda data, hostile: [row])
    result = audit()
    with refused("audit", "unusual", "numpy"):
        require_passed(result)


def test_the_table_says_whose_extraction_counts_where_it_differs():
    counts = {"programs": 2, "both": 1, "troll": 1, "evalplus": 0, "neither": 0, "names": [], "ok": True}
    for name, said in (("shapes of answers", True), ("hostile programs", False)):
        notes = code_judges_table([{"set": name, **counts}]).attrs["notes"]
        assert any("sanitizer" in note for note in notes) is said


@pytest.mark.parametrize("accepts", [(True, False), (False, True)])
def test_what_decides_between_the_judges_of_code(monkeypatch, accepts):
    ours, theirs = accepts
    verdict = CodeVerdict(ours, ours, "passed" if ours else "crash")
    monkeypatch.setattr(judging, "verify_code", lambda records, texts: [verdict] * len(texts))
    evalplus = EvalplusVerdict(theirs, theirs)
    monkeypatch.setattr(
        judging, "evalplus_verdicts", lambda dataset, records, samples, **_: [evalplus] * len(samples)
    )
    monkeypatch.setattr(judging, "evalplus_version", lambda: "0")
    *honest, hostile = code_judges({}, hostile=True)
    assert [row["ok"] for row in honest] == [ours] * 3 and hostile["ok"] == (not ours)
    for row in honest:
        assert row["troll"] == (row["programs"] if ours else 0)


def test_every_explained_exception_is_one(real_data):
    for name, case, task_id in EXPLANATIONS:
        (problem,) = [problem for problem in load(name).problems if problem.task_id == task_id]
        (status,) = judge_math([problem.answer], [MATH_CASES[case](problem)], standard="reward")
        assert status == "wrong", (name, case, task_id)
        assert case not in WRONG


@needs_sandbox
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_audit_passes_on_the_real_data(tmp_path, real_data, monkeypatch):
    # Hostile programs are no data: tests/tasks/test_hostile_programs.py has what the audit says of them.
    monkeypatch.setattr(auditing, "audit_hostile", lambda: dict(FINE))
    monkeypatch.setattr(auditing, "audit_fractions", lambda full: {"ok": True})
    result = audit()
    require_passed(result)
    assert set(result["absent"]) == {"eurus-math", "eurus-code"}
    assert len({row["set"] for row in result["cases"]}) == 14
    assert result["misjudged"] == [] and result["differences"]
    assert {row["set"] for row in result["cases"] if row["case"] == "tiny" and row["passed"]} == set()
    write_json(tmp_path / "audit.json", result)
    write_audit(result, tmp_path / "audit")
    cases = dict(audit_tables(result))["What the graders accept"].set_index("set")
    assert set(cases["verdict"]) == {"passed"}
    assert [name for name in cases.index if name.endswith("‡")] == ["dapo ‡", "omni-math ‡"]


@pytest.mark.slow
@pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")
def test_all_measurements_do_the_whole_work(real_data):
    rows = speed(problems=4, completions=64, programs=16)
    assert [row["count"] for row in rows] == [4, 4, 4, 64, 16]
    assert [row["passed"] for row in rows[:3]] == [4, 4, 4] and rows[4]["passed"] == 16
    assert 0 < rows[3]["passed"] < 64
    assert all(row["seconds"] > 0 for row in rows)


CASES = [
    # answer, completion, exact, reward, boxed, math-verify on the whole text
    ("7", r"so \boxed{7}", True, True, True, True),
    (r"\frac{1}{2}", r"\boxed{0.5}", False, True, True, True),
    (r"\frac{1}{2}", r"\boxed{ \frac{1} {2} }", True, True, True, True),
    ("18", "He sells 18 eggs.\n#### 18", False, False, False, True),
    ("7", r"\boxed{8}", False, False, False, False),
    ("7", "", False, False, False, False),
    ("7", r"\boxed{6=7}", False, False, True, True),
    (r"\frac{1}{3}", r"\boxed{0.\overline{3}}", False, True, False, False),
]


def test_the_four_judges_say_what_they_should():
    frame = verdicts([case[0] for case in CASES], [case[1] for case in CASES])
    assert [tuple(row) for row in frame.itertuples(index=False)] == [case[2:] for case in CASES]


def test_the_table_counts_by_set():
    samples = {
        name: ([case[0] for case in part], [case[1] for case in part])
        for name, part in (("one", CASES[:3]), ("two", CASES[3:6]), ("three", CASES[6:]))
    }
    table = disagreement_table(samples).set_index("set")
    assert table.loc["one", ["completions", "boxed_not_exact", "math_verify_not_boxed"]].tolist() == [3, 1, 0]
    assert table.loc["two", ["completions", "boxed_not_exact", "math_verify_not_boxed"]].tolist() == [3, 0, 1]
    assert table.loc["three", ["reward_not_boxed", "boxed_not_reward"]].tolist() == [1, 1]
    assert table.loc["one", "exact"] == pytest.approx(2 / 3) and table["exact_not_boxed"].sum() == 0
