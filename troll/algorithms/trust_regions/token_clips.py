"""Variants of clip: token-dependent bounds (dcpo, ripo), inverse weights (aspo), outside gradients (ce-gppo).

r = new / old is the ratio of the sampled token, and q its old probability.
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
from troll.algorithms.trust_regions.types import TokenLosses, TokenPolicy, log_ratio

AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=True)]


def _old_probability(new: TokenPolicy, old: TokenPolicy) -> Tensor:
    """The probability q [B, T] of the sampled tokens under the old policy, in the type of the log-ratio."""
    return old.log_probs.to(log_ratio(new, old).dtype).exp()


def dcpo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: NotNegative = 0.2,
    epsilon_high: NotNegative = 0.28,
    ratio_max: AtLeastOne = 10.0,
    dual_clip: DualClip | None = None,
) -> TokenLosses:
    """DCPO: clip with wider bounds for tokens of small old probability q.

    With e1 = epsilon_low and e2 = epsilon_high, r is clipped to
    [1/2 + 1/2 sqrt(max(1 - 4 e1 / q, 0)), min(1/2 + 1/2 sqrt(1 + 4 e2 / q), ratio_max)].

    Source: DCPO, arXiv 2509.02333, and its code (lime-RL/DCPO, core_algos.py, clip_type "dynamic"), whose
    smallest ratio_max is 10. The code also has a dual clip, which the paper's objective lacks: off here.
    The paper's other parts, advantages smoothed over a run and means over responses, are not included.

    Metrics: those of `clip`.

    Settings:
        epsilon_low: e1, width of the lower bound.
        epsilon_high: e2, width of the upper bound.
        ratio_max: the upper bound is never above this.
        dual_clip: largest ratio with a gradient where A < 0; none disables it.
    """
    probability = _old_probability(new, old)
    ratio = log_ratio(new, old).exp()
    low = 0.5 + 0.5 * (1.0 - 4.0 * epsilon_low / probability).clamp(min=0.0).sqrt()
    high = (0.5 + 0.5 * (1.0 + 4.0 * epsilon_high / probability).sqrt()).clamp(max=ratio_max)
    per_token, up, down = clipped_between(ratio, advantages, low, high)
    per_token, down = dual_clipped(per_token, down, ratio, advantages, dual_clip)
    return TokenLosses(per_token, clip_metrics(up, down))


def ripo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    delta: Positive = 0.05,
    ratio_min: Share = 0.5,
    ratio_max: AtLeastOne = 10.0,
) -> TokenLosses:
    """RIPO: clip to 1 +- sqrt(delta / q), an equal distance in the Fisher metric for every token.

    The bounds stay within [ratio_min, ratio_max]. Source: RIPO, arXiv 2607.10169 (delta 0.05, outer bounds
    0.5 and 10); no code of its authors is known.

    Metrics: those of `clip`.

    Settings:
        delta: squared distance of the bounds from 1 where q is 1.
        ratio_min: the lower bound is never below this.
        ratio_max: the upper bound is never above this.
    """
    width = (delta / _old_probability(new, old)).sqrt()
    ratio = log_ratio(new, old).exp()
    low, high = (1.0 - width).clamp(min=ratio_min), (1.0 + width).clamp(max=ratio_max)
    per_token, up, down = clipped_between(ratio, advantages, low, high)
    return TokenLosses(per_token, clip_metrics(up, down))


def aspo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: Limit = 0.2,
    epsilon_high: Limit = 0.2,
    weight_max: Positive = 3.0,
) -> TokenLosses:
    """ASPO: weight 1 / r where A > 0, which favours tokens of small ratio.

    A > 0: -A sg(min(1 / r, weight_max)) log pi, and no gradient where r > 1 + epsilon_high. A <= 0: `clip`.

    Source: ASPO, arXiv 2510.06062 (epsilon 0.2), and its code (wizard-III/Archer2.0, core_algos.py; weights
    up to 3). The code has wider bounds for tokens of high entropy, and where A < 0 weights of at most 3 that
    keep their gradient; this rule follows the paper's clip.

    Metrics: those of `clip`.

    Settings:
        epsilon_low: how far below 1 the ratio may fall before the gradient is cut.
        epsilon_high: how far above 1 the ratio may rise before the gradient is cut.
        weight_max: largest weight 1 / r where A > 0.
    """
    difference = log_ratio(new, old)
    clipped, up, down = clipped_surrogate(difference.exp(), advantages, epsilon_low, epsilon_high)
    weight = (-difference.detach()).exp().clamp(max=weight_max).masked_fill(up, 0.0)
    per_token = torch.where(advantages > 0, -advantages * weight * new.log_probs, clipped)
    return TokenLosses(per_token, clip_metrics(up, down))


def ce_gppo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: Share = 0.2,
    epsilon_high: NotNegative = 0.2,
    beta_low: NotNegative = 0.25,
    beta_high: NotNegative = 1.0,
    dual_clip: DualClip | None = None,
) -> TokenLosses:
    """CE-GPPO: clip, but tokens outside the bounds keep a gradient of fixed size.

    Where A > 0 and r > 1 + epsilon_high: -beta_high (1 + epsilon_high) A r / sg(r); where A < 0 and
    r < 1 - epsilon_low: -beta_low (1 - epsilon_low) A r / sg(r); -A r elsewhere.

    Source: CE-GPPO, arXiv 2509.20712, and its code (Kwai-Klear/CE-GPPO, core_algos.py,
    compute_gppo_loss_general_beta: betas 0.25 and 1; its 7B recipe: 0.75 and 1, epsilon 0.2). The code also
    has a dual clip (10 in that recipe), which the paper's objective lacks: off here.

    Metrics: those of `clip`; clip_fraction counts the tokens outside the bounds, which keep a gradient.

    Settings:
        epsilon_low: 1 minus this is the lower bound of the ratio where A < 0.
        epsilon_high: 1 plus this is the upper bound of the ratio where A > 0.
        beta_low: scale of the gradient below the lower bound.
        beta_high: scale of the gradient above the upper bound.
        dual_clip: largest ratio with a gradient where A < 0; none disables it.
    """
    ratio = log_ratio(new, old).exp()
    value = ratio.detach()
    up = (advantages > 0) & (value > 1.0 + epsilon_high)
    down = (advantages < 0) & (value < 1.0 - epsilon_low)
    size = torch.ones_like(value).masked_fill(up, beta_high * (1.0 + epsilon_high))
    size = size.masked_fill(down, beta_low * (1.0 - epsilon_low))
    per_token = -advantages * torch.where(up | down, size * (ratio / value), ratio)
    per_token, down = dual_clipped(per_token, down, ratio, advantages, dual_clip)
    return TokenLosses(per_token, clip_metrics(up, down))
