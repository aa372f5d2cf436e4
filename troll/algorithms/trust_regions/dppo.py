"""DPPO: no gradient for tokens whose probability has moved too far.

Source: DPPO, arXiv 2602.04879, and its authors' fork of verl (sail-sg/Stable-RL); not in TRL 1.16. The
divergence between the old policy mu and the new policy pi is measured on the sampled token and the rest
(binary), or on the kept tokens and the tail (top-K). The loss is -A sg(min(r, ratio_max)) M log pi, where
M = 0 for tokens that move in the direction of their advantage and whose divergence exceeds the threshold.
ratio_max is 20 as in verl; the fork falls back to 10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from troll.algorithms.backends import wide_dtype
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.ranges import Limit
from troll.algorithms.trust_regions.types import (
    Rule,
    TokenLosses,
    TokenPolicy,
    compared_rows,
    log_ratio,
    scatter_rows,
    token_rows,
)

_SETTINGS = """Settings:
    threshold_low: largest divergence of a token that is kept where A < 0.
    threshold_high: largest divergence of a token that is kept where A > 0.
    ratio_max: largest weight of a token."""


def _binary(log_probs: Tensor) -> Tensor:
    """The two atoms [M, 2] of rows [M]: the sampled token and all others."""
    sampled = log_probs.to(wide_dtype(log_probs.device)).clamp(max=0.0)
    return torch.stack([sampled, torch.log(-torch.expm1(sampled))], dim=-1)


def _atoms(policy: TokenPolicy, mask: Tensor, binary: bool) -> Tensor:
    if binary:
        return _binary(token_rows(policy.log_probs, mask))
    return compared_rows(policy, mask).atoms()


def _rule(*, binary: bool, total_variation: bool, threshold: float, doc: str) -> Rule:
    """Builds one of the four rules; their settings only differ in the default thresholds."""

    def dppo(
        new: TokenPolicy,
        old: TokenPolicy,
        advantages: Tensor,
        mask: Tensor,
        *,
        threshold_low: Limit = threshold,
        threshold_high: Limit = threshold,
        ratio_max: Limit = 20.0,
    ) -> TokenLosses:
        with torch.no_grad():
            new_atoms, old_atoms = _atoms(new, mask, binary), _atoms(old, mask, binary)
            if total_variation:
                rows = 0.5 * (new_atoms.exp() - old_atoms.exp()).abs().sum(-1)
            else:
                rows = kl_divergence(old_atoms, new_atoms)
            difference = log_ratio(new, old)
            divergence = scatter_rows(rows.to(difference.dtype), mask)
            up = (advantages > 0) & (difference > 0) & (divergence > threshold_high)
            # verl writes A <= 0; with A = 0 there is no gradient to mask.
            down = (advantages < 0) & (difference < 0) & (divergence > threshold_low)
            outside = up | down
            weight = difference.exp().clamp(max=ratio_max).masked_fill(outside, 0.0)
        per_token = -advantages * weight * new.log_probs
        return TokenLosses(per_token, {"clip_fraction": outside.float(), "divergence": divergence})

    dppo.__doc__ = f"{doc}\n\n{_SETTINGS}"
    return dppo


binary_tv = _rule(
    binary=True,
    total_variation=True,
    threshold=0.15,
    doc="DPPO with the total variation |pi(a) - mu(a)| of the sampled token; thresholds 0.15.",
)
binary_kl = _rule(
    binary=True,
    total_variation=False,
    threshold=0.05,
    doc="DPPO with the binary KL(mu || pi) of the sampled token; thresholds 0.05.",
)
topk_tv = _rule(
    binary=False,
    total_variation=True,
    threshold=0.15,
    doc="DPPO with the total variation on kept tokens and tail; K is the run's keep (20 in the paper).",
)
topk_kl = _rule(
    binary=False,
    total_variation=False,
    threshold=0.05,
    doc="DPPO with KL(mu || pi) on the kept tokens and the tail; K is the run's keep (20 in the paper).",
)


def predictive(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    threshold: Limit = 0.15,
    ratio_max: Limit = 5.0,
) -> TokenLosses:
    """DPPO, predictive: drops tokens beyond the threshold whose update would increase the divergence.

    -A sg(min(r, ratio_max)) M log pi, where M = 0 if KL(mu || pi) > threshold on the kept tokens and the
    tail, and A d > 0: d is the derivative of that KL when the logits move along the gradient of the sampled
    token's log pi, d = (pi(a) - mu(a)) + sum_i pi_i (mu_i - pi_i).

    Source: the loss mode dppo_topk_kl_predictive of a public fork of slime (0.15, 5, 20 kept tokens, the tail
    as one bucket); the paper behind it was not found, so this follows the code. K is the run's keep.

    Metrics: clip_fraction (dropped tokens), divergence, predicted_change (d).

    Settings:
        threshold: largest KL(mu || pi) of a token that is kept regardless of its update, nats.
        ratio_max: largest weight of a token.
    """
    with torch.no_grad():
        pi, mu = (_atoms(policy, mask, binary=False) for policy in (new, old))
        divergence = kl_divergence(mu, pi)
        rest = (pi.exp() * (mu.exp() - pi.exp())).sum(-1)
        difference = log_ratio(new, old)
        sampled = token_rows(
            new.log_probs.to(difference.dtype).exp() - old.log_probs.to(difference.dtype).exp(), mask
        )
        rows = torch.stack([divergence.to(difference.dtype), sampled + rest.to(difference.dtype)])
        distance, change = (scatter_rows(row, mask) for row in rows)
        outside = (distance > threshold) & (advantages * change > 0)
        weight = difference.exp().clamp(max=ratio_max).masked_fill(outside, 0.0)
    metrics = {"clip_fraction": outside.float(), "divergence": distance, "predicted_change": change}
    return TokenLosses(-advantages * weight * new.log_probs, metrics)
