"""TROLL: the policy gradient of the projected policy plus a pull of the network towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.divergences import kl_divergence, require_equal, takes_triton
from troll.algorithms.projection import Projection, project, project_and_pull
from troll.algorithms.ranges import Limit, NotNegative
from troll.algorithms.trust_regions.ratio import sequence_weight
from troll.algorithms.trust_regions.types import (
    LOG_RATIO_LIMIT,
    TokenLosses,
    TokenPolicy,
    compared_rows,
    metric_rows,
    sampled_slots,
    scatter_rows,
)

# Least log-probability of a projected token in the regression, where the old policy has none at all.
REGRESSION_FLOOR = -100.0


@dataclass(frozen=True)
class _Projected:
    """The projected policy at the sampled tokens; all [B, T]."""

    log_ratio: Tensor
    regression: Tensor
    metrics: dict[str, Tensor]


def _outside_alone(
    q: SparseLogProbs, p: SparseLogProbs, slot: Tensor, kl_bound: float
) -> tuple[Tensor, Tensor, Projection[SparseLogProbs]]:
    """Log-ratio and regression of rows; KL(q || sg pi) is zero inside the ball, where no row is touched."""
    projection = project(q, p, kl_bound)
    pi = projection.log_probs
    sampled = (pi.log_probs.gather(-1, slot) - p.log_probs.gather(-1, slot)).squeeze(-1)
    active = projection.active.nonzero().squeeze(-1)
    target = pi.atoms().detach()[active].clamp(min=REGRESSION_FLOOR)
    pull = kl_divergence(q.rows(active).atoms(), target)
    return sampled, torch.zeros_like(sampled).index_put((active,), pull.to(sampled.dtype)), projection


def _all_rows(
    q: SparseLogProbs, p: SparseLogProbs, slot: Tensor, kl_bound: float
) -> tuple[Tensor, Tensor, Projection[Tensor]]:
    """The same without asking the device which rows are outside; masked rows are inside, being empty."""
    require_equal(q.token_ids, p.token_ids, "the new and the old policy keep different tokens")
    new, old = q.atoms(), p.atoms()
    projection, pull = project_and_pull(new, old, kl_bound, REGRESSION_FLOOR)
    sampled = (projection.log_probs.gather(-1, slot) - old.gather(-1, slot)).squeeze(-1)
    return sampled, pull, projection


def _project_sampled(new: TokenPolicy, old: TokenPolicy, mask: Tensor, kl_bound: float) -> _Projected:
    """Project at the response tokens: what masked positions have reaches nothing."""
    q, p = compared_rows(new, mask), compared_rows(old, mask)
    slot = sampled_slots(new, old, p.token_ids, mask).unsqueeze(-1)
    projection: Projection[Any]
    sampled, regression, projection = (_all_rows if takes_triton(mask.device) else _outside_alone)(
        q, p, slot, kl_bound
    )
    metrics = {
        "kl_to_old": projection.kl_before,
        "kl_projected": projection.kl_after,
        "kl_violation": (projection.kl_after - kl_bound).clamp(min=0.0),
        "step_size": projection.step_size,
        "clip_fraction": projection.active.float(),
        "solver_residual": projection.residual,
        "solver_evaluations": projection.evaluations.float(),
        "regression": regression.detach(),
    }
    return _Projected(
        log_ratio=scatter_rows(sampled.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), mask),
        regression=scatter_rows(regression, mask),
        metrics={name: metric_rows(value, mask) for name, value in metrics.items()},
    )


def troll(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    kl_bound: Limit = 0.05,
    regression_weight: NotNegative = 1.0,
) -> TokenLosses:
    """TROLL: -A pi(a) / p(a) + alpha KL(q || sg pi), with pi the projection of q onto the KL ball around p.

    Source: TROLL, arXiv 2510.03817, and its code (core_algos.py); eps = 0.05 and alpha = 1 in all its
    experiments. No clip and no minimum; the gradient of the first term runs through the projection, its
    multiplier included. The KL bound holds for pi; the network q is pulled towards pi by the second term,
    whose gradient equals that of a KL(q || p) penalty of weight alpha (1 - step_size) per token.

    Metrics: clip_fraction (projected), step_size, kl_projected, kl_violation, solver_residual,
    solver_evaluations, regression, kl_to_old.

    Settings:
        kl_bound: largest KL(pi || p) of a token, nats.
        regression_weight: alpha, weight of the pull of the network towards pi.
    """
    projected = _project_sampled(new, old, mask, kl_bound)
    per_token = -advantages * projected.log_ratio.exp() + regression_weight * projected.regression
    return TokenLosses(per_token, projected.metrics)


def troll_seq(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    kl_bound: Limit = 0.05,
    regression_weight: NotNegative = 1.0,
) -> TokenLosses:
    """TROLL for GSPO: token-wise projection as in `troll`, sequence-wise importance weight.

    Source: `trpl_seq` in the paper's code. The weight is GSPO's with projected log-probabilities, without
    clipping; it belongs to seq-mean-token-mean.

    Settings:
        kl_bound: largest KL(pi || p) of a token, nats.
        regression_weight: alpha, weight of the pull of the network towards pi.
    """
    projected = _project_sampled(new, old, mask, kl_bound)
    weight = sequence_weight(projected.log_ratio, mask)
    per_token = -advantages * weight + regression_weight * projected.regression
    return TokenLosses(per_token, projected.metrics)
