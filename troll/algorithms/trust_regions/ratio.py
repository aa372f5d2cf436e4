"""Rules on the probability ratio of the sampled token: none, clip, gspo-clip, cispo, sapo."""

from __future__ import annotations

import torch
from torch import Tensor

from troll.algorithms.trust_regions.types import TokenLosses, TokenPolicy, log_ratio

# GSPO's and troll-seq's log-weights are cut off above here, as in verl (core_algos.py, gspo).
SEQUENCE_LOG_WEIGHT_LIMIT = 10.0


def policy_gradient(new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor) -> TokenLosses:
    """Plain policy gradient, -A log pi: no trust region and no correction for staleness (verl: gpg)."""
    return TokenLosses(-advantages * new.log_probs.masked_fill(~mask, 0.0))


def importance_weighted(new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor) -> TokenLosses:
    """Importance-weighted policy gradient, -A r: no trust region."""
    return TokenLosses(-advantages * log_ratio(new, old, mask).exp())


def clip(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    dual_clip: float | None = None,
) -> TokenLosses:
    """PPO's clipped surrogate on token ratios, asymmetric bounds and dual clip included.

    The loss is the larger of -A r and -A min(max(r, 1 - low), 1 + high). Source: PPO, arXiv 1707.06347, eq. 7
    (epsilon 0.2). Clip-higher (DAPO, arXiv 2503.14476): low 0.2, high 0.28. With `dual_clip` c
    (arXiv 1912.09729) the loss of tokens with A < 0 is capped at -A c; verl has it on at c = 3, TRL off, the
    TROLL paper's baseline uses c = 10.

    Metrics: outside, and clipped_up / clipped_down by the sign of the advantage.
    """
    ratio = log_ratio(new, old, mask).exp()
    per_token, up, down = clipped_surrogate(ratio, advantages, epsilon_low, epsilon_high)
    if dual_clip is not None:
        capped = (advantages < 0) & (ratio.detach() > dual_clip)
        per_token = torch.where(capped, -advantages * dual_clip, per_token)
        down = down | capped
    return TokenLosses(per_token, _clip_metrics(up, down))


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The pessimistic maximum, and where it cuts the gradient: (loss, A > 0 and r high, A < 0 and r low)."""
    clipped = ratio.clamp(1.0 - epsilon_low, 1.0 + epsilon_high)
    per_token = torch.maximum(-advantages * ratio, -advantages * clipped)
    value = ratio.detach()
    up = (advantages > 0) & (value > 1.0 + epsilon_high)
    down = (advantages < 0) & (value < 1.0 - epsilon_low)
    return per_token, up, down


def _clip_metrics(up: Tensor, down: Tensor) -> dict[str, Tensor]:
    return {"outside": (up | down).float(), "clipped_up": up.float(), "clipped_down": down.float()}


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
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
) -> TokenLosses:
    """GSPO: the clipped surrogate on the length-normalised sequence ratio.

    Source: GSPO, arXiv 2507.18071 (as in verl and TRL). `gspo-clip` has the bounds of the TROLL
    paper's baseline configuration (0.2, in effect unclipped), `gspo-clip-tight` those of the GSPO paper
    (3e-4 and 4e-4). Belongs to seq-mean-token-mean.
    """
    weight = sequence_weight(log_ratio(new, old, mask), mask)
    per_token, up, down = clipped_surrogate(weight, advantages, epsilon_low, epsilon_high)
    return TokenLosses(per_token, _clip_metrics(up, down))


def cispo(
    new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, *, ratio_max: float = 5.0
) -> TokenLosses:
    """CISPO in TRL's convention, -A sg(min(r, ratio_max)) log pi: weights are cut, no token is dropped.

    Source: MiniMax-M1, arXiv 2506.13585; TRL calls the bound epsilon_high and applies it to r itself, with
    5.0 recommended (ScaleRL). The convention of verl is `cispo-verl`.
    """
    weight = log_ratio(new, old, mask).detach().exp()
    per_token = -advantages * weight.clamp(max=ratio_max) * new.log_probs.masked_fill(~mask, 0.0)
    return TokenLosses(per_token, {"outside": ((weight > ratio_max) & mask).float()})


def cispo_verl(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
) -> TokenLosses:
    """CISPO in verl's convention, -A sg(clip(r, 1 - low, 1 + high)) log pi.

    Source: verl, core_algos.py, with its generic defaults of 0.2; near plain REINFORCE at those values.
    """
    weight = log_ratio(new, old, mask).detach().exp()
    low, high = 1.0 - epsilon_low, 1.0 + epsilon_high
    per_token = -advantages * weight.clamp(low, high) * new.log_probs.masked_fill(~mask, 0.0)
    return TokenLosses(per_token, {"outside": (((weight > high) | (weight < low)) & mask).float()})


def sapo(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> TokenLosses:
    """SAPO: a soft gate, -A (4 / tau) sigmoid(tau (r - 1)), instead of a hard clip.

    Source: SAPO, arXiv 2511.20347, defaults 1.0 (A > 0) and 1.05 (A <= 0). The gradient weight on
    r grad log pi is 4 s (1 - s) <= 1 with s = sigmoid(tau (r - 1)), and 1 at r = 1; the loss itself is
    2 / tau there. Belongs to seq-mean-token-mean. Metrics: gate (that weight), outside (gate below one half).
    """
    ratio = log_ratio(new, old, mask).exp()
    tau = torch.where(advantages > 0, temperature_positive, temperature_negative).to(ratio.dtype)
    soft = torch.sigmoid(tau * (ratio - 1.0))
    gate = 4.0 * soft.detach() * (1.0 - soft.detach())
    per_token = -advantages * soft * 4.0 / tau
    return TokenLosses(
        per_token.masked_fill(~mask, 0.0),
        {"gate": gate.masked_fill(~mask, 0.0), "outside": ((gate < 0.5) & mask).float()},
    )
