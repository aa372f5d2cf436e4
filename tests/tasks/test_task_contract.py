"""What every generated task promises; a new file in troll/tasks/testbed/ is held to it by its name."""

import pytest

from troll.tasks import testbed
from troll.tasks.registry import get_task, write_problems
from troll.tasks.types import SPLITS

COUNT = 24
pytestmark = pytest.mark.parametrize("name", testbed.NAMES)


def problems(name, split, seed=0):
    task = get_task(name)
    return task.generate(split, COUNT, seed, task.defaults)


def right_answer(task, problem):
    return f"\\boxed{{{problem.answer}}}" if task.kind == "math" else problem.answer


def test_it_is_what_its_file_says(name):
    task = get_task(name)
    assert task.name == name
    assert task.summary


def test_splits_share_no_prompt_and_repeat_exactly(name):
    found = {split: problems(name, split) for split in SPLITS}
    assert all(len(items) == COUNT for items in found.values())
    assert len({item.prompt for items in found.values() for item in items}) == 3 * COUNT
    assert len({item.task_id for items in found.values() for item in items}) == 3 * COUNT
    assert found["test"] == problems(name, "test")
    assert found["train"] != problems(name, "train", seed=1)


def test_problems_survive_being_written_and_only_the_right_answer_is_worth_one(name, tmp_path):
    task = get_task(name)
    config = {"name": name, "train": 8, "validation": 4, "test": COUNT, "settings": dict(task.defaults)}
    write_problems(config, tmp_path)
    items = task.load(tmp_path / "test.jsonl")
    for read, made in zip(items, problems(name, "test"), strict=True):
        assert (read.task_id, read.prompt) == (made.task_id, made.prompt)
        assert (read.answer, read.level) == (made.answer, made.level)
    assert task.reward(items, [right_answer(task, item) for item in items]) == [1.0] * COUNT
    for wrong in ("", "no idea"):
        assert task.reward(items, [wrong] * COUNT) == [0.0] * COUNT


def test_demonstrations_are_on_the_train_split_only(name):
    task = get_task(name)
    shown = task.demonstrate(200, 0, task.defaults)
    assert len(shown) == 200
    assert all(item.prompt and item.completion for item in shown)
    assert len({item.completion for item in shown}) > 1
    held_out = {item.prompt for split in ("validation", "test") for item in problems(name, split)}
    assert not held_out & {item.prompt for item in shown}
