"""What a base model leaves to learn, on distributions and samples whose answer is known."""

import json

import pytest
import torch
from refusals import refused

from difficulty import run_difficulty, tail_shares
from troll.common.files import write_json, write_jsonl
from troll.experiment.model_settings import FromScratch
from troll.tasks.registry import get_task, write_problems
from troll.training.base_model import new_model
from troll.training.outputs import save_model
from troll.training.tokenizer import train_tokenizer


def test_tail_shares_count_positions_whose_likeliest_tokens_hold_too_little():
    vocabulary = 200
    peaked = torch.full((vocabulary,), 1e-8)
    peaked[0] = 1
    uniform = torch.ones(vocabulary)
    # 16 tokens hold all but 2 %, and 64 all but nothing.
    middle = torch.zeros(vocabulary) + 1e-12
    middle[:16], middle[16:60] = 0.98 / 16, 0.02 / 44
    rows = torch.stack([row / row.sum() for row in (peaked, uniform, middle, peaked)]).log()
    assert tail_shares(rows) == [0.5, 0.25]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A random model with samples of which the first of each problem is right."""
    root = tmp_path_factory.mktemp("x")
    task = get_task("locks")
    write_problems({"name": "locks", "test": 3}, root / "data" / "locks")
    problems = task.load(root / "data" / "locks" / "test.jsonl")
    tokenizer = train_tokenizer([item.prompt + item.record["solution"] for item in problems], 300)
    directory = root / "base" / "small" / "locks"
    settings = FromScratch(vocabulary=300, width=32, layers=1, heads=1, key_value_heads=1)
    save_model(new_model(settings, tokenizer, 0), tokenizer, directory / "checkpoint")
    samples, verdicts = [], {}
    for item in problems:
        texts = [item.record["solution"], *["kaka"] * 7]
        samples += [
            {"task_id": item.task_id, "sample": number, "completion": text, "tokens": 10 * (number + 1)}
            for number, text in enumerate(texts)
        ]
        verdicts[item.task_id] = {"passed": [number == 0 for number in range(8)]}
    write_jsonl(directory / "samples.jsonl", samples)
    write_json(directory / "grades.json", {"problems": verdicts})
    write_json(directory / "manifest.json", {"config": {"model": {"base_seed": 2}}})
    return directory


def test_a_base_model_becomes_a_row(base, tmp_path):
    frame = run_difficulty([base], tmp_path / "difficulty")
    row = frame.iloc[0]
    assert (row["model"], row["task"], row["base_seed"], row["problems"]) == ("small", "locks", 2, 3)
    assert row["pass@1"] == pytest.approx(1 / 8)
    assert row["pass@8"] == 1
    assert row["parameters"] - row["without_embedding"] == 300 * 32
    assert (row["length_5"], row["length_50"], row["length_95"]) == (10, 45, 80)
    # A random model is nearly uniform over 300 tokens.
    assert row["tail_16"] == row["tail_64"] == 1
    assert row["right_tokens"] > 20
    assert (tmp_path / "difficulty.md").exists() and (tmp_path / "difficulty.csv").exists()


def test_grades_of_other_samples_are_refused_in_one_line(base, tmp_path):
    broken = tmp_path / "base" / "small" / "locks"
    broken.mkdir(parents=True)
    (broken / "samples.jsonl").write_text((base / "samples.jsonl").read_text())
    (broken / "manifest.json").write_text("{}")
    (broken / "grades.json").write_text(json.dumps({"problems": {}}))
    with refused("grades.json", "samples.jsonl"):
        run_difficulty([broken], tmp_path / "out", data=base.parents[2] / "data")
