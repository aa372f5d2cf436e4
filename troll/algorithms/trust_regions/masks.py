"""Rules that drop or penalise tokens by how far their probability has moved: drpo, spo, ipo, icepop, cppo.

p and q are the new and the old probability of the sampled token, and r = p / q.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from troll.algorithms.ranges import Limit, NotNegative, Positive
from troll.algorithms.trust_regions.types import TokenLosses, TokenPolicy, log_ratio


def _probabilities(new: TokenPolicy, old: TokenPolicy) -> tuple[Tensor, Tensor]:
    """The probabilities p and q [B, T] of the sampled tokens, without gradient, at least float32."""
    dtype = log_ratio(new, old).dtype
    return new.log_probs.detach().to(dtype).exp(), old.log_probs.to(dtype).exp()


def _quadratic(ratio: Tensor, advantages: Tensor, weight: Tensor, threshold: float) -> TokenLosses:
    pull = weight * (ratio - 1.0).square() / (2.0 * threshold)
    # Where the gradient is reversed: A (r - 1) > 0 and weight |r - 1| > threshold.
    value = ratio.detach()
    reversed_ = (advantages * (value - 1.0) > 0) & (weight * (value - 1.0).abs() > threshold)
    per_token = -advantages * ratio + advantages.abs() * pull
    return TokenLosses(per_token, {"clip_fraction": reversed_.float(), "pull": pull})


def drpo(
    new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, *, threshold: Positive = 12.5
) -> TokenLosses:
    """DRPO: -A r + |A| q (r - 1)^2 / (2 threshold), DPPO's total variation as a smooth penalty.

    Source: DRPO, arXiv 2606.09821 (threshold 12.5), as in Tencent-Hunyuan/UniRL, drpo.py.

    Metrics: clip_fraction (tokens whose gradient is reversed), pull (the penalty).

    Settings:
        threshold: d, the q |r - 1| at which the gradient of -A r is cancelled.
    """
    ratio = log_ratio(new, old).exp()
    return _quadratic(ratio, advantages, _probabilities(new, old)[1], threshold)


def spo(
    new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, *, threshold: Positive = 12.5
) -> TokenLosses:
    """SPO: -A r + |A| (r - 1)^2 / (2 threshold), a smooth penalty on the ratio.

    Source: the baseline of arXiv 2606.09821 (threshold 12.5), as in Tencent-Hunyuan/UniRL, drpo.py
    (penalty_mu_weighted off).

    Metrics: clip_fraction (tokens whose gradient is reversed), pull (the penalty).

    Settings:
        threshold: d, the |r - 1| at which the gradient of -A r is cancelled.
    """
    ratio = log_ratio(new, old).exp()
    return _quadratic(ratio, advantages, torch.ones_like(ratio), threshold)


def ipo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon: Limit = 0.3,
    coefficient: NotNegative = 0.0,
) -> TokenLosses:
    """IPO of prime-rl: -A r where |p - q| <= epsilon, 0 elsewhere, + coefficient (log r)^2.

    Source: PrimeIntellect-ai/prime-rl, loss.py (ipo_loss_fn). Defaults are its latest (0.3 and no second
    term; 0.1 and 1e-3 until August 2026). As in that code, dropped tokens keep the second term.

    Metrics: clip_fraction (dropped tokens).

    Settings:
        epsilon: largest |p - q| of a token that is kept.
        coefficient: weight of (log r)^2.
    """
    difference = log_ratio(new, old)
    p, q = _probabilities(new, old)
    outside = (p - q).abs() > epsilon
    per_token = (-advantages * difference.exp()).masked_fill(outside, 0.0) + coefficient * difference.square()
    return TokenLosses(per_token, {"clip_fraction": outside.float()})


def icepop(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    ratio_min: Limit = 0.5,
    ratio_max: Limit = 5.0,
) -> TokenLosses:
    """IcePop: -A r where ratio_min <= r <= ratio_max, 0 elsewhere.

    Source: arXiv 2510.18855 (0.5 and 5), where r compares trainer and sampler and the mask multiplies a
    clipped loss; the loss is that of PrimeIntellect-ai/prime-rl (whose lower bound is 0.2).

    Metrics: clip_fraction (dropped tokens).

    Settings:
        ratio_min: smallest ratio of a token that is kept.
        ratio_max: largest ratio of a token that is kept.
    """
    ratio = log_ratio(new, old).exp()
    value = ratio.detach()
    outside = (value < ratio_min) | (value > ratio_max)
    return TokenLosses((-advantages * ratio).masked_fill(outside, 0.0), {"clip_fraction": outside.float()})


def cppo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    threshold: Limit = 0.15,
    weight_min: Annotated[float, Field(gt=0, le=1)] = 0.8,
    budget: NotNegative = 0.02,
    adaptive_budget: bool = True,
) -> TokenLosses:
    """CPPO: drops tokens that moved too far for their position, or after a prefix that moved too far.

    With D_t = |p - q| of the t-th token of T, w_t = 1 - (1 - weight_min) (t - 1) / (T - 1), Z_t = w_t D_t
    and the sums S, W of Z and w over the preceding tokens: -A r where A (r - 1) <= 0 or
    Z_t <= min(threshold, threshold + b W - S). The budget b of a response is its 90th percentile of D
    within [budget, 2 budget], or budget itself where adaptive_budget is off.

    Source: CPPO, arXiv 2606.10968, equations 8 to 11 and section 4.1 (threshold 0.15, 0.2 for its mixture of
    experts; weight_min 0.8; budget 0.02 adaptive for base models, 0.015 fixed for a post-trained one), with
    the binary total variation of its ablation and of Tencent-Hunyuan/UniRL, cppo.py, in place of 20 kept
    tokens.

    Metrics: clip_fraction (dropped tokens), divergence (D).

    Settings:
        threshold: largest weighted divergence of a token that is kept.
        weight_min: weight of a response's last token; the first has 1.
        budget: b, allowed mean divergence of the preceding tokens; the smallest b if it adapts.
        adaptive_budget: compute b from the divergences of the response, within [budget, 2 budget].
    """
    ratio = log_ratio(new, old).exp()
    with torch.no_grad():
        p, q = _probabilities(new, old)
        divergence = (p - q).abs() * mask
        place = mask.cumsum(-1) - 1
        last = (mask.sum(-1, keepdim=True) - 1).clamp(min=1)
        weight = (1.0 - (1.0 - weight_min) * place / last).to(divergence.dtype) * mask
        weighted = weight * divergence
        before = weighted.cumsum(-1) - weighted, weight.cumsum(-1) - weight
        allowed: Tensor | float = budget
        if adaptive_budget:
            valid = divergence.masked_fill(~mask, torch.nan)
            allowed = valid.nanquantile(0.9, dim=-1, keepdim=True).nan_to_num(0.0).clamp(budget, 2.0 * budget)
        bound = (threshold + allowed * before[1] - before[0]).clamp(max=threshold)
        outside = (advantages * (ratio - 1.0) > 0) & (weighted > bound)
    metrics = {"clip_fraction": outside.float(), "divergence": divergence}
    return TokenLosses((-advantages * ratio).masked_fill(outside, 0.0), metrics)
