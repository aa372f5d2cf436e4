"""Estimators that use a critic's values: GAE and PPO-max."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from troll.algorithms.advantages.types import Advantages, RewardBatch, whiten
from troll.algorithms.ranges import Positive, Share
from troll.common.errors import UserError


def gae(batch: RewardBatch, *, gamma: Share = 1.0, lam: Share = 1.0, whitened: bool = True) -> Advantages:
    """GAE: A_t = sum (gamma lam)^l delta_(t+l) with delta_t = r_t + gamma V_(t+1) - V_t.

    Source: GAE, arXiv 1506.02438; gamma = lam = 1 and whitening over the batch's response tokens as in verl.
    Returns A + V are computed before whitening. Masked tokens inside a response (tool output) are skipped.

    Settings:
        gamma: discount factor per token.
        lam: lambda, the weight of later temporal differences.
        whitened: normalise the batch's advantages to mean 0 and variance 1.
    """
    if batch.values is None:
        raise UserError("estimator 'gae' needs the critic's values [B, T]")
    rewards, values, mask = batch.per_token(), batch.values, batch.mask
    advantages = torch.zeros_like(rewards)
    next_value = running = rewards.new_zeros(rewards.shape[0])
    for t in range(rewards.shape[1] - 1, -1, -1):
        on = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(on, delta + gamma * lam * running, running)
        next_value = torch.where(on, values[:, t], next_value)
        advantages[:, t] = running
    advantages = advantages * mask
    returns = (advantages + values) * mask
    return Advantages(whiten(advantages, mask) if whitened else advantages, returns)


class RunningMoments:
    """Mean and standard deviation of all numbers seen so far (population variance, Chan's update)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0.0, 0.0, 0.0

    def update(self, values: Tensor) -> None:
        """Add values of any shape."""
        if not values.numel():
            return
        count, mean = float(values.numel()), float(values.double().mean())
        squares = float((values.double() - mean).square().sum())
        total, shift = self.count + count, mean - self.mean
        self.squares += squares + shift * shift * self.count * count / total
        self.mean += shift * count / total
        self.count = total

    @property
    def std(self) -> float:
        """Standard deviation; 1 if all values are equal, so that dividing by it has no effect."""
        deviation = (self.squares / self.count) ** 0.5 if self.count else 0.0
        return deviation if deviation > 1e-8 else 1.0


def ppo_max(
    batch: RewardBatch,
    moments: RunningMoments,
    *,
    reward_norm: Literal["mean-std", "std", "none"] = "mean-std",
    reward_clip: Positive | None = 0.8,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    whitened: bool = False,
) -> Advantages:
    """PPO-max: outcome rewards normalised by running moments and clipped, then GAE.

    Source: "Secrets of RLHF I", arXiv 2307.04964, section 5: clip((R - mean) / std, -d, d) with historical
    moments, d = 0.8 in its ablations and 0.3 in section 5.3. The token-level KL penalty of the recipe is
    part of `token_rewards`; value clipping and critic pre-training are done by the trainer. `ppo-max-code`
    has the settings of the released code: division by the running standard deviation only, no clipping.

    Settings:
        reward_norm: subtract the running mean and divide by the running standard deviation ("mean-std"), only
            divide ("std"), or neither ("none").
        reward_clip: largest absolute reward after normalisation; none disables clipping.
        gamma: discount factor per token.
        lam: lambda, the weight of later temporal differences.
        whitened: normalise the batch's advantages to mean 0 and variance 1.
    """
    moments.update(batch.rewards)
    rewards = batch.rewards
    if reward_norm != "none":
        rewards = (rewards - (moments.mean if reward_norm == "mean-std" else 0.0)) / moments.std
    if reward_clip is not None:
        rewards = rewards.clamp(-reward_clip, reward_clip)
    return gae(replace(batch, rewards=rewards), gamma=gamma, lam=lam, whitened=whitened)
