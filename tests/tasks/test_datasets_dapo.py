import random

import pytest

from contamination import contamination
from troll.tasks.datasets import dapo
from troll.tasks.datasets.dapo import same_text, split_dapo
from troll.tasks.datasets.load import load
from troll.tasks.types import Problem


def problem(number, text, answer="1"):
    return Problem(str(number), text, answer, 0, {"problem": text, "answer": answer})


def test_duplicates_go_and_contradictions_go_altogether(monkeypatch):
    monkeypatch.setattr(dapo, "HELD_OUT", 1)
    rows = [
        problem(0, "Find $x + 1$."),
        problem(1, "find  \\(x+1\\)"),
        problem(2, "Find $x - 1$."),
        problem(3, "Find y", "2"),
        problem(4, "Find $y$", "3"),
        problem(5, "Find z", "07"),
        problem(6, "Find z ", "7"),
    ]
    splits, facts = split_dapo(rows)
    assert {p.task_id for members in splits.values() for p in members} == {"0", "2", "5"}
    assert facts == {"rows": 7, "duplicates": 2, "conflicting": 2, "train": 2, "test": 1}


def test_the_held_out_problems_do_not_depend_on_the_order():
    rows = [problem(number, f"Find the value of x{number}") for number in range(1500)]
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    assert {p.task_id for p in split_dapo(rows)[0]["test"]} == {
        p.task_id for p in split_dapo(shuffled)[0]["test"]
    }


def test_operators_and_letters_of_all_scripts_tell_problems_apart():
    assert same_text("$x+1$") != same_text("$x-1$")
    assert same_text("求所有的 x") != same_text("求最小的 x")


def test_contamination_finds_copies_and_near_copies():
    words = " ".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=60))
    train = [problem("t0", "What is $1 + 1$?"), problem("t1", words), problem("t2", "Unrelated text here")]
    evaluation = {
        "a": [problem("e0", "what is \\( 1+1 \\) ?"), problem("e1", words + " so what")],
        "b": [problem("e2", "Another question of which no word is shared with the training data at all")],
    }
    rows = contamination(train, evaluation)
    assert [(row["set"], row["exact"], row["near"]) for row in rows] == [("a", 1, 1), ("b", 0, 0)]
    assert rows[0]["pairs"] == [("e0", "t0"), ("e1", "t1")]


@pytest.mark.slow
def test_the_real_split_leaks_nothing(real_data):
    train, test = load("dapo", "train"), load("dapo", "test")
    facts = train.provenance["split"]
    assert facts["rows"] == facts["duplicates"] + facts["conflicting"] + facts["train"] + facts["test"]
    assert len(test.problems) == 1024 and len(train.problems) > 15_000
    (row,) = contamination(train.problems, {"dapo": test.problems})
    assert row["exact"] == 0
