"""Rules that decide over all tokens of an optimiser step: m2po, bapo, clip-cov, kl-cov.

Their originals decide over whatever one call of the loss sees, which depends on how a mini-batch was cut to
save memory. Here the step's tokens come as `StepTokens`, the same for each of its parts and processes.
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

    Of the step's tokens that move with their advantage (A log r > 0), the largest (log r)^2 are dropped until
    the mean of those that stay is <= threshold; -A r on all others. Means of losses count dropped tokens.

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
        outside = step_tokens.own(dropped, mask)
    per_token = (-advantages * log_ratio(new, old).exp()).masked_fill(outside, 0.0)
    return TokenLosses(per_token, {"clip_fraction": outside.float()})


def balanced_bounds(
    ratio: Tensor, advantages: Tensor, low: tuple[float, float, float], high: tuple[float, float, float],
    target: float,
) -> tuple[float, float]:  # fmt: skip
    """BAPO's bounds for a step.

    The positive mass is the sum of A min(r, high) where A >= 0, the negative one that of -A max(r, low) where
    A < 0. The lower bound goes up first, then the upper one, until positive / negative >= target. Measured
    like this, a higher lower bound adds to the negative mass: it is at its last value before the upper one
    moves.

    Args:
        ratio: [N].
        advantages: [N].
        low: first and last value of the lower bound, and its step.
        high: the same of the upper bound.
        target: see above.
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
    """BAPO: clip whose bounds move until positive advantages weigh as much as negative ones.

    See `balanced_bounds`: from ratio_min up to ratio_min_last, then from ratio_max up to ratio_max_last.

    Source: BAPO, arXiv 2510.18927; its recipe for verl (policy_loss.py) is followed with its values. The
    paper's algorithm 1 moves the upper bound first, compares the positive mass with the sum of both
    (target 0.4) and goes from 0.6 to 0.9 by 0.02 and from 1.2 to 3 by 0.05. The recipe also has a dual clip
    at 3, which the paper's objective lacks: off here.

    Metrics: ratio_low_bound, ratio_high_bound, and those of `clip`.

    Settings:
        ratio_min: first value of the lower bound.
        ratio_min_last: last value of the lower bound.
        ratio_max: first value of the upper bound.
        ratio_max_last: last value of the upper bound.
        bound_step: how far a bound moves at a time.
        target: positive over negative mass at which the bounds stop.
        dual_clip: largest ratio with a gradient where A < 0; none for no such bound.
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
    """At least one token of a step, as in verl; none for a share of 0."""
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
    """Clip-Cov: clip, without a few random tokens whose advantage and log-probability covary strongly.

    Of the step's tokens whose (A - mean A) (log pi - mean log pi) lies between covariance_min and
    covariance_max and which clip leaves alone, a share of all tokens (at least one) is dropped at random, so
    that the entropy falls more slowly.

    Source: arXiv 2505.22617, as in verl (clip_cov: 2e-4, 1 and 5). Seeded by run and optimiser step.

    Metrics: clip_fraction (dropped or clipped tokens), masked_fraction (dropped ones), and `clip`'s.

    Settings:
        share: of the step's tokens that is dropped at random.
        covariance_min: least covariance of a token that may be dropped.
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
        # In an order that does not depend on that of the responses, which cutting by length changes.
        candidates = candidates[covariance[candidates].argsort()]
        generator = torch.Generator().manual_seed(step_tokens.seed)
        chosen = torch.randperm(len(candidates), generator=generator)[: _count(share, len(covariance))]
        dropped = torch.zeros_like(covariance, dtype=torch.bool)
        dropped[candidates[chosen.to(candidates.device)]] = True
        own = step_tokens.own(dropped, mask)
    per_token, up, down = clipped_surrogate(log_ratio(new, old).exp(), advantages, epsilon_low, epsilon_high)
    metrics = clip_metrics(up, down)
    metrics |= {"clip_fraction": (up | down | own).float(), "masked_fraction": own.float()}
    return TokenLosses(per_token.masked_fill(own, 0.0), metrics)


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
    """KL-Cov: -A r, + coefficient |log r| on the tokens whose advantage and log-probability covary most.

    These are a share of the step's tokens (at least one), those of the largest
    (A - mean A) (log pi - mean log pi).

    Source: arXiv 2505.22617, as in verl (compute_policy_loss_kl_cov: 2e-4 and 1; recipes for 7B models: 2e-3
    and 1). Where r is 1 up to rounding, the sign of the penalty's gradient is chance.

    Metrics: penalised_fraction.

    Settings:
        share: of the step's tokens, those of the largest covariance, that is penalised.
        coefficient: weight of |log r| on these tokens.
    """
    with torch.no_grad():
        covariance = _covariance(step_tokens)
        largest = covariance.topk(_count(share, len(covariance))).indices
        penalised = torch.zeros_like(covariance, dtype=torch.bool)
        penalised[largest] = True
        own = step_tokens.own(penalised, mask)
    difference = log_ratio(new, old)
    per_token = -advantages * difference.exp() + coefficient * difference.abs() * own
    return TokenLosses(per_token, {"penalised_fraction": own.float()})
