"""Lengths of responses are those of the sampled ids, whatever the masks are."""

import pytest
import torch
from accelerate import Accelerator
from trainer_cases import trained

from troll.experiment.settings import Regulariser
from troll.training.policies import LOG_PROBS
from troll.training.reference_kl import ReferenceKL
from troll.training.trainer import TrustRegionTrainer

LIMIT, BUFFER = 10, 4
LENGTHS = (10, 3, 8, 10)  # of each group; those of the limit do not end
PENALTIES = (-1.0, 0.0, -0.5, -1.0)
ONE_STEP = {"per_device_train_batch_size": 8, "steps_per_generation": 1}


class Lengths(TrustRegionTrainer):
    """Samples responses of `LENGTHS`; greedy ones have the limit."""

    def _generate_single_turn(self, prompt_ids, *rest, **named):
        end = self.processing_class.eos_token_id
        sampled = self.generation_config.do_sample
        lengths = [LENGTHS[i % 4] if sampled else LIMIT for i in range(len(prompt_ids))]
        return [[9 + i % 7] * (n - 1) + [9 if n == LIMIT else end] for i, n in enumerate(lengths)], None

    def _compute_loss(self, model, inputs):
        self.seen = inputs
        return super()._compute_loss(model, inputs)


def nothing(completions, **_):
    return [0.0] * len(completions)


def seen_by(make, estimator, masked):
    config = ONE_STEP | {"mask_truncated_completions": masked, "max_completion_length": LIMIT}
    method = {"estimator": estimator, "overlong": {"buffer": BUFFER}}
    return trained(make, Lengths, steps=1, config=config, reward=nothing, **method).seen


@pytest.mark.parametrize("masked", [False, True])
def test_the_overlong_penalty_counts_tokens_that_are_masked(make, masked):
    seen = seen_by(make, "dr-grpo", masked)
    by_length = dict(zip(seen["response_lengths"].tolist(), seen["rewards"].tolist(), strict=True))
    assert by_length == dict(zip(LENGTHS, PENALTIES, strict=True))
    finished = seen["response_lengths"] == 3
    # 0 minus the mean penalty of its group, as every response is punished for its length alone.
    assert seen["advantages"][finished, 0].tolist() == pytest.approx([0.625] * int(finished.sum()))
    truncated = seen["response_lengths"] == LIMIT
    assert bool((seen["advantages"][truncated] == 0).all()) == masked


@pytest.mark.parametrize("masked", [False, True])
def test_samples_and_the_greedy_baseline_are_counted_alike(make, masked):
    seen = seen_by(make, "remax", masked)
    assert seen["greedy_rewards"].tolist() == [-1.0] * 8
    finished = seen["response_lengths"] == 3
    assert seen["advantages"][finished, 0].tolist() == pytest.approx([1.0] * int(finished.sum()))


class OwnRewards(TrustRegionTrainer):
    """Replaces the rewards, as scripts do that compare responses with each other."""

    def _calculate_rewards(self, inputs, prompts, completions, ids):
        return torch.arange(float(len(ids))).unsqueeze(1)

    def _compute_loss(self, model, inputs):
        self.seen = inputs
        return super()._compute_loss(model, inputs)


def test_estimators_see_the_rewards_of_a_subclass(make):
    trainer = trained(make, OwnRewards, steps=1, config=ONE_STEP, estimator="rloo", trust_region="clip")
    assert sorted(trainer.seen["rewards"].tolist()) == list(range(8))
    of_last = trainer.seen["advantages"][trainer.seen["rewards"] == 7]
    assert of_last.amax() == pytest.approx(7 - (4 + 5 + 6) / 3)


@pytest.mark.parametrize("empty", [0, 1, 3])
def test_a_response_without_tokens_has_no_kl_to_the_reference(empty):
    reported = {}
    settings = Regulariser(coefficient=1.0, target=0.1, horizon=100, estimate="k1")
    kl = ReferenceKL(
        settings, Accelerator(cpu=True), lambda name, value: reported.update({name: float(value)})
    )
    mask = torch.ones(4, 5, dtype=torch.long)
    mask[4 - empty :] = 0
    batch = {LOG_PROBS: torch.full((4, 5), -1.0), "ref_per_token_logps": torch.full((4, 5), -1.4)}
    kl.measure(batch, mask)
    assert reported["kl_to_reference"] == pytest.approx(0.4)
    # 1 + clip(0.4 / 0.1 - 1, 0.2) * responses / horizon
    assert kl.controller.coefficient == pytest.approx(1 + 0.2 * (4 - empty) / 100)
