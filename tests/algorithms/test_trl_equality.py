"""Our baselines are TRL's: the same losses and gradients as `GRPOTrainer._compute_loss` on random batches.

TRL's own method runs on a substitute for the trainer: an upgrade of TRL that changes its loss is seen here.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import trl.trainer.grpo_trainer as trl_grpo
from torch import Tensor

from troll.algorithms.advantages import make_estimator
from troll.algorithms.aggregation import aggregate
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region

LONGEST = 20


def trl_loss(new: Tensor, batch: SimpleNamespace, **options: object) -> Tensor:
    """TRL's loss of one micro-batch of a one-process run without gradient accumulation."""
    chosen = {
        "loss_type": "dapo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "delta": None,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
        "off_policy_mask_threshold": None,
        **options,
    }
    trainer = SimpleNamespace(
        **chosen,  # TRL reads some of them from the trainer, and others from its arguments
        args=SimpleNamespace(**chosen, steps_per_generation=1, use_bias_correction_kl=False),
        beta=0.0,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        get_off_policy_mask=trl_grpo.GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=trl_grpo.GRPOTrainer.get_gamma_weights,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        _entropy_bonus_enabled=False,
        max_completion_length=LONGEST,
        current_gradient_accumulation_steps=1,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, gather_for_metrics=lambda x: x
        ),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *a, **k: (new, torch.zeros_like(new), None),
    )
    rows, tokens = new.shape
    inputs = {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.int64),
        "completion_ids": torch.zeros(rows, tokens, dtype=torch.int64),
        "completion_mask": batch.mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "num_items_in_batch": batch.mask.sum(),
    }
    return trl_grpo.GRPOTrainer._compute_loss(trainer, None, inputs)


def random_batch(seed: int, shift: float = 0.5) -> tuple[Tensor, SimpleNamespace]:
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(6, 9, generator=generator, dtype=torch.float64)
    new = (old + shift * torch.randn(6, 9, generator=generator, dtype=torch.float64)).requires_grad_()
    lengths = torch.randint(1, 10, (6,), generator=generator)
    mask = (torch.arange(9) < lengths.unsqueeze(1)).long()
    return new, SimpleNamespace(
        old=old, mask=mask, advantages=torch.randn(6, generator=generator, dtype=torch.float64)
    )


def ours(
    name: str, new: Tensor, batch: SimpleNamespace, **settings: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses per token, and metrics, of a rule on such a batch."""
    advantages = batch.advantages.unsqueeze(1).expand_as(new)
    losses = make_trust_region(name, **settings)(
        TokenPolicy(new), TokenPolicy(batch.old), advantages, batch.mask
    )
    return losses.per_token, losses.metrics


def assert_same(
    new: Tensor, batch: SimpleNamespace, ours: Tensor, aggregation: str, expected: Tensor
) -> None:
    """Our losses per token, aggregated, have the value and the gradient of a loss."""
    found = aggregate(ours, batch.mask, aggregation, max_response_tokens=LONGEST)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    gradients = (torch.autograd.grad(loss, new)[0] for loss in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


SEQUENCE = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
# our rule, its settings, our aggregation, TRL's options
PAIRS = {
    "clip": ("clip", {}, "token-mean", {"loss_type": "dapo"}),
    "clip grpo": ("clip", {}, "seq-mean-token-mean", {"loss_type": "grpo"}),
    "clip bnpo": ("clip", {}, "token-mean", {"loss_type": "bnpo"}),
    "clip-higher": ("clip", {"epsilon_high": 0.28}, "token-mean", {"epsilon_high": 0.28}),
    "clip dr-grpo": ("clip", {}, "seq-mean-token-sum-norm", {"loss_type": "dr_grpo"}),
    "gspo-clip": (
        "gspo-clip", {}, "seq-mean-token-mean", SEQUENCE,
    ),
    "gspo-clip-tight": (
        "gspo-clip-tight", {}, "seq-mean-token-mean",
        {**SEQUENCE, "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    ),
    "cispo": ("cispo", {"ratio_max": 1.5}, "token-mean", {"loss_type": "cispo", "epsilon_high": 1.5}),
    "sapo": ("sapo", {}, "seq-mean-token-mean", {"loss_type": "sapo"}),
    "sapo hot": (
        "sapo", {"temperature_positive": 3.0, "temperature_negative": 2.0}, "seq-mean-token-mean",
        {"loss_type": "sapo", "sapo_temperature_pos": 3.0, "sapo_temperature_neg": 2.0},
    ),
    "none": ("none", {}, "token-mean", {"epsilon_low": 1e9, "epsilon_high": 1e9}),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_same_loss_and_gradient(pair, seed):
    name, settings, aggregation, options = PAIRS[pair]
    # Sequence ratios of the tight bounds stay near one, so that both sides of the clip occur.
    new, batch = random_batch(seed, 1e-3 if pair == "gspo-clip-tight" else 0.5)
    per_token, _ = ours(name, new, batch, **settings)
    assert_same(new, batch, per_token, aggregation, trl_loss(new, batch, **options))


def test_the_cases_have_clipped_and_free_tokens():
    """A comparison of losses that never clip would show nothing."""
    for pair in ("clip", "gspo-clip-tight", "cispo"):
        name, settings, _, _ = PAIRS[pair]
        new, batch = random_batch(0, 1e-3 if pair == "gspo-clip-tight" else 0.5)
        _, metrics = ours(name, new, batch, **settings)
        outside = metrics["clip_fraction"][batch.mask.bool()]
        assert 0 < outside.mean() < 1, pair


def test_two_sided_clipping_of_trl_is_our_dual_clip():
    """TRL's delta caps r before the minimum: a dual clip at delta > 1 + high does the same."""
    new, batch = random_batch(4, 1.0)
    per_token, _ = ours("clip", new, batch, dual_clip=2.0)
    assert_same(new, batch, per_token, "token-mean", trl_loss(new, batch, delta=2.0))


def test_dr_grpo_advantages_are_trls_unscaled_group_advantages():
    """TRL (scale_rewards=False, "group"): mean over the group, unbiased deviation, epsilon 1e-4."""
    rewards = torch.randn(12, generator=torch.Generator().manual_seed(0))
    groups, mask = torch.arange(12) // 4, torch.ones(12, 1)
    by_group = rewards.view(-1, 4)
    centred = (by_group - by_group.mean(1, keepdim=True)).flatten()
    found = make_estimator("dr-grpo")(rewards, groups, mask).advantages[:, 0]
    torch.testing.assert_close(found, centred)
    scaled = centred / (by_group.std(1).repeat_interleave(4) + 1e-4)
    found = make_estimator("grpo", epsilon=1e-4)(rewards, groups, mask).advantages[:, 0]
    torch.testing.assert_close(found, scaled)
