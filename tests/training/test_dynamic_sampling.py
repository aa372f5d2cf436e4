"""DAPO's dynamic sampling through the trainer."""

import json

import pytest
import torch
from refusals import refused
from trainer_cases import PROMPTS, digits, response_logits

from troll.experiment.settings import DynamicSampling
from troll.training.checkpoints import CheckpointCallback
from troll.training.trainer import TrustRegionTrainer

DAPO = {"trust_region": "clip", "estimator": "grpo"}


def half_solved(completions, prompts, **_):
    """Prompts that begin with Start are always right; the others vary."""
    return [
        1.0 if prompt.startswith("Start") else value
        for prompt, value in zip(prompts, digits(completions), strict=True)
    ]


def solved_from(batch):
    """A reward that varies in the first rollout batches, and is always 1 from a batch on."""
    calls = []

    def reward(completions, trainer_state, **_):
        calls.append(trainer_state.global_step)
        return digits(completions) if trainer_state.global_step < 4 * batch else [1.0] * len(completions)

    return reward, calls


def sample(trainer):
    trainer.model.train()
    torch.manual_seed(0)
    return trainer._generate_and_score_completions([{"prompt": p} for p in PROMPTS for _ in range(4)])


def test_only_groups_with_a_signal_are_kept_and_all_samples_are_counted(make):
    trainer = make(TrustRegionTrainer, **DAPO, reward=half_solved, dynamic_sampling=DynamicSampling())
    output = sample(trainer)
    assert len(output["rewards"]) == 16
    grouped = output["rewards"].view(4, 4)
    assert (grouped.amax(1) > grouped.amin(1)).all()
    prompts = trainer.processing_class.batch_decode(output["prompt_ids"], skip_special_tokens=True)
    assert not any(prompt.startswith("Start") for prompt in prompts)
    assert all(len(set(prompts[4 * i : 4 * i + 4])) == 1 for i in range(4))
    # Two of four prompts had no signal, so that more than one batch was sampled; each counts.
    batches = trainer._metrics["train"]["dynamic_sampling_batches"][0]
    assert batches >= 2
    assert trainer.generated_samples == 16 * batches
    assert trainer._metrics["train"]["generated_samples"] == [16 * batches]
    # The reward is that of all samples; that of the groups that were kept has a name of its own.
    logged = trainer._metrics["train"]
    assert len(logged["reward"]) == batches
    assert logged["trained_reward"] == [pytest.approx(float(output["rewards"].mean()))]
    assert logged["trained_reward"][0] < sum(logged["reward"]) / batches  # the others are always right


def test_joined_batches_hold_what_the_policy_said(make):
    trainer = make(TrustRegionTrainer, **DAPO, reward=half_solved, dynamic_sampling=DynamicSampling(), keep=8)
    output = sample(trainer)
    mask = output["completion_mask"].bool()
    log_probs = response_logits(trainer.model, output).log_softmax(-1)
    sampled = log_probs.gather(-1, output["completion_ids"].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(output["old_per_token_logps"][mask], sampled[mask], rtol=0, atol=1e-4)
    ids = output["old_token_ids"][mask]
    found = output["old_support_log_probs"][mask]
    expected = log_probs[mask].gather(-1, ids.clamp(min=0)).where(ids >= 0, -torch.inf)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_other_prompts_are_the_same_again_and_do_not_repeat(make):
    trainer = make(TrustRegionTrainer, **DAPO, dynamic_sampling=DynamicSampling())
    other = trainer.dynamic_sampler.other_prompts
    first, again = other(1, 16, batch=0), other(1, 16, batch=0)
    assert first == again and len(first) == 16
    # The data set has 16 rows: three more batches of four prompts see the rest of them.
    rows = [row["prompt"] for attempt in (1, 2, 3, 4) for row in other(attempt, 16, batch=0)[::4]]
    assert sorted(rows) == sorted(trainer.train_dataset["prompt"])


@pytest.mark.slow
def test_a_batch_that_cannot_be_filled_stops_the_run_with_its_state_saved(make, tmp_path):
    reward, calls = solved_from(batch=2)
    trainer = make(
        TrustRegionTrainer, **DAPO, steps=20, reward=reward, dynamic_sampling=DynamicSampling(max_batches=3)
    )
    checkpoints = CheckpointCallback("digest")
    trainer.add_callback(checkpoints)
    with refused("3 rollout batches", "0 of 4 prompts", "1.00", "step 8"):
        trainer.train()
    assert calls.count(8) == 3
    saved = checkpoints.newest(tmp_path / "TrustRegionTrainer")
    assert saved is not None and saved.name == "checkpoint-8"
    state = json.loads((saved / "trainer_state.json").read_text())
    assert state["global_step"] == 8
    assert json.loads((saved / "method_state.json").read_text())["generated_samples"] >= 5 * 16
