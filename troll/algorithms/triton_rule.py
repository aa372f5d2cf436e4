"""TROLL's loss of sparse policies as one Triton kernel per direction, including masking, metrics and checks.

`troll.algorithms.trust_regions.projected` needs some sixty small operations, whose time on a GPU is mostly
launch overhead. Here one program per token reads the token's row of both policies once and writes all
results; masked tokens are skipped. The projection is that of `troll.algorithms.triton_solver`.

This module imports triton, an optional dependency, so `troll.algorithms.trust_regions.projected` only imports
it where it is used.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from troll.algorithms.autograd import differentiable_once
from troll.algorithms.backends import require, result_dtype
from troll.algorithms.distributions import DEFAULT_LOG_PROB, SparseLogProbs
from troll.algorithms.triton_projection import _launch
from troll.algorithms.triton_solver import atoms_of, in_two, moved_back, rounded_to, solve_row
from troll.common.errors import UserError

COMMON = ("ratio", "log_ratio_abs", "kl_to_old_sampled", "kept_mass")
METRICS = (
    *("kl_to_old", "kl_projected", "kl_violation", "step_size", "clip_fraction", "solver_residual"),
    *("solver_evaluations", "regression"),
    *COMMON,
)
"""Rows of the kernel's metrics; COMMON are those of all rules."""
_STATE = 4


@triton.jit
def _clamped(x, limit):
    """Clamp to +- limit by comparisons, which propagate NaN, unlike minimum and maximum."""
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit
def _store(into, place, x):
    tl.store(into + place, rounded_to(x, into.dtype.element_ty))


@triton.jit
def _rule_kernel(
    q, q_tail, p, p_tail, q_ids, p_ids, sampled, mask, q_label, p_label, dropped, advantages,
    losses, log_ratio, pulls, metrics, log_pi, state, places, good,
    bound, bound_rest, weight, weight_rest, rows, support_size,
    TOLERANCE: tl.constexpr, FLOOR: tl.constexpr, LIMIT: tl.constexpr, LEAST: tl.constexpr,
    SAME_IDS: tl.constexpr, METRICS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per token.

    `metrics` is [METRICS, rows]; `log_pi` [rows, K + 1] is only written in active rows. `state` [4, rows]
    is for the backward pass: step size, 1 / variance, whether the log-ratio is within its limits, and the
    derivative of the loss by it. `places` [rows] is twice the slot of the sampled token, plus 1 in active
    rows, or -1 if masked. `good` is 1, 1: the first becomes 0 if the policies keep different tokens, the
    second if they do not keep the sampled token.
    """
    row = tl.program_id(0).to(tl.int64)
    zero = tl.full([], 0.0, tl.float64)
    if tl.load(mask + row) == 0:
        tl.store(places + row, -1)
        _store(losses, row, zero)
        _store(log_ratio, row, zero)
        _store(pulls, row, zero)
        for metric in tl.static_range(METRICS):
            _store(metrics, metric * rows + row, zero)
    else:
        atom = tl.arange(0, BLOCK)
        kept = atom < support_size
        ids = tl.load(p_ids + row * support_size + atom, mask=kept, other=-1).to(tl.int64)
        if SAME_IDS == 0:
            others = tl.load(q_ids + row * support_size + atom, mask=kept, other=-1).to(tl.int64)
            if tl.sum((ids != others).to(tl.int32), axis=0) > 0:
                tl.store(good, 0)
        here = kept & (ids == tl.load(sampled + row).to(tl.int64))
        slot = tl.max(tl.where(here, atom, -1), axis=0)
        if slot < 0:
            tl.store(good + 1, 0)
        slot = tl.where(slot < 0, 0, slot)
        radius = zero + bound + bound_rest  # in float64
        active, step, kl_after, inverse, residual, _, number, _, at_slot, pull = solve_row(
            q, q_tail, p, p_tail, row, support_size, radius, slot, log_pi, metrics,
            TOLERANCE, BLOCK, True, LEAST, FLOOR,
        )  # fmt: skip
        if active == 0:
            at_slot = tl.load(q + row * support_size + slot).to(tl.float64)
        distance = at_slot - tl.load(p + row * support_size + slot).to(tl.float64)
        inside = (distance >= -LIMIT) & (distance <= LIMIT)
        distance = _clamped(distance, LIMIT)
        slope = -tl.load(advantages + row).to(tl.float64) * tl.exp(distance)
        alpha = zero + weight + weight_rest
        _store(losses, row, slope + alpha * pull)
        _store(log_ratio, row, distance)
        _store(pulls, row, pull)

        tl.store(places + row, slot * 2 + active.to(tl.int32))
        tl.store(state + row, step)
        tl.store(state + rows + row, inverse)
        tl.store(state + 2 * rows + row, tl.where(inside, zero + 1.0, zero))
        tl.store(state + 3 * rows + row, tl.where(inside, slope, zero))

        beyond = kl_after - radius
        _store(metrics, rows + row, kl_after)
        _store(metrics, 2 * rows + row, tl.where(beyond < 0, zero, beyond))
        _store(metrics, 3 * rows + row, step)
        _store(metrics, 4 * rows + row, active.to(tl.float64))
        _store(metrics, 5 * rows + row, residual)
        _store(metrics, 6 * rows + row, number.to(tl.float64))
        _store(metrics, 7 * rows + row, pull)
        moved = tl.load(q_label + row).to(tl.float64) - tl.load(p_label + row).to(tl.float64)
        moved = _clamped(moved, LIMIT)
        ratio = tl.exp(moved)
        _store(metrics, 8 * rows + row, ratio)
        _store(metrics, 9 * rows + row, tl.abs(moved))
        _store(metrics, 10 * rows + row, ratio * (moved - 1.0) + 1.0)
        outside = tl.load(dropped + row).to(tl.float64)
        _store(metrics, 11 * rows + row, 1.0 - tl.exp(tl.where(outside > 0, zero, outside)))


@triton.jit
def _rule_backward_kernel(
    q, q_tail, p, p_tail, log_pi, state, places, of_loss, of_ratio, of_pull,
    loss_stride, ratio_stride, pull_stride, of_q, of_tail, weight, weight_rest, rows, support_size,
    FLOOR: tl.constexpr, LEAST: tl.constexpr,
    HAS_LOSS: tl.constexpr, HAS_RATIO: tl.constexpr, HAS_PULL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per token: the gradients of its kept log-probs and its tail, zero where masked."""
    row = tl.program_id(0).to(tl.int64)
    atom = tl.arange(0, BLOCK)
    place = tl.load(places + row)
    result = tl.zeros([BLOCK], tl.float64)
    if place >= 0:
        zero = tl.full([], 0.0, tl.float64)
        of_slot, pulled = zero, zero
        if HAS_LOSS:
            upstream = tl.load(of_loss + row * loss_stride).to(tl.float64)
            of_slot += upstream * tl.load(state + 3 * rows + row)
            pulled += upstream * (zero + weight + weight_rest)
        if HAS_RATIO:
            upstream = tl.load(of_ratio + row * ratio_stride).to(tl.float64)
            of_slot += upstream * tl.load(state + 2 * rows + row)
        if HAS_PULL:
            pulled += tl.load(of_pull + row * pull_stride).to(tl.float64)
        result = tl.where(atom == place // 2, of_slot, result)
        if place % 2 == 1:
            new = atoms_of(q, q_tail, row, support_size, atom, True, LEAST)
            old = atoms_of(p, p_tail, row, support_size, atom, True, LEAST)
            own_at = log_pi + row * (support_size + 1) + atom
            own = tl.load(own_at, mask=atom <= support_size, other=float("-inf")).to(tl.float64)
            result = moved_back(new, old, own, result, tl.load(state + row), tl.load(state + rows + row))
            likely = tl.exp(new)
            apart = tl.where(likely == 0, 0.0, new - tl.where(own < FLOOR, FLOOR, own))
            result += pulled * likely * apart
    rounded = rounded_to(result, of_q.dtype.element_ty)
    tl.store(of_q + row * support_size + atom, rounded, mask=atom < support_size)
    free = tl.load(q_tail + row).to(tl.float64) >= LEAST
    last = tl.where(free, tl.sum(tl.where(atom == support_size, result, 0.0), axis=0), 0.0)
    _store(of_tail, row, last)


@dataclass(frozen=True)
class Tokens:
    """Constant inputs of the kernel besides the new policy's distribution: [B, T], ids [B, T, K]."""

    old: SparseLogProbs
    new_ids: Tensor
    sampled: Tensor
    mask: Tensor
    new_log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor


@dataclass(frozen=True)
class Settings:
    """Settings of the rule: bound, weight of the regression, its floor of log pi, limit of the log-ratio."""

    kl_bound: float
    weight: float
    floor: float
    limit: float


class RuleRows(torch.autograd.Function):
    """Loss, projected log-ratio and regression [N] in one launch, the gradients in another."""

    @staticmethod
    def forward(
        ctx: Any, kept: Tensor, tail: Tensor, tokens: Tokens, settings: Settings, box: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the loss; append the metrics [12, N] (`METRICS`) and checks (`_rule_kernel`) to `box`.

        Args:
            ctx: autograd context.
            kept: [N, K] log-probs of the new policy; K + 1 at most `MAX_ATOMS`.
            tail: [N] log-probs of its tail.
            tokens: all other inputs.
            settings: settings of the rule.
            box: receives metrics and checks.

        Returns:
            -A pi / p + weight KL(q || sg pi), the clamped log(pi / p) and the KL; each [N], 0 where masked.
        """
        old = tokens.old
        rows, support_size = kept.shape
        policies = [x.contiguous() for x in (kept, tail, old.log_probs, old.tail_log_prob)]
        dropped = old.tail_log_prob if old.dropped_log_mass is None else old.dropped_log_mass
        dtype = result_dtype(*policies)
        log_ratio, pulls = kept.new_empty(rows, dtype=dtype), kept.new_empty(rows, dtype=dtype)
        losses = kept.new_empty(rows, dtype=torch.promote_types(dtype, tokens.advantages.dtype))
        metrics = kept.new_empty(
            (len(METRICS), rows),
            dtype=result_dtype(kept, tokens.new_log_probs, tokens.old_log_probs, dropped),
        )
        log_pi = kept.new_empty((rows, support_size + 1), dtype=dtype)
        state = kept.new_empty((_STATE, rows), dtype=torch.float64)
        places = kept.new_empty(rows, dtype=torch.int32)
        good = _good(kept.device)
        mask = tokens.mask.view(torch.uint8) if tokens.mask.dtype == torch.bool else tokens.mask
        per_token = (tokens.sampled, mask, tokens.new_log_probs, tokens.old_log_probs, dropped)
        ctx.launch = {"FLOOR": settings.floor, "LEAST": DEFAULT_LOG_PROB, **_launch(support_size + 1)}
        ctx.weight = in_two(settings.weight)
        if rows:
            with torch.cuda.device_of(kept):
                _rule_kernel[(rows,)](
                    *policies, tokens.new_ids.contiguous(), old.token_ids.contiguous(),
                    *(x.contiguous() for x in (*per_token, tokens.advantages)),
                    losses, log_ratio, pulls, metrics, log_pi, state, places, good,
                    *in_two(settings.kl_bound), *ctx.weight, rows, support_size,
                    TOLERANCE=1e-10 if dtype == torch.float64 else 2e-5, LIMIT=settings.limit,
                    SAME_IDS=tokens.new_ids is old.token_ids, METRICS=len(METRICS), **ctx.launch,
                )  # fmt: skip
        ctx.save_for_backward(*policies, log_pi, state, places)
        ctx.set_materialize_grads(False)
        box += [metrics, good]
        return losses, log_ratio, pulls

    @staticmethod
    @differentiable_once("troll")
    def backward(
        ctx: Any, of_loss: Tensor | None, of_ratio: Tensor | None, of_pull: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """See `_rule_backward_kernel`."""
        kept, tail, *others = ctx.saved_tensors
        (rows, support_size), given = kept.shape, (of_loss, of_ratio, of_pull)
        of_kept, of_tail = torch.empty_like(kept), torch.empty_like(tail)
        if rows:
            with torch.cuda.device_of(kept):
                _rule_backward_kernel[(rows,)](
                    kept, tail, *others, *(others[-2] if x is None else x for x in given),
                    *(0 if x is None else x.stride(0) for x in given),
                    of_kept, of_tail, *ctx.weight, rows, support_size,
                    HAS_LOSS=of_loss is not None, HAS_RATIO=of_ratio is not None,
                    HAS_PULL=of_pull is not None, **ctx.launch,
                )  # fmt: skip
        return of_kept, of_tail, None, None, None


@functools.cache
def _good(device: torch.device) -> Tensor:
    """Two ones that the kernel may set to zero; cached because creating them takes a kernel launch."""
    return torch.ones(2, dtype=torch.int32, device=device)


def refuse(good: Tensor, messages: Sequence[str | None]) -> None:
    """Raise for failed checks of the kernel, without synchronising on a GPU.

    Args:
        good: [2], see `_rule_kernel`.
        messages: the message of each check; None skips it.

    Raises:
        UserError: see `troll.algorithms.backends.require`.
    """
    try:
        for found, message in zip(good, messages, strict=True):
            if message is not None:
                require(found, message)
    except UserError:
        good.fill_(1)
        raise
