"""DPPO: tokens that have moved too far in probability get no gradient.

Source: DPPO, arXiv 2602.04879, as in TRL's trainer and a verl fork. The divergence between the old policy mu
and the new policy pi is measured on the sampled token against all others (binary), or on the kept tokens and
the tail (top-K). The loss is -A sg(min(r, ratio_max)) M log pi, where M = 0 for tokens that move in the
direction of their advantage and whose divergence exceeds the threshold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from troll.algorithms.divergences import kl_divergence, wide_dtype
from troll.algorithms.trust_regions.registry import Rule, scatter_rows
from troll.algorithms.trust_regions.types import TokenLosses, TokenPolicy, compared_rows, log_ratio


def _binary(log_probs: Tensor) -> Tensor:
    """The two atoms [M, 2] of rows [M]: the sampled token, everything else."""
    sampled = log_probs.to(wide_dtype(log_probs.device)).clamp(max=0.0)
    return torch.stack([sampled, torch.log(-torch.expm1(sampled))], dim=-1)


def _atoms(policy: TokenPolicy, mask: Tensor, binary: bool) -> Tensor:
    if binary:
        return _binary(policy.log_probs[mask])
    return compared_rows(policy, mask).atoms()


def _rule(*, binary: bool, total_variation: bool, threshold: float, doc: str) -> Rule:
    """One of the four rules: their settings differ in the default of the thresholds alone."""

    def dppo(
        new: TokenPolicy,
        old: TokenPolicy,
        advantages: Tensor,
        mask: Tensor,
        *,
        threshold_low: float = threshold,
        threshold_high: float = threshold,
        ratio_max: float = 20.0,
    ) -> TokenLosses:
        with torch.no_grad():
            new_atoms, old_atoms = _atoms(new, mask, binary), _atoms(old, mask, binary)
            if total_variation:
                rows = 0.5 * (new_atoms.exp() - old_atoms.exp()).abs().sum(-1)
            else:
                rows = kl_divergence(old_atoms, new_atoms)
            difference = log_ratio(new, old, mask)
            divergence = scatter_rows(rows.to(difference.dtype), mask)
            up = (advantages > 0) & (difference > 0) & (divergence > threshold_high)
            # verl and TRL write A <= 0; with A = 0 there is no gradient to mask.
            down = (advantages < 0) & (difference < 0) & (divergence > threshold_low)
            outside = up | down
            weight = difference.exp().clamp(max=ratio_max).masked_fill(outside, 0.0)
        per_token = -advantages * weight * new.log_probs.masked_fill(~mask, 0.0)
        return TokenLosses(per_token, {"outside": outside.float(), "divergence": divergence})

    dppo.__doc__ = doc
    return dppo


binary_tv = _rule(
    binary=True,
    total_variation=True,
    threshold=0.15,
    doc="DPPO with the total variation |pi(a) - mu(a)| of the sampled token; thresholds 0.15 as in TRL.",
)
binary_kl = _rule(
    binary=True,
    total_variation=False,
    threshold=0.05,
    doc="DPPO with the binary KL(mu || pi) of the sampled token; thresholds 0.05 as in TRL's documentation.",
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
