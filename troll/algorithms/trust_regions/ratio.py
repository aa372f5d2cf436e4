"""Rules on the probability ratio of the sampled token: none, clip, gspo-clip, cispo, sapo."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from troll.algorithms.ranges import Limit, Positive
from troll.algorithms.trust_regions.types import TokenLosses, TokenPolicy, log_ratio

# Upper limit of the log-weights of GSPO and troll-seq, as in verl (core_algos.py, gspo).
SEQUENCE_LOG_WEIGHT_LIMIT = 10.0

DualClip = Annotated[float, Field(gt=1)]
"""Largest ratio with a gradient where A < 0 (arXiv 1912.09729)."""


def policy_gradient(new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor) -> TokenLosses:
    """Plain policy gradient, -A log pi: no trust region and no correction for staleness (verl: gpg)."""
    return TokenLosses(-advantages * new.log_probs)


def importance_weighted(new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor) -> TokenLosses:
    """Importance-weighted policy gradient, -A r: no trust region."""
    return TokenLosses(-advantages * log_ratio(new, old).exp())


def clip(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: Limit = 0.2,
    epsilon_high: Limit = 0.2,
    dual_clip: DualClip | None = None,
) -> TokenLosses:
    """PPO's clipped surrogate on token ratios, with asymmetric bounds and dual clip.

    The loss is the larger of -A r and -A min(max(r, 1 - low), 1 + high). Source: PPO, arXiv 1707.06347, eq. 7
    (epsilon 0.2). Clip-higher (DAPO, arXiv 2503.14476): low 0.2, high 0.28. With `dual_clip` c
    (arXiv 1912.09729) the loss of tokens with A < 0 is capped at -A c; verl uses c = 3, TRL disables it, and
    the TROLL paper's baseline uses c = 10.

    Metrics: clip_fraction, and clipped_up / clipped_down by the sign of the advantage.

    Settings:
        epsilon_low: how far below 1 the ratio may fall before the gradient is cut.
        epsilon_high: how far above 1 the ratio may rise before the gradient is cut.
        dual_clip: largest ratio with a gradient where A < 0; none disables it.
    """
    ratio = log_ratio(new, old).exp()
    per_token, up, down = clipped_surrogate(ratio, advantages, epsilon_low, epsilon_high)
    per_token, down = dual_clipped(per_token, down, ratio, advantages, dual_clip)
    return TokenLosses(per_token, clip_metrics(up, down))


def dual_clipped(
    per_token: Tensor, down: Tensor, ratio: Tensor, advantages: Tensor, limit: float | None
) -> tuple[Tensor, Tensor]:
    """Caps the loss at -A limit where A < 0; returns the loss, and where A < 0 has no gradient."""
    if limit is None:
        return per_token, down
    capped = (advantages < 0) & (ratio.detach() > limit)
    return torch.where(capped, -advantages * limit, per_token), down | capped


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`clipped_between` 1 - epsilon_low and 1 + epsilon_high."""
    return clipped_between(ratio, advantages, 1.0 - epsilon_low, 1.0 + epsilon_high)


def clipped_between(
    ratio: Tensor, advantages: Tensor, low: float | Tensor, high: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The clipped surrogate loss, and where it has no gradient: A > 0 and r > high; A < 0 and r < low.

    Args:
        ratio: [B, T].
        advantages: [B, T].
        low: lower bound of the ratio, a number or [B, T]; constant.
        high: upper bound; of the same kind as `low`.
    """
    clipped = ratio.clamp(low, high)  # type: ignore[arg-type]
    per_token = torch.maximum(-advantages * ratio, -advantages * clipped)
    value = ratio.detach()
    return per_token, (advantages > 0) & (value > high), (advantages < 0) & (value < low)


def clip_metrics(up: Tensor, down: Tensor) -> dict[str, Tensor]:
    """Metrics of the tokens whose gradient is cut, by the sign of the advantage."""
    return {"clip_fraction": (up | down).float(), "clipped_up": up.float(), "clipped_down": down.float()}


def sequence_weight(token_log_ratio: Tensor, mask: Tensor) -> Tensor:
    """GSPO's token-level weight of the sequence ratio, [B, T].

    The value is s_i = exp(mean_t log r_it), the gradient of each token that of its own log-prob:
    s_it = sg(s_i) exp(log pi_it - sg(log pi_it)). Empty responses get 1.
    """
    value = token_log_ratio.detach()
    mean = (value * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return (mean + token_log_ratio - value).clamp(max=SEQUENCE_LOG_WEIGHT_LIMIT).exp()


def gspo_clip(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: Limit = 0.2,
    epsilon_high: Limit = 0.2,
) -> TokenLosses:
    """GSPO: the clipped surrogate on the length-normalised sequence ratio.

    Source: GSPO, arXiv 2507.18071 (as in verl and TRL). `gspo-clip` has the bounds of the TROLL
    paper's baseline configuration (0.2, in effect unclipped), `gspo-clip-tight` those of the GSPO paper
    (3e-4 and 4e-4). Requires the aggregation seq-mean-token-mean.

    Settings:
        epsilon_low: how far below 1 the ratio of a response may fall before the gradient is cut.
        epsilon_high: how far above 1 the ratio of a response may rise before the gradient is cut.
    """
    weight = sequence_weight(log_ratio(new, old), mask)
    per_token, up, down = clipped_surrogate(weight, advantages, epsilon_low, epsilon_high)
    return TokenLosses(per_token, clip_metrics(up, down))


def cispo(
    new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, *, ratio_max: Limit = 5.0
) -> TokenLosses:
    """CISPO in TRL's convention, -A sg(min(r, ratio_max)) log pi: weights are capped, no token is dropped.

    Source: MiniMax-M1, arXiv 2506.13585; TRL calls the bound epsilon_high and applies it to r itself, with
    5.0 recommended (ScaleRL). The convention of verl is `cispo-verl`.

    Settings:
        ratio_max: largest weight of a token.
    """
    weight = log_ratio(new, old).detach().exp()
    per_token = -advantages * weight.clamp(max=ratio_max) * new.log_probs
    return TokenLosses(per_token, {"clip_fraction": (weight > ratio_max).float()})


def cispo_verl(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: Limit = 0.2,
    epsilon_high: Limit = 0.2,
) -> TokenLosses:
    """CISPO in verl's convention, -A sg(clip(r, 1 - low, 1 + high)) log pi.

    Source: verl, core_algos.py, with its generic defaults of 0.2, at which it is close to plain REINFORCE.

    Settings:
        epsilon_low: the smallest weight of a token is 1 minus this.
        epsilon_high: the largest weight of a token is 1 plus this.
    """
    weight = log_ratio(new, old).detach().exp()
    low, high = 1.0 - epsilon_low, 1.0 + epsilon_high
    per_token = -advantages * weight.clamp(low, high) * new.log_probs
    return TokenLosses(per_token, {"clip_fraction": ((weight > high) | (weight < low)).float()})


def sapo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    temperature_positive: Positive = 1.0,
    temperature_negative: Positive = 1.05,
) -> TokenLosses:
    """SAPO: a soft gate, -A (4 / tau) sigmoid(tau (r - 1)), instead of a hard clip.

    Source: SAPO, arXiv 2511.20347, defaults 1.0 (A > 0) and 1.05 (A <= 0). The gradient weight on
    r grad log pi is 4 s (1 - s) <= 1 with s = sigmoid(tau (r - 1)), and 1 at r = 1; the loss itself is
    2 / tau there. Requires the aggregation seq-mean-token-mean. Metrics: gate (that weight), clip_fraction
    (gate below one half).

    Settings:
        temperature_positive: tau where A > 0; larger values narrow the gate.
        temperature_negative: tau where A <= 0; larger values narrow the gate.
    """
    ratio = log_ratio(new, old).exp()
    tau = torch.where(advantages > 0, temperature_positive, temperature_negative).to(ratio.dtype)
    soft = torch.sigmoid(tau * (ratio - 1.0))
    gate = 4.0 * soft.detach() * (1.0 - soft.detach())
    per_token = -advantages * soft * 4.0 / tau
    return TokenLosses(per_token, {"gate": gate, "clip_fraction": (gate < 0.5).float()})
