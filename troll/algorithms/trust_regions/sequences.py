"""Rules on whole responses: luspo, gmpo, vespo, topr, opsm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from troll.algorithms.ranges import Limit, NotNegative, Positive
from troll.algorithms.trust_regions.ratio import (
    SEQUENCE_LOG_WEIGHT_LIMIT,
    clip_metrics,
    clipped_surrogate,
    gspo_clip,
)
from troll.algorithms.trust_regions.types import LOG_RATIO_LIMIT, TokenLosses, TokenPolicy, log_ratio

# The smallest log-weight of a response in VESPO, as in its authors' code and TRL.
VESPO_LOG_WEIGHT_MIN = math.log(1e-8)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Means [B, 1] over the tokens of each response; 0 for empty ones."""
    return (values * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def luspo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: Limit = 2e-3,
    epsilon_high: Limit = 2.5e-3,
) -> TokenLosses:
    """LUSPO: the loss of `gspo-clip`, summed over the tokens of a response instead of averaged.

    Source: LUSPO, arXiv 2602.05261 (section 5.1: 2e-3 and 2.5e-3), as in TRL (loss_type "luspo" with
    importance_sampling_level "sequence"). Requires the aggregation seq-mean-token-sum.

    Settings:
        epsilon_low: how far below 1 the ratio of a response may fall before the gradient is cut.
        epsilon_high: how far above 1 the ratio of a response may rise before the gradient is cut.
    """
    return gspo_clip(new, old, advantages, mask, epsilon_low=epsilon_low, epsilon_high=epsilon_high)


def gmpo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: Limit = 0.4,
    epsilon_high: Limit = 0.4,
) -> TokenLosses:
    """GMPO: the geometric mean of a response's ratios, each clipped in log space.

    -A exp(mean l'), with l' = s min(s l, s clip(l, -epsilon_low, epsilon_high)), l = log r and s the sign of
    A. As for `gspo-clip`, every token carries the value of its response and the gradient of its own term.

    Source: GMPO, arXiv 2507.20673 (0.4), as in TRL (experimental) and verl (geo_mean). verl takes the mean
    advantage of a response; all agree if its tokens have the same advantage, as with outcome rewards.
    Requires the aggregation seq-mean-token-mean.

    Metrics: those of `clip`.

    Settings:
        epsilon_low: log r of a token is clipped at minus this where A < 0.
        epsilon_high: log r of a token is clipped at this where A > 0.
    """
    difference = log_ratio(new, old)
    sign = advantages.sign()
    bounded = difference.clamp(-epsilon_low, epsilon_high)
    clipped = sign * torch.minimum(sign * difference, sign * bounded)
    value = clipped.detach()
    weight = (_mean(value, mask) + clipped - value).clamp(max=SEQUENCE_LOG_WEIGHT_LIMIT).exp()
    up = (advantages > 0) & (difference.detach() > epsilon_high)
    down = (advantages < 0) & (difference.detach() < -epsilon_low)
    return TokenLosses(-advantages * weight, clip_metrics(up, down))


def vespo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    k_positive: NotNegative = 2.0,
    lambda_positive: Positive = 3.0,
    k_negative: NotNegative = 3.0,
    lambda_negative: Positive = 2.0,
) -> TokenLosses:
    """VESPO: -sg(W^k exp(lambda (1 - W))) A log pi, with W the ratio of the whole response.

    W = exp(sum log r), within [1e-8, e^20]; k and lambda depend on the sign of A (0 counts as positive).
    Source: VESPO, arXiv 2602.10693, as in TRL (loss_type "vespo").

    Metrics: sequence_weight (the factor), clip_fraction (factor below one half).

    Settings:
        k_positive: exponent k of W where A >= 0.
        lambda_positive: lambda where A >= 0.
        k_negative: exponent k of W where A < 0.
        lambda_negative: lambda where A < 0.
    """
    total = (log_ratio(new, old).detach() * mask).sum(-1, keepdim=True)
    total = total.clamp(VESPO_LOG_WEIGHT_MIN, LOG_RATIO_LIMIT)
    positive = advantages >= 0
    power = torch.where(positive, total.new_tensor(k_positive), total.new_tensor(k_negative))
    rate = torch.where(positive, total.new_tensor(lambda_positive), total.new_tensor(lambda_negative))
    weight = (power * total + rate * (1.0 - total.exp())).exp()
    metrics = {"sequence_weight": weight, "clip_fraction": (weight < 0.5).float()}
    return TokenLosses(-advantages * weight * new.log_probs, metrics)


def topr(
    new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, *, length_normalised: bool = True
) -> TokenLosses:
    """TOPR: -A log pi where A > 0, and weighted by sg(min(1, s)) where A < 0.

    s = exp(mean log r) of the response. Source: TOPR, arXiv 2503.14286, whose s is the ratio of the whole
    response, exp(sum log r): length_normalised off. For long responses that is nearly always 0 or above 1, so
    the mean is the default here. The paper's A are rewards of +1 and -1 without a baseline.

    Metrics: sequence_weight (the factor), clip_fraction (A < 0 and s > 1, where the factor is capped at 1).

    Settings:
        length_normalised: compute s from the mean of log r over the response instead of the sum.
    """
    difference = log_ratio(new, old).detach() * mask
    total = difference.sum(-1, keepdim=True)
    statistic = _mean(difference, mask) if length_normalised else total
    weight = torch.where(advantages < 0, statistic.clamp(-LOG_RATIO_LIMIT, 0.0).exp(), 1.0)
    outside = (advantages < 0) & (statistic > 0)
    metrics = {"sequence_weight": weight, "clip_fraction": outside.float()}
    return TokenLosses(-advantages * weight * new.log_probs, metrics)


def opsm(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    threshold: Limit = 1e-4,
    epsilon_low: Limit = 0.2,
    epsilon_high: Limit = 0.2,
) -> TokenLosses:
    """Off-policy sequence mask: clip, dropping responses with A < 0 and mean log(old / new) > threshold.

    Source: DeepSeek-V3.2, arXiv 2512.02556, as in TRL (off_policy_mask_threshold). Neither has a
    default threshold, so set it; the default here is slime's (--opsm-delta 1e-4).

    Metrics: clip_fraction (dropped or clipped tokens), masked_fraction (dropped tokens), and those of `clip`.

    Settings:
        threshold: largest mean log(old / new) of a response with A < 0 that is kept, nats.
        epsilon_low: how far below 1 the ratio may fall before the gradient is cut.
        epsilon_high: how far above 1 the ratio may rise before the gradient is cut.
    """
    difference = log_ratio(new, old)
    far = _mean(-difference.detach(), mask) > threshold
    dropped = (advantages < 0) & far
    per_token, up, down = clipped_surrogate(difference.exp(), advantages, epsilon_low, epsilon_high)
    metrics = {**clip_metrics(up, down | dropped), "masked_fraction": dropped.float()}
    return TokenLosses(per_token.masked_fill(dropped, 0.0), metrics)
