"""Estimators without a critic; see `troll.algorithms.advantages` for their conventions."""

from __future__ import annotations

import torch
from torch import Tensor

from troll.algorithms.advantages.types import Advantages, RewardBatch, whiten
from troll.algorithms.ranges import Positive, Share
from troll.common.errors import UserError


def _returns_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = sum over later response tokens of gamma^(steps) r, [B, T]; masked tokens are not steps."""
    running = torch.zeros_like(rewards[:, 0]) if rewards.shape[1] else rewards.new_zeros(0)
    result = torch.zeros_like(rewards)
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        result[:, t] = running
    return result * mask


def grpo(batch: RewardBatch, *, epsilon: Positive = 1e-6) -> Advantages:
    """GRPO: (R - mean) / (std + epsilon) within the group.

    Source: GRPO, arXiv 2402.03300. The standard deviation is the unbiased one (n - 1), as in verl
    (epsilon 1e-6) and TRL (1e-4).

    Settings:
        epsilon: added to the standard deviation.
    """
    sizes = batch.group_sizes()
    deviation = batch.centred()
    variance = batch.group_sum(deviation.square()) / (sizes - 1).clamp(min=1)
    scaled = deviation / (variance.sqrt() + epsilon)
    return Advantages(batch.spread(torch.where(sizes > 1, scaled, deviation)))


def dr_grpo(batch: RewardBatch) -> Advantages:
    """Dr. GRPO: R - mean of the group, no division; uses the aggregation seq-mean-token-sum-norm.

    Source: Dr. GRPO, arXiv 2503.20783.
    """
    return Advantages(batch.spread(batch.centred()))


def rloo(batch: RewardBatch) -> Advantages:
    """RLOO: R minus the mean reward of the group's other responses, = n / (n - 1) (R - mean).

    Source: RLOO, arXiv 2402.14740.
    """
    sizes = batch.group_sizes()
    scale = torch.where(sizes > 1, sizes / (sizes - 1).clamp(min=1), 1.0)
    return Advantages(batch.spread(batch.centred() * scale))


def reinforce_plus_plus(batch: RewardBatch, *, gamma: Share = 1.0) -> Advantages:
    """REINFORCE++: discounted returns-to-go, whitened over all response tokens of the batch; no groups.

    Source: REINFORCE++, arXiv 2501.03262, as in verl; its token-level KL penalty is part of
    `token_rewards`. Masked tokens inside a response (tool output) pass the return on to the preceding tokens;
    verl sets the return to zero there, so the preceding tokens get none.

    Settings:
        gamma: discount factor per token.
    """
    returns = _returns_to_go(batch.per_token(), batch.mask, gamma)
    return Advantages(whiten(returns, batch.mask), None)


def reinforce_plus_plus_baseline(batch: RewardBatch) -> Advantages:
    """REINFORCE++-baseline: R - mean of the group, whitened over all response tokens of the batch.

    Source: REINFORCE++, arXiv 2501.03262, as in verl.
    """
    return Advantages(whiten(batch.spread(batch.centred()), batch.mask))


def remax(batch: RewardBatch) -> Advantages:
    """ReMax: return-to-go minus the reward of the greedy response to the same prompt.

    Source: ReMax, arXiv 2310.10505; one greedy response per prompt (`greedy_rewards`).
    """
    if batch.greedy_rewards is None:
        raise UserError(
            "estimator 'remax' needs greedy_rewards [B]: the reward of each prompt's greedy response"
        )
    returns = _returns_to_go(batch.per_token(), batch.mask, 1.0)
    return Advantages((returns - batch.greedy_rewards.unsqueeze(-1)) * batch.mask)


def opo(batch: RewardBatch) -> Advantages:
    """OPO: R minus the length-weighted mean of the group, the minimum-variance baseline.

    Source: verl, core_algos.py (opo). A group without any token has no baseline.
    """
    totals = batch.totals()
    lengths = batch.mask.sum(-1).to(totals.dtype)
    weight = batch.group_sum(lengths)
    baseline = batch.group_sum(lengths * totals) / weight.clamp(min=1)
    return Advantages(batch.spread(torch.where(batch.group_sizes() > 1, totals - baseline, totals)))
