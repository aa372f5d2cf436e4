import pytest

from troll.evaluation.audit.agreement import disagreement_table, verdicts

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
