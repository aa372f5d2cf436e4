"""Rules whose decisions depend on all tokens of an optimiser step: m2po, bapo, clip-cov, kl-cov.

The original implementations use the tokens of one call of the loss, which depend on how the mini-batch was
split to save memory. Here every part and process receives the same `StepTokens`.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from troll.algorithms.ranges import Limit, NotNegative, Positive, Share
from troll.algorithms.trust_regions.ratio import (
    DualClip,
    clip_metrics,
    clipped_between,
    clipped_surrogate,
    dual_clipped,
)
from troll.algorithms.trust_regions.types import StepTokens, TokenLosses, TokenPolicy, log_ratio


def m2po(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    step_tokens: StepTokens,
    *,
    threshold: NotNegative = 0.04,
) -> TokenLosses:
    """M2PO: drops the farthest tokens until the mean (log r)^2 of the rest is within a bound.

    Of the step's tokens that move with their advantage (A log r > 0), those of largest (log r)^2 are dropped
    until the mean over the rest is <= threshold; the loss of all other tokens is -A r. Mean losses count
    dropped tokens.

    Source: M2PO, arXiv 2510.01161 (0.04), algorithm 1, as in agentscope-ai/Trinity-RFT,
    m2po_policy_loss.py.

    Metrics: clip_fraction (dropped tokens).

    Settings:
        threshold: largest mean (log r)^2 of the tokens that move with their advantage and are kept.
    """
    with torch.no_grad():
        moving = (step_tokens.advantages * step_tokens.log_ratio > 0).nonzero().squeeze(-1)
        values, order = step_tokens.log_ratio[moving].square().sort(stable=True)
        means = values.cumsum(0) / torch.arange(1, len(values) + 1, device=values.device)
        dropped = torch.zeros_like(step_tokens.log_ratio, dtype=torch.bool)
        dropped[moving[order[int((means <= threshold).sum()) :]]] = True
        outside = step_tokens.of_micro_batch(dropped, mask)
    per_token = (-advantages * log_ratio(new, old).exp()).masked_fill(outside, 0.0)
    return TokenLosses(per_token, {"clip_fraction": outside.float()})


def balanced_bounds(
    ratio: Tensor, advantages: Tensor, low: tuple[float, float, float], high: tuple[float, float, float],
    target: float,
) -> tuple[float, float]:  # fmt: skip
    """BAPO's lower and upper bound for a step.

    The positive mass is the sum of A min(r, high) where A >= 0, the negative mass that of -A max(r, low)
    where A < 0. First the lower bound is raised, then the upper bound, until positive / negative >= target.
    Raising the lower bound increases the negative mass, so it reaches its last value before the upper bound
    moves.

    Args:
        ratio: [N].
        advantages: [N].
        low: first value, last value and step of the lower bound.
        high: first value, last value and step of the upper bound.
        target: target of the positive over the negative mass.
    """
    lower, upper = low[0], high[0]

    def met() -> bool:
        weight = torch.where(advantages >= 0, ratio.clamp(max=upper), ratio.clamp(min=lower))
        signed = weight * advantages
        negative = float(-signed.clamp(max=0.0).sum())
        return negative <= 0.0 or float(signed.clamp(min=0.0).sum()) / (negative + 1e-8) >= target

    while lower < low[1] and not met():
        lower = min(lower + low[2], low[1])
    while upper < high[1] and not met():
        upper = min(upper + high[2], high[1])
    return lower, upper


def bapo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    step_tokens: StepTokens,
    *,
    ratio_min: Share = 0.6,
    ratio_min_last: Share = 0.8,
    ratio_max: Annotated[float, Field(ge=1)] = 1.2,
    ratio_max_last: Annotated[float, Field(ge=1)] = 2.0,
    bound_step: Positive = 0.05,
    target: NotNegative = 1.0,
    dual_clip: DualClip | None = None,
) -> TokenLosses:
    """BAPO: clip whose bounds are raised until positive advantages weigh as much as negative ones.

    See `balanced_bounds`: from ratio_min to ratio_min_last, then from ratio_max to ratio_max_last.

    Source: BAPO, arXiv 2510.18927; follows its recipe for verl (policy_loss.py) and its values. The
    paper's algorithm 1 moves the upper bound first, compares the positive mass with the sum of both
    (target 0.4) and goes from 0.6 to 0.9 by 0.02 and from 1.2 to 3 by 0.05. The recipe also has a dual clip
    at 3, which the paper's objective lacks: off here.

    Metrics: ratio_low_bound, ratio_high_bound, and those of `clip`.

    Settings:
        ratio_min: first value of the lower bound.
        ratio_min_last: last value of the lower bound.
        ratio_max: first value of the upper bound.
        ratio_max_last: last value of the upper bound.
        bound_step: increment of the bounds.
        target: positive over negative mass at which the bounds stop.
        dual_clip: largest ratio with a gradient where A < 0; none disables it.
    """
    low, high = balanced_bounds(
        step_tokens.log_ratio.exp(),
        step_tokens.advantages,
        (ratio_min, ratio_min_last, bound_step),
        (ratio_max, ratio_max_last, bound_step),
        target,
    )
    ratio = log_ratio(new, old).exp()
    per_token, up, down = clipped_between(ratio, advantages, low, high)
    per_token, down = dual_clipped(per_token, down, ratio, advantages, dual_clip)
    bounds = {
        "ratio_low_bound": torch.full_like(ratio, low),
        "ratio_high_bound": torch.full_like(ratio, high),
    }
    return TokenLosses(per_token, clip_metrics(up, down) | bounds)


def _covariance(step: StepTokens) -> Tensor:
    """(A - mean A) (log pi - mean log pi) of the step's tokens [N]."""
    if not len(step.log_probs):
        return step.log_probs
    return (step.advantages - step.advantages.mean()) * (step.log_probs - step.log_probs.mean())


def _count(share: float, tokens: int) -> int:
    """The share as a number of tokens: at least 1, as in verl, but 0 for a share of 0."""
    return min(max(int(share * tokens), 1), tokens) if share > 0 else 0


def clip_cov(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    step_tokens: StepTokens,
    *,
    share: Share = 2e-4,
    covariance_min: float = 1.0,
    covariance_max: Limit = 5.0,
    epsilon_low: Limit = 0.2,
    epsilon_high: Limit = 0.2,
) -> TokenLosses:
    """Clip-Cov: clip, dropping a few random tokens of high covariance of advantage and log-probability.

    Drops a share of the step's tokens (at least one), chosen at random among those that are not clipped and
    whose (A - mean A) (log pi - mean log pi) is between covariance_min and covariance_max. This slows down
    the decrease of the entropy.

    Source: arXiv 2505.22617, as in verl (clip_cov: 2e-4, 1 and 5). Seeded by run and optimiser step.

    Metrics: clip_fraction (dropped or clipped tokens), masked_fraction (dropped tokens), and those of `clip`.

    Settings:
        share: share of the step's tokens that is dropped at random.
        covariance_min: smallest covariance of a token that may be dropped.
        covariance_max: largest covariance of a token that may be dropped.
        epsilon_low: how far below 1 the ratio may fall before the gradient is cut.
        epsilon_high: how far above 1 the ratio may rise before the gradient is cut.
    """
    with torch.no_grad():
        ratio = step_tokens.log_ratio.exp()
        _, up, down = clipped_surrogate(ratio, step_tokens.advantages, epsilon_low, epsilon_high)
        covariance = _covariance(step_tokens)
        between = (covariance > covariance_min) & (covariance < covariance_max)
        candidates = (between & ~(up | down)).nonzero().squeeze(-1)
        # Sorted, because splitting by length changes the order of the responses.
        candidates = candidates[covariance[candidates].argsort()]
        generator = torch.Generator().manual_seed(step_tokens.seed)
        chosen = torch.randperm(len(candidates), generator=generator)[: _count(share, len(covariance))]
        dropped = torch.zeros_like(covariance, dtype=torch.bool)
        dropped[candidates[chosen.to(candidates.device)]] = True
        outside = step_tokens.of_micro_batch(dropped, mask)
    per_token, up, down = clipped_surrogate(log_ratio(new, old).exp(), advantages, epsilon_low, epsilon_high)
    metrics = clip_metrics(up, down)
    metrics |= {"clip_fraction": (up | down | outside).float(), "masked_fraction": outside.float()}
    return TokenLosses(per_token.masked_fill(outside, 0.0), metrics)


def kl_cov(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    step_tokens: StepTokens,
    *,
    share: Share = 2e-4,
    coefficient: NotNegative = 1.0,
) -> TokenLosses:
    """KL-Cov: -A r, + coefficient |log r| on tokens of highest covariance of advantage and log-probability.

    These are the share of the step's tokens (at least one) with the largest
    (A - mean A) (log pi - mean log pi).

    Source: arXiv 2505.22617, as in verl (compute_policy_loss_kl_cov: 2e-4 and 1; recipes for 7B models: 2e-3
    and 1). Where r is 1 up to rounding, the sign of the penalty's gradient is arbitrary.

    Metrics: penalised_fraction.

    Settings:
        share: share of the step's tokens, those of largest covariance, that is penalised.
        coefficient: weight of |log r| on these tokens.
    """
    with torch.no_grad():
        covariance = _covariance(step_tokens)
        largest = covariance.topk(_count(share, len(covariance))).indices
        penalised = torch.zeros_like(covariance, dtype=torch.bool)
        penalised[largest] = True
        selected = step_tokens.of_micro_batch(penalised, mask)
    difference = log_ratio(new, old)
    per_token = -advantages * difference.exp() + coefficient * difference.abs() * selected
    return TokenLosses(per_token, {"penalised_fraction": selected.float()})
