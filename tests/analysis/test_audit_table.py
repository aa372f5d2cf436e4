"""The audit as tables."""

import copy

import pytest

from audit_tables import audit_tables, write_audit

CASES = ("reference", "answer", "paraphrase", "wrong", "tiny", "unboxed")
RESULT = {
    "mode": "fast",
    "ok": True,
    "cases": [
        {
            "set": name,
            "case": case,
            "problems": 40,
            "available": 400,
            "passed": 40 if case in CASES[:3] else 0,
            "rate": 1.0 if case in CASES[:3] else 0.0,
            "evaluation": 0.925 if case in CASES[:3] else 0.05,
            "substitute": name == "dapo",
            "ok": True,
            "seconds": 1.5,
        }
        for name in ("gsm8k", "dapo")
        for case in CASES
    ],
    "hostile": {
        "programs": 61,
        "scored": [],
        "infrastructure": [],
        "honest": 0,
        "statuses": {"crash": 60, "wrong": 1},
        "seconds": 20.1,
        "ok": True,
    },
    "code_judges": [
        {
            "set": "unusual honest programs",
            "programs": 48,
            "both": 47,
            "troll": 0,
            "evalplus": 1,
            "neither": 0,
            "names": ["numpy"],
            "ok": False,
        }
    ],
    "graders": [
        {
            "set": "dapo: wrong",
            "completions": 40,
            "exact": 0.0,
            "reward": 0.0,
            "boxed": 0.0,
            "math_verify": 0.0,
            **dict.fromkeys(("boxed_not_exact", "exact_not_boxed", "reward_not_boxed"), 0),
            **dict.fromkeys(("boxed_not_reward", "math_verify_not_boxed", "boxed_not_math_verify"), 0),
        }
    ],
    "pairs": [
        {
            "notation": "percent",
            **{"right": 7, "right_reward": 7, "right_evaluation": 3},
            **{"wrong": 2, "wrong_reward": 0, "wrong_evaluation": 1},
        }
    ],
    "forms": [],
    "differences": [{"notation": "percent", "reference": "10", "answer": "10\\%", "right": False}],
    "contamination": [
        {
            "set": "gsm8k",
            "problems": 400,
            "exact": 3,
            "near": 1,
            "pairs": [],
            "substitute": False,
            "train_substitute": True,
            "train_problems": 16000,
        }
    ],
    "speed": [],
    "exceptions": [
        {
            "set": "gsm8k",
            "case": "reference",
            "task_id": "7",
            "status": "wrong",
            "answer": "a|b",
            "completion": "",
            "explanation": "cut short",
        }
    ],
    "absent": {"eurus-math": "data set eurus-math: the mirror has no such data (X=1); unset X"},
    "data": {
        "gsm8k": {"source": "mirror", "sha256": "a" * 64, "substitute": False},
        "dapo": {"source": "mirror", "sha256": "b" * 64, "substitute": True, "note": "split here"},
    },
    "python": "3.11.2",
    "seconds": 80.0,
}


def test_a_row_for_each_data_set_with_marks_and_verdicts(tmp_path):
    write_audit(RESULT, tmp_path / "audit")
    text = (tmp_path / "audit.md").read_text()
    assert text.startswith("# Audit of the graders (fast): passed\n")
    start = "| gsm8k | 40 | 400 | 100.0 | 100.0 | 100.0 | 0.0 | 0.0 | 0.0 | 92.5 | 5.0 | 5.0 | 1 | 0 |"
    assert start in text and "| dapo ‡ | 40 |" in text
    assert "‡ stands in for the data set that the paper used (dapo: split here)." in text
    assert "Not here: eurus-math (the mirror has no such data)." in text
    assert "| gsm8k | reference | 7 | wrong | a\\|b | cut short |" in text
    assert (
        "Against the 16000 training problems of DAPO-Math ‡." in text
        and "| gsm8k | 400 | 3 | 1 | 1.0 |" in text
    )
    assert "| unusual honest programs | 48 | 47 | 0 | 1 | 0 | FAILED |" in text
    assert "Behind the verdict: numpy." in text
    assert "Speed" not in text and "answers of the data sets" not in text
    assert "| percent | 7 | 7 | 3 | 2 | 0 | 1 |" in text and "| percent | 10 | 10\\% | wrong |" in text
    assert "by math-verify as published" in text
    for title, _ in audit_tables(RESULT):
        assert title in text
    assert (tmp_path / "audit.csv").read_text().startswith("set,problems,available,reference,")
    assert {path.name for path in tmp_path.iterdir()} == {"audit.csv", "audit.md"}


def test_failures_are_seen():
    result = copy.deepcopy(RESULT)
    result["cases"][3] |= {"ok": False, "rate": 0.025}
    result["exceptions"][0]["explanation"] = ""
    result["hostile"] |= {"ok": False, "scored": ["fork bomb"]}
    tables = dict(audit_tables(result))
    cases = tables["What the graders accept"].set_index("set")
    assert cases.loc["gsm8k", ["verdict", "unexplained", "wrong"]].tolist() == ["FAILED", 1, 0.025]
    assert cases.loc["dapo ‡", "verdict"] == "passed"
    assert tables["Hostile programs"].attrs["notes"] == ["Behind the verdict: fork bomb."]
    assert tables["Exceptions"]["explanation"].tolist() == ["not explained"]


def test_an_audit_without_data_has_the_hostile_programs(tmp_path):
    result = RESULT | {"cases": [], "graders": [], "contamination": [], "exceptions": [], "data": {}}
    result |= {"pairs": [], "differences": []}
    write_audit(result, tmp_path / "audit")
    text = (tmp_path / "audit.md").read_text()
    assert "Not here: eurus-math" in text and "| 61 | 0 | 0 | 0 | 60 | 1 | 20.1 | passed |" in text


@pytest.mark.parametrize("ok", [True, False])
def test_the_heading_has_the_verdict(tmp_path, ok):
    write_audit(RESULT | {"ok": ok}, tmp_path / "audit")
    assert ("passed" if ok else "FAILED") in (tmp_path / "audit.md").read_text().splitlines()[0]
