"""TROLL: the policy gradient of the projected policy plus a regression of the network towards it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from troll.algorithms.backends import MAX_ATOMS, result_dtype, takes_triton
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.projection import Projection, project
from troll.algorithms.ranges import Limit, NotNegative
from troll.algorithms.trust_regions.ratio import sequence_weight
from troll.algorithms.trust_regions.types import (
    DIFFERENT_TOKENS,
    LOG_RATIO_LIMIT,
    NOT_KEPT,
    TokenLosses,
    TokenPolicy,
    compared_rows,
    metric_rows,
    sampled_ids,
    sampled_slots,
    scatter_rows,
)
from troll.common.errors import UserError

DEFAULT_KL_BOUND = 0.05
"""TROLL's default bound in nats per token, as in all experiments of the paper (arXiv 2510.03817)."""

# Floor of projected log-probabilities in the regression, for tokens with zero old probability.
REGRESSION_FLOOR = -100.0


@dataclass(frozen=True)
class _Projected:
    """The projected policy at the sampled tokens; all [B, T].

    Attributes:
        log_ratio: log pi - log p, clamped.
        regression: KL(q || sg pi).
        metrics: metrics of the rule.
        per_token: the loss of `troll` if a kernel has computed it, else None.
        common: the common metrics of all rules if a kernel has computed them.
    """

    log_ratio: Tensor
    regression: Tensor
    metrics: dict[str, Tensor]
    per_token: Tensor | None = None
    common: dict[str, Tensor] = field(default_factory=dict)


def _project_rows(
    q: SparseLogProbs, p: SparseLogProbs, slot: Tensor, kl_bound: float
) -> tuple[Tensor, Tensor, Projection[SparseLogProbs]]:
    """Log-ratio, regression and projection of rows; only rows outside the ball have a nonzero regression."""
    projection = project(q, p, kl_bound)
    pi = projection.log_probs
    sampled = (pi.log_probs.gather(-1, slot) - p.log_probs.gather(-1, slot)).squeeze(-1)
    active = projection.active.nonzero().squeeze(-1)
    target = pi.atoms().detach()[active].clamp(min=REGRESSION_FLOOR)
    pull = kl_divergence(q.rows(active).atoms(), target)
    return sampled, torch.zeros_like(sampled).index_put((active,), pull.to(sampled.dtype)), projection


def _project_fused(
    new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, kl_bound: float, weight: float
) -> _Projected | None:
    """All results from one kernel, 0 at masked positions; None without a kernel or if rows are too wide."""
    q, p = new.distribution, old.distribution
    if not takes_triton(mask.device) or q is None or p is None or q.support_size >= MAX_ATOMS:
        return None
    values = (sampled_ids(new, old), mask, new.log_probs, old.log_probs, advantages)
    if any(x.shape != mask.shape for x in (*values, q.tail_log_prob, p.tail_log_prob)):
        return None
    from troll.algorithms import triton_rule

    if not kl_bound >= 0.0:  # also rejects NaN
        raise UserError(f"troll: kl_bound is {kl_bound!r}, must be a number >= 0 or infinity")
    if q.token_ids.shape != p.token_ids.shape:
        raise UserError(DIFFERENT_TOKENS)
    ids = p.token_ids if _same_memory(q.token_ids, p.token_ids) else q.token_ids
    box: list[Tensor] = []
    per_token, log_ratio, regression = triton_rule.RuleRows.apply(  # type: ignore[no-untyped-call]
        *(x.reshape(-1, *x.shape[mask.dim() :]) for x in (q.log_probs, q.tail_log_prob)),
        triton_rule.Tokens(p, ids, *values),
        triton_rule.Settings(kl_bound, weight, REGRESSION_FLOOR, LOG_RATIO_LIMIT),
        box,
    )
    stacked, good = box
    triton_rule.refuse(good, (None if ids is p.token_ids else DIFFERENT_TOKENS, NOT_KEPT))
    metrics = dict(zip(triton_rule.METRICS, stacked.view(-1, *mask.shape).unbind(), strict=True))
    # The types that the metrics have without the kernel.
    default_dtype, token_dtype = log_ratio.dtype, result_dtype(new.log_probs, old.log_probs)
    types = dict.fromkeys(("ratio", "log_ratio_abs", "kl_to_old_sampled"), token_dtype)
    types |= dict.fromkeys(("clip_fraction", "solver_evaluations"), torch.float32)
    metrics = {name: value.to(types.get(name, default_dtype)) for name, value in metrics.items()}
    common = {name: metrics.pop(name) for name in triton_rule.COMMON}
    per_token, log_ratio, regression = (x.view(mask.shape) for x in (per_token, log_ratio, regression))
    return _Projected(log_ratio, regression, metrics, per_token, common)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.stride() == b.stride() and a.data_ptr() == b.data_ptr()


def _project_sampled(
    new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, kl_bound: float, weight: float
) -> _Projected:
    """Projects the policies at the response tokens; values at masked positions are ignored."""
    projected = _project_fused(new, old, advantages, mask, kl_bound, weight)
    if projected is not None:
        return projected
    q, p = compared_rows(new, mask), compared_rows(old, mask)
    slot = sampled_slots(new, old, p.token_ids, mask).unsqueeze(-1)
    sampled, regression, projection = _project_rows(q, p, slot, kl_bound)
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


def troll_with_common_metrics(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    kl_bound: Limit = DEFAULT_KL_BOUND,
    regression_weight: NotNegative = 1.0,
) -> TokenLosses | None:
    """Losses and metrics of `troll` with the common metrics, in one kernel launch; None if unavailable.

    Masked positions are 0, whatever values the inputs have there.
    """
    projected = _project_fused(new, old, advantages, mask, kl_bound, regression_weight)
    if projected is None or projected.per_token is None:
        return None
    return TokenLosses(projected.per_token, projected.common | projected.metrics)


def troll(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    kl_bound: Limit = DEFAULT_KL_BOUND,
    regression_weight: NotNegative = 1.0,
) -> TokenLosses:
    """TROLL: -A pi(a) / p(a) + alpha KL(q || sg pi), with pi the projection of q onto the KL ball around p.

    Source: TROLL, arXiv 2510.03817, and its code (core_algos.py); eps = 0.05 and alpha = 1 in all its
    experiments. There is no clip and no minimum; the gradient of the first term flows through the projection,
    multiplier included. The KL bound holds for pi; the second term pulls the network q towards pi, with the
    gradient of a KL(q || p) penalty of weight alpha (1 - step_size) per token.

    Metrics: clip_fraction (projected), step_size, kl_projected, kl_violation, solver_residual,
    solver_evaluations, regression, kl_to_old.

    Settings:
        kl_bound: largest KL(pi || p) of a token, nats.
        regression_weight: alpha, weight of the regression of the network towards pi.
    """
    projected = _project_sampled(new, old, advantages, mask, kl_bound, regression_weight)
    per_token = projected.per_token
    if per_token is None:
        per_token = -advantages * projected.log_ratio.exp() + regression_weight * projected.regression
    return TokenLosses(per_token, projected.metrics)


def troll_seq(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    kl_bound: Limit = DEFAULT_KL_BOUND,
    regression_weight: NotNegative = 1.0,
) -> TokenLosses:
    """TROLL for GSPO: token-wise projection as in `troll`, sequence-wise importance weight.

    Source: `trpl_seq` in the paper's code. The weight is GSPO's with projected log-probabilities, without
    clipping. Requires the aggregation seq-mean-token-mean.

    Settings:
        kl_bound: largest KL(pi || p) of a token, nats.
        regression_weight: alpha, weight of the regression of the network towards pi.
    """
    projected = _project_sampled(new, old, advantages, mask, kl_bound, regression_weight)
    weight = sequence_weight(projected.log_ratio, mask)
    per_token = -advantages * weight + regression_weight * projected.regression
    return TokenLosses(per_token, projected.metrics)
