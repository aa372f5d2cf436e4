"""The projection and the row-wise KL divergence as Triton kernels, one launch per direction, for CUDA.

One program per row takes `troll.algorithms.path_solver` line by line, in float64: in float32 the result
leaves its ball (by 2e-3 of a bound of 1e-4) and the gradient of extreme rows is wrong. Rows are read in their
own type; those inside their ball are copied bit for bit by the program that found them there, so that the
host never has to know which rows are solved. The mathematics is in `troll.algorithms.projection`.

This module imports triton, which is optional: only `troll.algorithms.projection` and
`troll.algorithms.divergences` import it, where it runs. With ``TRITON_INTERPRET=1`` set before the import the
kernels run on a CPU, for tests.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from troll.algorithms import path_solver
from troll.algorithms.autograd import differentiable_once
from troll.algorithms.divergences import MAX_ATOMS, result_dtype

LOG_ZERO = tl.constexpr(path_solver.LOG_ZERO)
KL_ROUNDING = tl.constexpr(path_solver.KL_ROUNDING)
MAX_EVALUATIONS = tl.constexpr(path_solver.MAX_EVALUATIONS)
NOT_LOG_PROBS = tl.constexpr(1)
NO_PROBABILITY = tl.constexpr(2)
BAD_BOUND = tl.constexpr(3)
_KL_BLOCK = 1024


@triton.jit
def _kl_terms(log_a, log_b):
    """As `troll.algorithms.divergences.kl_terms`; a comparison, as `tl.maximum` would turn NaN into 0."""
    a = tl.exp(log_a)
    ratio = tl.where(a == 0, 0.0, log_a - log_b)
    terms = a * (ratio - 1.0) + tl.exp(log_b)
    return tl.where(terms < 0, 0.0, terms)


@triton.jit
def _rounded(x, dtype: tl.constexpr):
    """To a narrower type as torch does it, over float32: not every type has a conversion from float64."""
    return x if dtype == tl.float64 else x.to(tl.float32).to(dtype)


@triton.jit
def _log_sum_exp(x):
    """Log-sum-exp of a row; -inf for a row of -inf."""
    top = tl.max(x, axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    return top + tl.log(tl.sum(tl.exp(x - top), axis=0))


@triton.jit
def _evaluate(log_p, ratio, step):
    """Psi, variance and KL(pi || p) at one point of the path; log_p is -inf outside the common support."""
    x = log_p + step * ratio
    top = tl.max(x, axis=0)
    e = tl.exp(x - top)
    z = tl.sum(e, axis=0)
    psi = top + tl.log(z)
    pi = e / z
    mean = tl.sum(pi * ratio, axis=0)
    deviation = ratio - mean
    variance = tl.sum(pi * deviation * deviation, axis=0)
    kl = step * mean - psi
    return psi, variance, tl.where(kl < 0, 0.0, kl)


@triton.jit
def _first_step(log_p, ratio, target):
    """The root of the third-order expansion of KL at p; 1 where the ratio is constant."""
    weighted = tl.exp(log_p) * ratio * ratio
    variance = tl.sum(weighted, axis=0)
    curvature = tl.sum(weighted * ratio, axis=0) / (3.0 * variance)
    linear = target / tl.sqrt(variance)
    discriminant = 1.0 + 4.0 * curvature * linear
    better = 2.0 * linear / (1.0 + tl.sqrt(tl.where(discriminant > 0, discriminant, 0.0)))
    guess = tl.where(discriminant > 0, better, linear)
    return tl.where(guess > 0, tl.where(guess < 1.0, guess, 1.0), 1.0)


@triton.jit
def _atoms(kept, tail, row, keep, atom, SPARSE: tl.constexpr, LEAST: tl.constexpr):
    """A row in float64: `keep` entries, and with SPARSE its tail, which is at least LEAST, behind them."""
    x = tl.load(kept + row * keep + atom, mask=atom < keep, other=float("-inf")).to(tl.float64)
    if SPARSE:
        last = tl.load(tail + row).to(tl.float64)
        x = tl.where(atom == keep, tl.where(last < LEAST, LEAST, last), x)
    return x


@triton.jit
def _solve_row(
    q, q_tail, p, p_tail, row, keep, bound, slot, out, kl_out,
    TOLERANCE: tl.constexpr, BLOCK: tl.constexpr, SPARSE: tl.constexpr, LEAST: tl.constexpr,
    FLOOR: tl.constexpr,
):  # fmt: skip
    """Projects a row that is outside its ball into `out`; any other one is copied, but not with SPARSE.

    `kl_out` gets KL before at once: kept, it would spill. Returns active, step size, KL after, 1 / variance,
    residual, feasible, number of evaluations and status; with SPARSE also log pi at the slot, and KL(q || pi)
    with pi at least exp(FLOOR). Of a row without a result all floats are NaN.
    """
    atom = tl.arange(0, BLOCK)
    width = keep
    if SPARSE:
        width = keep + 1
    real = atom < width
    new = _atoms(q, q_tail, row, keep, atom, SPARSE, LEAST)
    old = _atoms(p, p_tail, row, keep, atom, SPARSE, LEAST)
    nothing = tl.full([], 0.0, tl.float64)
    one = tl.full([], 1.0, tl.float64)
    kl_before = tl.sum(_kl_terms(new, old), axis=0)
    tl.store(kl_out + row, kl_before)
    status = tl.full([], 0, tl.int32)
    infinite = (tl.max(new, axis=0) == float("inf")) | (tl.max(old, axis=0) == float("inf"))
    status = tl.where((bound >= 0) == 0, BAD_BOUND, status)
    status = tl.where((kl_before != kl_before) | infinite, NOT_LOG_PROBS, status)
    active = (kl_before > bound) & (status == 0)
    step, kl_after, inverse, residual, pull, at_slot = one, kl_before, nothing, nothing, nothing, nothing
    feasible = tl.full([], 1, tl.int32)
    number = tl.full([], 0, tl.int32)
    if active:
        old = tl.where(old < LOG_ZERO, float("-inf"), old)
        dead = tl.max(old, axis=0) == float("-inf")
        status = tl.where(dead, NO_PROBABILITY, status)
        scale = tl.where(dead, 0.0, _log_sum_exp(old))
        old = old - scale
        possible = old > float("-inf")
        common = (new >= LOG_ZERO) & possible
        # Where nothing is common the answer is p: its own support counts as common, with ratio 0.
        disjoint = tl.sum(common.to(tl.int32), axis=0) == 0
        common = common | (possible & disjoint)
        whole = tl.sum((possible & (common == 0)).to(tl.int32), axis=0) == 0
        log_mass = tl.where(whole, 0.0, _log_sum_exp(tl.where(common, old, float("-inf"))))
        restricted = tl.where(common, old - log_mass, float("-inf"))
        ratio = tl.where(common & (disjoint == 0), new - old, 0.0)
        ratio = tl.where(common, ratio - tl.sum(tl.exp(restricted) * ratio, axis=0), 0.0)

        remaining = bound + log_mass
        within = (remaining >= 0) & (disjoint == 0)
        remaining = tl.where(remaining < 0, 0.0, remaining)
        slack = KL_ROUNDING / remaining
        slack = tl.where(slack < TOLERANCE, TOLERANCE, tl.where(slack < 0.5, slack, 0.5))
        target = tl.sqrt(2.0 * remaining * (1.0 - 0.5 * slack))
        step = _first_step(restricted, ratio, target)
        # The end of the path may be inside after all where q has lost mass or had too much to begin with.
        if (whole == 0) | (tl.abs(_log_sum_exp(new)) > 1e-3):
            _, _, kl_end = _evaluate(restricted, ratio, one)
            step = tl.where(kl_end <= remaining, 1.0, step)
        step = tl.where(remaining == 0, 0.0, step)

        psi, variance, kl, lo = nothing, nothing, nothing, nothing
        hi = one
        last_miss = tl.full([], float("inf"), tl.float64)
        end_open = tl.full([], 1, tl.int32)
        done = tl.full([], 0, tl.int32)
        while done == 0:
            number += 1
            step = tl.where(number == MAX_EVALUATIONS, lo, step)
            psi, variance, kl = _evaluate(restricted, ratio, step)
            inside = kl <= remaining
            ended = inside & ((kl >= remaining * (1.0 - slack)) | (step == 1.0))
            # With a bound of zero the step is 0, and KL, which is rounded, need not be.
            ended = ended | (number == MAX_EVALUATIONS) | (remaining == 0)
            lo = tl.where(inside, step, lo)
            hi = tl.where(inside, hi, step)
            end_open = tl.where(inside, end_open, 0)
            miss = tl.log(target / tl.sqrt(2.0 * kl))
            newton = step * tl.exp(miss * 2.0 * kl / (step * step * variance))
            newton = tl.where((newton >= 1.0) & (end_open == 1), 1.0, newton)
            slow = tl.abs(miss) > 0.5 * last_miss
            last_miss = tl.abs(miss)
            allowed = (newton > lo) & ((newton < hi) | (end_open == 1)) & (slow == 0)
            bisected = tl.where(lo > 0, tl.sqrt(lo * hi), 0.1 * hi)
            step = tl.where(ended, step, tl.where(allowed, newton, bisected))
            done = ended.to(tl.int32)
        log_pi = restricted + step * ratio - psi
        step = tl.where(disjoint, 0.0, step)
        tight = step < 1.0
        inverse = tl.where(tight & (variance > 0), 1.0 / variance, 0.0)
        distance = tl.abs(kl - log_mass - bound)
        residual = tl.where(bound > 0, distance / bound, distance)
        residual = tl.where((tight == 0) & within, 0.0, residual)
        feasible = within.to(tl.int32)
        rounded = _rounded(log_pi, out.dtype.element_ty)
        tl.store(out + row * width + atom, rounded, mask=real)
        log_pi = rounded.to(tl.float64)
        # Read again: held in registers through the search, the rows would make them spill.
        old = _atoms(p, p_tail, row, keep, atom, SPARSE, LEAST)
        old = tl.where(old < LOG_ZERO, float("-inf"), old)
        old -= _log_sum_exp(old)
        kl_after = tl.sum(_kl_terms(log_pi, old), axis=0)
        if SPARSE:
            new = _atoms(q, q_tail, row, keep, atom, SPARSE, LEAST)
            terms = _kl_terms(new, tl.where(log_pi < FLOOR, FLOOR, log_pi))
            pull = tl.sum(tl.where(real, terms, 0.0), axis=0)
            at_slot = tl.sum(tl.where(atom == slot, log_pi, 0.0), axis=0)
    elif SPARSE == 0:
        given = tl.load(q + row * keep + atom, mask=real, other=0.0)
        tl.store(out + row * keep + atom, given.to(out.dtype.element_ty), mask=real)
    if status != 0:
        # Nobody reads the status now: NaN keeps such a row from passing for a result.
        bad = tl.full([], float("nan"), tl.float64)
        step, kl_after, inverse, residual, pull, at_slot = bad, bad, bad, bad, bad, bad
        tl.store(kl_out + row, bad)
        active = status != 0
        tl.store(out + row * width + atom, tl.full([BLOCK], float("nan"), out.dtype.element_ty), mask=real)
    return active, step, kl_after, inverse, residual, feasible, number, status, at_slot, pull


@triton.jit
def _project_kernel(
    log_q, log_p, bounds, bound_stride, out, report, root, flags, evaluations_out, rows, width,
    TOLERANCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: solves it or copies it.

    `report` [5, rows] gets step size, eta, KL before, KL after and residual; `root` [2, rows] step size and
    1 / variance in float64 for the backward pass; `flags` [3, rows] active, feasible and status.
    """
    row = tl.program_id(0).to(tl.int64)
    bound = tl.load(bounds + row * bound_stride)
    active, step, kl_after, inverse, residual, feasible, number, status, _, _ = _solve_row(
        log_q, log_q, log_p, log_p, row, width, bound, 0, out, report + 2 * rows, TOLERANCE, BLOCK,
        False, 0.0, 0.0,
    )  # fmt: skip
    tl.store(report + row, step)
    tl.store(report + rows + row, 1.0 / step - 1.0)
    tl.store(report + 3 * rows + row, kl_after)
    tl.store(report + 4 * rows + row, residual)
    tl.store(root + row, step)
    tl.store(root + rows + row, inverse)
    tl.store(flags + row, active.to(tl.int8))
    tl.store(flags + rows + row, feasible.to(tl.int8))
    tl.store(flags + 2 * rows + row, status.to(tl.int8))
    tl.store(evaluations_out + row, number.to(tl.int64))


@triton.jit
def _moved(new, old, own, g, step, inverse):
    """Gradient g of log pi in a solved row, carried back to log q: beta [ g - pi G - pi (r - m) C / v ]."""
    pi = tl.exp(own)
    common = (new >= LOG_ZERO) & (old >= LOG_ZERO)
    ratio = tl.where(common, new - old, 0.0)
    # Centred twice: the first shift keeps the second sum exact where r is large.
    mass = tl.sum(pi, axis=0)
    deviation = tl.where(common, ratio - tl.sum(pi * ratio, axis=0) / mass, 0.0)
    deviation = tl.where(common, deviation - tl.sum(pi * deviation, axis=0) / mass, 0.0)
    # Atoms outside the common support have log pi = -inf, whatever q does.
    g = tl.where(pi == 0, 0.0, g)
    covariance = tl.sum(g * deviation, axis=0) * inverse
    return step * (g - pi * (tl.sum(g, axis=0) + deviation * covariance))


@triton.jit
def _project_backward_kernel(
    log_q, log_p, log_pi, upstream, root, flags, result, rows, width, BLOCK: tl.constexpr
):
    """The gradient of active rows, with r from the inputs; that of others is the upstream one."""
    row = tl.program_id(0).to(tl.int64)
    atom = tl.arange(0, BLOCK)
    real = atom < width
    given = tl.load(upstream + row * width + atom, mask=real, other=0.0)
    if tl.load(flags + row) != 0:
        new = _atoms(log_q, log_q, row, width, atom, False, 0.0)
        old = _atoms(log_p, log_p, row, width, atom, False, 0.0)
        own = _atoms(log_pi, log_pi, row, width, atom, False, 0.0)
        moved = _moved(new, old, own, given.to(tl.float64), tl.load(root + row), tl.load(root + rows + row))
        tl.store(result + row * width + atom, _rounded(moved, result.dtype.element_ty), mask=real)
    else:
        tl.store(result + row * width + atom, given.to(result.dtype.element_ty), mask=real)


@triton.jit
def _kl_kernel(log_a, log_b, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row: the generalised KL(a || b)."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float64)
    for first in range(0, WIDTH, BLOCK):
        atom = first + tl.arange(0, BLOCK)
        real = atom < WIDTH
        a = tl.load(log_a + row * WIDTH + atom, mask=real, other=float("-inf")).to(tl.float64)
        b = tl.load(log_b + row * WIDTH + atom, mask=real, other=float("-inf")).to(tl.float64)
        total += _kl_terms(a, b)
    tl.store(out + row, tl.sum(total, axis=0))


@triton.jit
def _kl_backward_kernel(
    log_a, log_b, upstream, grad_a, grad_b, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    FOR_A: tl.constexpr, FOR_B: tl.constexpr,
):  # fmt: skip
    """One program per row and block: g a (log a - log b) and g (b - a)."""
    row = tl.program_id(0).to(tl.int64)
    atom = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = atom < WIDTH
    la = tl.load(log_a + row * WIDTH + atom, mask=real, other=float("-inf")).to(tl.float64)
    lb = tl.load(log_b + row * WIDTH + atom, mask=real, other=float("-inf")).to(tl.float64)
    g = tl.load(upstream + row).to(tl.float64)
    a = tl.exp(la)
    if FOR_A:
        moved = g * a * tl.where(a == 0, 0.0, la - lb)
        tl.store(grad_a + row * WIDTH + atom, _rounded(moved, grad_a.dtype.element_ty), mask=real)
    if FOR_B:
        moved = g * (tl.exp(lb) - a)
        tl.store(grad_b + row * WIDTH + atom, _rounded(moved, grad_b.dtype.element_ty), mask=real)


@dataclass
class Rows:
    """What the kernel reports of each row, [N]; see `troll.algorithms.projection.Projection`."""

    step_size: Tensor
    eta: Tensor
    kl_before: Tensor
    kl_after: Tensor
    residual: Tensor
    active: Tensor
    feasible: Tensor
    status: Tensor
    evaluations: Tensor


def _launch(width: int) -> dict[str, int]:
    """A program holds its row in registers: four atoms a thread up to 1,024, then eight; none is spilled."""
    block = max(32, triton.next_power_of_2(width))
    return {"BLOCK": block, "num_warps": min(max(block // 128, 1), 8)}


class ProjectRows(torch.autograd.Function):
    """Projection of the rows of [N, atoms] in one launch, its gradient in another."""

    @staticmethod
    def forward(
        ctx: Any,
        log_q: Tensor,
        log_p: Tensor,
        bound: Tensor,
        tolerance: float,
        box: list[Rows],
    ) -> Tensor:
        """Solve the rows outside their ball, copy the others; put the report into `box`.

        Args:
            ctx: autograd's.
            log_q: [N, atoms], at most `MAX_ATOMS`.
            log_p: [N, atoms].
            bound: [N], or [1] for all, float64.
            tolerance: see `troll.algorithms.projection.project`.
            box: gets the report.

        Returns:
            log pi [N, atoms].
        """
        log_q, log_p = log_q.contiguous(), log_p.contiguous()
        (rows, width), dtype = log_q.shape, result_dtype(log_q, log_p)
        assert width <= MAX_ATOMS
        out = torch.empty_like(log_q, dtype=dtype)
        report = log_q.new_empty((5, rows), dtype=dtype)
        root = log_q.new_empty((2, rows), dtype=torch.float64)
        flags = log_q.new_empty((3, rows), dtype=torch.int8)
        evaluations = log_q.new_empty(rows, dtype=torch.int64)
        ctx.launch = _launch(width)
        if rows:
            with torch.cuda.device_of(log_q):
                _project_kernel[(rows,)](
                    log_q, log_p, bound, 0 if bound.numel() == 1 else bound.stride(0), out, report, root,
                    flags, evaluations, rows, width, TOLERANCE=float(tolerance), **ctx.launch,
                )  # fmt: skip
        ctx.save_for_backward(log_q, log_p, out, root, flags)
        step_size, eta, kl_before, kl_after, residual = report.unbind()
        active, feasible = (flag.view(torch.bool) for flag in flags[:2].unbind())
        box.append(
            Rows(step_size, eta, kl_before, kl_after, residual, active, feasible, flags[2], evaluations)
        )
        return out

    @staticmethod
    @differentiable_once("project")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """See `_project_backward_kernel`."""
        log_q, log_p, log_pi, root, flags = ctx.saved_tensors
        rows, width = log_q.shape
        result = torch.empty_like(log_q)
        if rows:
            with torch.cuda.device_of(log_q):
                _project_backward_kernel[(rows,)](
                    log_q, log_p, log_pi, grad.contiguous(), root, flags, result, rows, width, **ctx.launch
                )
        return result, None, None, None, None


class RowKL(torch.autograd.Function):
    """Row-wise generalised KL in one launch, its gradient in another; keeps nothing but its two inputs."""

    @staticmethod
    def forward(ctx: Any, log_a: Tensor, log_b: Tensor) -> Tensor:
        """Sum the terms of each row [N, atoms], in float64."""
        log_a, log_b = log_a.contiguous(), log_b.contiguous()
        ctx.save_for_backward(log_a, log_b)
        rows, width = log_a.shape
        out = log_a.new_empty(rows, dtype=result_dtype(log_a, log_b))
        if rows:
            with torch.cuda.device_of(log_a):
                _kl_kernel[(rows,)](log_a, log_b, out, WIDTH=width, **_kl_launch(width))
        return out

    @staticmethod
    @differentiable_once("kl_divergence")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients d/dlog a = a (log a - log b) and d/dlog b = b - a."""
        log_a, log_b = ctx.saved_tensors
        (rows, width), (for_a, for_b) = log_a.shape, ctx.needs_input_grad
        grad_a = torch.empty_like(log_a) if for_a else None
        grad_b = torch.empty_like(log_b) if for_b else None
        if rows:
            launch = _kl_launch(width)
            with torch.cuda.device_of(log_a):
                _kl_backward_kernel[(rows, triton.cdiv(width, launch["BLOCK"]))](
                    log_a, log_b, grad.contiguous(), grad_a if for_a else log_a, grad_b if for_b else log_b,
                    WIDTH=width, FOR_A=for_a, FOR_B=for_b, **launch,
                )  # fmt: skip
        return grad_a, grad_b


def _kl_launch(width: int) -> dict[str, int]:
    block = min(max(32, triton.next_power_of_2(width)), _KL_BLOCK)
    return {"BLOCK": block, "num_warps": min(max(block // 128, 1), 4)}


def in_two(number: float) -> tuple[float, float]:
    """A number as the sum of two that survive the way to a kernel, which is in float32."""
    first = ctypes.c_float(number).value
    return first, number - first if math.isfinite(first) else 0.0
