"""Rewards between 0 and 1: the mean reward and the success that is logged beside it."""

import json
from types import SimpleNamespace

import pytest
from trainer_cases import PROMPTS

from troll.tasks.types import Problem
from troll.training.callbacks import MetricsCallback
from troll.training.run import reward_function
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer


@pytest.mark.parametrize("partial", [False, True])
def test_success_is_the_share_of_full_rewards(make, tiny_base, tmp_path, partial):
    given = []

    def rewards(problems, texts):
        found = [(0.0, 0.5, 1.0)[number % 3] for number, _ in enumerate(texts)]
        given.append(found)
        return found

    tokenizer = load_tokenizer(tiny_base)
    problems = {"a": Problem("a", "", "")}
    of_task = reward_function(SimpleNamespace(reward=rewards), problems, tokenizer, partial=partial)

    def reward(completion_ids, **others):
        return of_task(completion_ids, ["a"] * len(completion_ids), **others)

    ours = {"trust_region": "clip", "eval_dataset": [{"prompt": text} for text in PROMPTS]}
    evaluated = {"eval_strategy": "steps", "eval_steps": 4, "eval_on_start": True, "num_generations_eval": 1}
    trainer = make(TrustRegionTrainer, reward=reward, config=evaluated | {"eval_loss": False}, **ours)
    path = tmp_path / "metrics.jsonl"
    trainer.add_callback(MetricsCallback(path, 4))
    trainer.train()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first, sampled, last = given  # validation, one rollout batch, validation
    for found, row, names in (
        (first, rows[0], ("validation_success", "validation_reward")),
        (sampled, rows[0], ("success", "reward")),
        (last, rows[-1], ("validation_success", "validation_reward")),
    ):
        mean, full = sum(found) / len(found), found.count(1.0) / len(found)
        success, mean_reward = names
        if partial:
            assert mean != full, "the batch tells the two apart"
            assert (row[success], row[mean_reward]) == (pytest.approx(full), pytest.approx(mean))
        else:
            assert row[success] == pytest.approx(mean) and mean_reward not in row
