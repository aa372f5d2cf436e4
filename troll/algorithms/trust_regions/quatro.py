"""QUATRO, RECONSTRUCTED: one KL trust region per prompt, solved by its dual.

The published formulas (arXiv 2602.04620) were not available when this was written. Confirmed by secondary
sources: a KL constraint per prompt, Lagrangian dual variables per prompt, a log-ratio term that stabilises.
The rest (direction of the KL, length normalisation, solver, all constants) is our interpretation; results
with these rules do not replicate that paper.

For one prompt with responses i = 1..G from the old policy, rewards A_i and w_i = pi / pi_old, solve

    max E_old[w A]   subject to   KL(pi || pi_old) <= delta,   E_old[w] = 1.

The optimum is log w*_i = A_i / lambda - log Z with Z = mean_i exp(A_i / lambda), and lambda is the minimiser
of the dual lambda delta + lambda log Z(lambda), i.e. KL(w*) = delta. That is a point on the exponential path
from the uniform distribution over the group along A, at step 1 / lambda: TROLL's one-dimensional problem.
The gradient of the Lagrangian is E_old[w (A - lambda log w - lambda log Z) grad log pi].
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from troll.algorithms.backends import wide_dtype
from troll.algorithms.projection import project
from troll.algorithms.ranges import Positive
from troll.algorithms.trust_regions.types import (
    LOG_RATIO_LIMIT,
    GroupRewards,
    TokenLosses,
    TokenPolicy,
    log_ratio,
)

LogWeight = Literal["mean", "sum", "token"]


def solve_duals(
    group_rewards: Tensor, kl_bound: float, multiplier_min: float = 1e-2, multiplier_max: float = 1e4
) -> tuple[Tensor, Tensor]:
    """Dual variables of each row's group.

    Args:
        group_rewards: [B, G], padded with NaN.
        kl_bound: delta in nats, of the distribution over the group's responses.
        multiplier_min: floor of lambda, reached where the bound allows all mass on the best responses.
        multiplier_max: ceiling of lambda, for groups whose rewards hardly differ.

    Returns:
        lambda [B] and log Z [B]. Groups of equal rewards, which have no optimal lambda, get the floor.
    """
    rewards = group_rewards.to(wide_dtype(group_rewards.device))
    present = ~rewards.isnan()
    # Only differences matter; centring keeps the exponentials in range.
    centre = rewards.nan_to_num(nan=-torch.inf).max(-1, keepdim=True).values
    shifted = (rewards - centre).masked_fill(~present, -torch.inf)
    uniform = torch.zeros_like(shifted).masked_fill(~present, -torch.inf).log_softmax(-1)
    tilted = (shifted / multiplier_min).log_softmax(-1)
    step_size = project(tilted, uniform, kl_bound).step_size
    multiplier = (multiplier_min / step_size).clamp(max=multiplier_max)
    log_z = (
        torch.logsumexp(shifted / multiplier.unsqueeze(-1) + uniform, dim=-1)
        + centre.squeeze(-1) / multiplier
    )
    return multiplier, log_z


def _parts(
    new: TokenPolicy,
    old: TokenPolicy,
    mask: Tensor,
    group_rewards: GroupRewards,
    kl_bound: float,
    log_weight: LogWeight,
    multiplier_min: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log w, lambda, log Z and A, each broadcastable to [B, T]; lambda is 0 for groups without signal."""
    token = log_ratio(new, old)
    if log_weight == "token":
        statistic = token
    else:
        statistic = token.sum(-1, keepdim=True)
        if log_weight == "mean":
            statistic = statistic / mask.sum(-1, keepdim=True).clamp(min=1)
        statistic = statistic.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expand_as(token)
    multiplier, log_z = solve_duals(group_rewards.of_group, kl_bound, multiplier_min)
    rewards = group_rewards.of_group
    highest = rewards.nan_to_num(nan=-torch.inf).max(-1).values
    lowest = rewards.nan_to_num(nan=torch.inf).min(-1).values
    multiplier = torch.where(highest > lowest, multiplier, 0.0)
    multiplier, log_z, reward = (x.to(token).unsqueeze(-1) for x in (multiplier, log_z, group_rewards.own))
    return statistic, multiplier, log_z, reward


def quatro_gradient(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    group_rewards: GroupRewards,
    *,
    kl_bound: Positive = 0.05,
    log_weight: LogWeight = "mean",
    multiplier_min: Positive = 1e-2,
) -> TokenLosses:
    """QUATRO, RECONSTRUCTED, gradient form: -sg(w (A - lambda (log w + log Z))) log w.

    Not the published formulas, see the module docstring. Uses the rewards of the group and ignores the
    advantages. The loss of groups with equal rewards is 0. Metrics: multiplier, effective_advantage.

    Settings:
        kl_bound: delta, largest KL over a group's responses, nats.
        log_weight: log w of a token: mean or sum of its response's log-ratios, or the token's log-ratio.
        multiplier_min: smallest lambda, reached where the bound allows all mass on the best responses.
    """
    log_w, multiplier, log_z, rewards = _parts(
        new, old, mask, group_rewards, kl_bound, log_weight, multiplier_min
    )
    value = log_w.detach()
    effective = torch.where(multiplier > 0, rewards - multiplier * (value + log_z), 0.0)
    per_token = -(value.exp() * effective) * log_w
    return TokenLosses(per_token, _metrics(multiplier, effective))


def quatro_regression(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    group_rewards: GroupRewards,
    *,
    kl_bound: Positive = 0.05,
    log_weight: LogWeight = "mean",
    multiplier_min: Positive = 1e-2,
) -> TokenLosses:
    """QUATRO, RECONSTRUCTED, regression form: (lambda / 2) (log w - (A / lambda - log Z))^2.

    Not the published formulas, see the module docstring. Same stationary point and same on-policy gradient as
    the gradient form. The loss of groups with equal rewards is 0. Metrics: multiplier, effective_advantage.

    Settings:
        kl_bound: delta, largest KL over a group's responses, nats.
        log_weight: log w of a token: mean or sum of its response's log-ratios, or the token's log-ratio.
        multiplier_min: smallest lambda, reached where the bound allows all mass on the best responses.
    """
    log_w, multiplier, log_z, rewards = _parts(
        new, old, mask, group_rewards, kl_bound, log_weight, multiplier_min
    )
    signal = multiplier > 0
    safe = torch.where(signal, multiplier, 1.0)
    error = log_w - (rewards / safe - log_z)
    per_token = torch.where(signal, 0.5 * safe * error.square(), 0.0)
    effective = torch.where(signal, -safe * error.detach(), 0.0)
    return TokenLosses(per_token, _metrics(multiplier, effective))


def _metrics(multiplier: Tensor, effective: Tensor) -> dict[str, Tensor]:
    return {"multiplier": multiplier.expand_as(effective), "effective_advantage": effective}
