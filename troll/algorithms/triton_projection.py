"""The projection and the row-wise KL divergence as Triton kernels for CUDA, one launch per direction.

One program per row solves it with `troll.algorithms.triton_solver`. Rows are read in their data type; the
program copies a row inside its ball bit for bit, so the host need not know which rows are solved. See
`troll.algorithms.projection` for the mathematics.

This module imports triton, an optional dependency, so `troll.algorithms.projection` and
`troll.algorithms.divergences` only import it where it is used. With ``TRITON_INTERPRET=1`` set before the
import, the kernels run on a CPU, for tests.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from troll.algorithms.autograd import differentiable_once
from troll.algorithms.backends import MAX_ATOMS, result_dtype
from troll.algorithms.triton_solver import atoms_of, kl_terms, moved_back, rounded_to, solve_row

_KL_BLOCK = 1024


@triton.jit
def _project_kernel(
    log_q, log_p, bounds, bound_stride, out, report, root, flags, evaluations_out, rows, width,
    TOLERANCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: solves it or copies it.

    Writes to `report` [5, rows] step size, eta, KL before, KL after and residual; to `root` [2, rows] step
    size and 1 / variance in float64 for the backward pass; to `flags` [3, rows] active, feasible and status.
    """
    row = tl.program_id(0).to(tl.int64)
    bound = tl.load(bounds + row * bound_stride)
    active, step, kl_after, inverse, residual, feasible, number, status, _, _ = solve_row(
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
def _project_backward_kernel(
    log_q, log_p, log_pi, upstream, root, flags, result, rows, width, BLOCK: tl.constexpr
):
    """The gradient of active rows, with r from the inputs; the upstream gradient for all others."""
    row = tl.program_id(0).to(tl.int64)
    atom = tl.arange(0, BLOCK)
    real = atom < width
    given = tl.load(upstream + row * width + atom, mask=real, other=0.0)
    if tl.load(flags + row) != 0:
        new = atoms_of(log_q, log_q, row, width, atom, False, 0.0)
        old = atoms_of(log_p, log_p, row, width, atom, False, 0.0)
        own = atoms_of(log_pi, log_pi, row, width, atom, False, 0.0)
        moved = moved_back(
            new, old, own, given.to(tl.float64), tl.load(root + row), tl.load(root + rows + row)
        )
        tl.store(result + row * width + atom, rounded_to(moved, result.dtype.element_ty), mask=real)
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
        total += kl_terms(a, b)
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
        tl.store(grad_a + row * WIDTH + atom, rounded_to(moved, grad_a.dtype.element_ty), mask=real)
    if FOR_B:
        moved = g * (tl.exp(lb) - a)
        tl.store(grad_b + row * WIDTH + atom, rounded_to(moved, grad_b.dtype.element_ty), mask=real)


@dataclass
class Rows:
    """The kernel's report of each row, [N]; see `troll.algorithms.projection.Projection`."""

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
    """A program keeps its row in registers, unspilled: four atoms per thread up to 1,024, else eight."""
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
        """Solve the rows outside their ball, copy the others, and append the report to `box`.

        Args:
            ctx: autograd context.
            log_q: [N, atoms], at most `MAX_ATOMS` atoms.
            log_p: [N, atoms].
            bound: [N], or [1] for all rows, float64.
            tolerance: see `troll.algorithms.projection.project`.
            box: receives the report.

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
    """Row-wise generalised KL in one launch, its gradient in another; only saves its two inputs."""

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
