"""How answers are written and rewarded: after ``####`` as in verl, and leniently as for the paper's DAPO."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest
from refusals import refused

import pairs
from troll.tasks.datasets.convert import gsm8k
from troll.tasks.datasets.settings import applied
from troll.tasks.datasets.task import worked_solution
from troll.tasks.registry import check_settings, get_task
from troll.tasks.verifiers.lenient import plain_value
from troll.tasks.verifiers.math import judge_math, math_rewards

TABLE = Path(pairs.__file__).with_name("lenient_answers.csv")
ROW = {"question": "How much is it? ", "answer": "We add <<1+1=2>>2.\n#### 1,000"}
HASHES = {"answers": "####"}


def of_verl(text, answer):
    """verl's rule, from its description: the last number after the mark, near the end, by its text."""
    before, mark, number = text[-300:].rpartition("#### ")
    while mark and not re.match(r"-?[\d.,]", number):
        before, mark, number = before.rpartition("#### ")
    found = re.match(r"-?[\d.,]+", number) if mark else None
    return found is not None and found[0].replace(",", "") == answer


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("So it is\n#### 1000", True),
        ("#### 1,000 dollars", True),
        ("#### 7\nno, #### 1000", True),
        ("#### 1000\nno, #### 7", False),
        ("#### $1000", False),
        ("####1000", False),
        ("#### 1000.", False),
        ("#### 1000.0", False),
        ("The answer is \\boxed{1000}", False),
        ("The answer is 1000", False),
        ("", False),
        ("#### 1000" + "x" * 291, True),
        ("#### 1000" + "x" * 292, False),
        ("#### 1000\n#### none", True),
    ],
)
def test_after_hashes_the_last_number_counts_by_its_text(text, right):
    assert of_verl(text, "1000") is right
    for standard in ("reward", "evaluation"):
        (status,) = judge_math(["1000"], [text], standard=standard, forms=["####"])
        assert (status == "passed") is right
    assert math_rewards([applied(gsm8k(ROW, 0), HASHES)], [text]) == [float(right)]


def test_gsm8k_gets_the_prompt_and_the_demonstrations_of_the_form():
    boxed, hashes = gsm8k(ROW, 0), applied(gsm8k(ROW, 0), HASHES)
    assert hashes.prompt == (
        'How much is it?  Let\'s think step by step and output the final answer after "####".'
    )
    assert "boxed" in boxed.prompt and "boxed" not in hashes.prompt
    assert worked_solution(hashes) == "We add 2.\n#### 1000"
    assert math_rewards([hashes, boxed], [worked_solution(hashes), worked_solution(boxed)]) == [1.0, 1.0]
    assert math_rewards([hashes, boxed], [worked_solution(boxed), worked_solution(hashes)]) == [0.0, 0.0]
    assert applied(boxed, {}) is boxed


def test_only_gsm8k_has_hashes():
    assert check_settings(get_task("gsm8k"), HASHES) == HASHES
    with refused("task dapo", "answers", "'####'", "boxed", "lenient"):
        check_settings(get_task("dapo"), HASHES)
    with refused("task gsm8k", "answers", "'###'", "'####'"):
        check_settings(get_task("gsm8k"), {"answers": "###"})


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"34\%", "34"),
        (r"x = \$34.", "34"),
        (r"\text{34}", "34"),
        (r"\left[ 34 \right]", "34"),
        (r"34\text{ cm}^2", "34"),
        ("34 square units", "34"),
        (r"34^\circ", "34"),
        ("34 million", "34 million"),
        ("34 or 35", "34 or 35"),
        ("[3, 4]", "[3, 4]"),
        ("34!", "34!"),
        ("area = 34", "area = 34"),
        ("", ""),
    ],
)
def test_marks_around_a_value_are_dropped_but_nothing_that_changes_it(text, plain):
    assert plain_value(text) == plain


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.nightly])])
def test_the_lenient_reward_differs_from_the_released_one_as_the_table_says(every):
    with TABLE.open(newline="") as file:
        whole = list(csv.DictReader(file))
    assert len(whole) == len({(row["reference"], row["answer"]) for row in whole}) == 200
    rows = whole if every else [row for row in whole if row["reference"] == "24"][::3]
    answers, texts = [row["reference"] for row in rows], [f"\\boxed{{{row['answer']}}}" for row in rows]
    for column, standard in (("lenient", "lenient"), ("strict", "reward")):
        found = judge_math(answers, texts, standard=standard)
        assert [str(int(status == "passed")) for status in found] == [row[column] for row in rows]
    counts = Counter((row["released"], row["lenient"]) for row in whole)
    # docs/algorithms.md names these numbers.
    assert counts == {("0", "0"): 99, ("1", "1"): 54, ("0", "1"): 42, ("1", "0"): 5}
    assert not any(row["strict"] > row["lenient"] for row in whole), "lenient accepts all that strict does"


def test_leniency_is_of_rewards_alone_and_no_wrong_number_passes():
    forms = [r"\boxed{34\%}", r"\boxed{34 t}", r"\boxed{6=34}", r"\boxed{35\%}", r"\boxed{34 million}", "34"]
    found = judge_math(["34"] * 6, forms, standard="reward", forms=["lenient"] * 6)
    assert found == ["passed"] * 3 + ["wrong"] * 3
    assert judge_math(["34"] * 6, forms, standard="reward").count("passed") == 0
    assert judge_math(["34"] * 6, forms, forms=["lenient"] * 6) == judge_math(["34"] * 6, forms)
    numbers = [str(number) for number in range(33)]
    wrapped = [rf"\boxed{{x = \text{{{number}}}\%}}" for number in numbers]
    assert set(judge_math(["34"] * 33, wrapped, standard="lenient")) == {"wrong"}
    assert set(judge_math(numbers, wrapped, standard="lenient")) == {"passed"}


def test_a_hostile_answer_ends_no_reward():
    slow = ["9^{9^{9}}", "\\text{" * 5000, "1" * 100_000, "(" * 1999, "1" + " a" * 900, r"\%" * 900]
    texts = [f"\\boxed{{{answer}}}" for answer in slow]
    found = judge_math(["34"] * len(texts), texts, standard="lenient", timeout_s=1.0)
    assert "passed" not in found
