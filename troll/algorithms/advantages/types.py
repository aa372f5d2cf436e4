"""Inputs and outputs of advantage estimators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Advantages:
    """The result of an estimator.

    Attributes:
        advantages: [B, T]; 0 at masked positions.
        returns: [B, T] targets of the value function, before any whitening; None without a critic.
    """

    advantages: Tensor
    returns: Tensor | None = None


@dataclass(frozen=True)
class RewardBatch:
    """Inputs of an estimator: one whole rollout batch, over all groups and processes.

    Attributes:
        rewards: [B] outcome rewards.
        groups: [B] int64, equal for responses to the same prompt.
        mask: [B, T] bool, true at response tokens.
        values: [B, T] predictions of the critic.
        token_rewards: [B, T] rewards added to the outcome, e.g. -beta (log pi - log ref); 0 if unused.
        greedy_rewards: [B] reward of the greedy response to the same prompt.
    """

    rewards: Tensor
    groups: Tensor
    mask: Tensor
    values: Tensor | None
    token_rewards: Tensor
    greedy_rewards: Tensor | None

    def totals(self) -> Tensor:
        """Total reward of each response, [B]: the outcome plus its token rewards."""
        return self.rewards + self.token_rewards.sum(-1)

    def per_token(self) -> Tensor:
        """Rewards [B, T] with the outcome at the last response token."""
        position = torch.arange(self.mask.shape[1], device=self.mask.device)
        last = torch.where(self.mask, position, -1).max(-1).values if self.mask.shape[1] else None
        if last is None:
            return self.token_rewards
        return self.token_rewards + (position == last.unsqueeze(-1)) * self.rewards.unsqueeze(-1)

    def spread(self, per_response: Tensor) -> Tensor:
        """Broadcast values per response [B] to the response's tokens [B, T]."""
        return per_response.unsqueeze(-1) * self.mask

    def _group_index(self) -> Tensor:
        index: Tensor = torch.unique(self.groups, return_inverse=True)[1]
        return index

    def group_sum(self, values: Tensor) -> Tensor:
        """Sum of values [B] over each response's group, [B]."""
        index = self._group_index()
        return torch.zeros_like(values).index_add(0, index, values)[index]

    def group_sizes(self) -> Tensor:
        """Number of responses in each response's group, [B]."""
        return self.group_sum(torch.ones_like(self.rewards))

    def centred(self) -> Tensor:
        """R_i minus the mean of its group, [B]; R_i itself for a group of one.

        Exactly 0 where all rewards of the group are equal: otherwise, dividing by the standard deviation
        would amplify the rounding error of the mean.
        """
        totals, sizes = self.totals(), self.group_sizes()
        index, empty = self._group_index(), torch.zeros_like(totals)
        highest = empty.scatter_reduce(0, index, totals, "amax", include_self=False)[index]
        lowest = empty.scatter_reduce(0, index, totals, "amin", include_self=False)[index]
        deviation = torch.where(highest > lowest, totals - self.group_sum(totals) / sizes, 0.0)
        return torch.where(sizes > 1, deviation, totals)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Normalise to mean 0 and variance 1 over the response tokens (unbiased variance, + 1e-8 as in verl).

    The result is 0 at masked positions, and everywhere if there are fewer than two tokens or all are equal:
    dividing by the standard deviation would amplify the rounding error of the mean.
    """
    count, kept = mask.sum().clamp(min=1), values[mask]
    if not len(kept) or kept.max() <= kept.min():
        return torch.zeros_like(values)
    deviation = (values - (values * mask).sum() / count) * mask
    variance = deviation.square().sum() / (count - 1).clamp(min=1)
    return deviation * (variance + 1e-8).rsqrt()
