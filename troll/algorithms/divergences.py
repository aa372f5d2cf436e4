"""KL divergence of rows of log-probabilities: exact, never negative, safe at zero probability.

For each row the *generalised* divergence is computed,

    KL(a || b) = sum_i [ a_i (log a_i - log b_i) - a_i + b_i ],

whose terms are all >= 0. When both rows sum to one it is the usual KL divergence. Rows that come out of
a low-precision log-softmax sum to 1 + delta; there the usual formula is off by delta and can be negative,
this one is off by delta^2 / 2 and cannot.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor

from troll.algorithms.autograd import differentiable_once
from troll.common.errors import UserError

Backend = Literal["auto", "torch", "triton"]

# Rows are worked through in pieces of this many elements: float64 temporaries stay at 32 MiB each.
CHUNK_ELEMENTS = 1 << 22
# A row of the projection lives in the registers of one program.
MAX_ATOMS = 2048

_default_backend: ContextVar[Backend] = ContextVar("troll_projection_backend", default="auto")


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@contextmanager
def default_backend(backend: Backend) -> Iterator[None]:
    """What "auto" means inside: "torch" to compare with, "triton" to run the kernels in Triton's interpreter.

    Args:
        backend: of `troll.project`, `kl_divergence` and the rules that use them.
    """
    token = _default_backend.set(backend)
    try:
        yield
    finally:
        _default_backend.reset(token)


def takes_triton(device: torch.device, backend: Backend = "auto", where: str = "project") -> bool:
    """Whether Triton kernels are to be used: "auto" takes them on CUDA where Triton is installed.

    Args:
        device: of the tensors.
        backend: "auto", "torch" or "triton".
        where: how messages call the caller.

    Raises:
        UserError: an unknown name, or Triton asked for where it cannot run.
    """
    backend = _default_backend.get() if backend == "auto" else backend
    if backend not in ("auto", "torch", "triton"):
        raise UserError(f"{where}: backend is {backend!r}, must be auto, torch or triton")
    if backend == "torch" or (backend == "auto" and device.type != "cuda"):
        return False
    usable = _triton_installed()
    if backend == "triton" and not (
        usable and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")
    ):
        raise UserError(f"{where}: backend triton needs the package triton and a CUDA device")
    return usable


def require(good: Tensor, message: str) -> None:
    """Refuse a condition that does not hold, without a wait where Triton kernels are used.

    Args:
        good: bool, one element.
        message: one line.

    Raises:
        UserError: it does not hold. On CUDA with Triton an assertion on the device fails instead, which
            prints the message and leaves the device unusable for the process.
    """
    if not takes_triton(good.device):
        if not bool(good):
            raise UserError(message)
        return
    try:
        torch._assert_async(good, message)
    except RuntimeError:
        if good.device.type == "cuda":  # an earlier error, that shows here
            raise
        raise UserError(message) from None


def require_equal(a: Tensor, b: Tensor, message: str) -> None:
    """Refuse tensors that differ, as `require` does."""
    if a is b:
        return
    if a.shape != b.shape or not takes_triton(a.device):
        if not torch.equal(a, b):
            raise UserError(message)
        return
    require((a == b).all(), message)


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest floating type of a device: float64, or float32 where that does not exist (Apple MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """The type of a result: the widest of the inputs, and at least float32.

    A KL divergence near 1e-2 does not survive bfloat16, so half-precision inputs give float32 results.
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def row_chunks(rows: int, width: int) -> Iterator[slice]:
    """Slices that cut [rows, width] into pieces of at most CHUNK_ELEMENTS elements, or one row."""
    step = max(1, CHUNK_ELEMENTS // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def kl_terms(log_a: Tensor, log_b: Tensor) -> Tensor:
    """The terms a (log a - log b) - a + b >= 0, elementwise, where 0 log 0 = 0 and a log(a / 0) = inf.

    Computed in the type of the inputs. NaN in, NaN out.
    """
    a, b = log_a.exp(), log_b.exp()
    # a = 0 leaves b. Without the substitution 0 * (-inf) would be NaN.
    log_ratio = (log_a - log_b).masked_fill_(a == 0, 0.0)
    return (a * (log_ratio - 1.0) + b).clamp_(min=0.0)


class _RowKL(torch.autograd.Function):
    """Row-wise generalised KL with its closed-form gradient; keeps nothing but its two inputs."""

    @staticmethod
    def forward(ctx: Any, log_a: Tensor, log_b: Tensor) -> Tensor:
        """Sum the terms of each row, in float64, a block of rows at a time."""
        ctx.save_for_backward(log_a, log_b)
        wide = wide_dtype(log_a.device)
        out = log_a.new_empty(log_a.shape[0], dtype=wide)
        for piece in row_chunks(*log_a.shape):
            out[piece] = kl_terms(log_a[piece].to(wide), log_b[piece].to(wide)).sum(-1)
        return out.to(result_dtype(log_a, log_b))

    @staticmethod
    @differentiable_once("kl_divergence")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients d/dlog a = a (log a - log b) and d/dlog b = b - a."""
        log_a, log_b = (x.to(grad.dtype) for x in ctx.saved_tensors)
        a = log_a.exp()
        upstream = grad.unsqueeze(-1)
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            log_ratio = (log_a - log_b).masked_fill_(a == 0, 0.0)
            grad_a = (upstream * a * log_ratio).to(ctx.saved_tensors[0].dtype)
        if ctx.needs_input_grad[1]:
            grad_b = (upstream * (log_b.exp() - a)).to(ctx.saved_tensors[1].dtype)
        return grad_a, grad_b


def kl_divergence(log_a: Tensor, log_b: Tensor) -> Tensor:
    """KL(a || b) over the last axis, differentiable in both arguments.

    The gradient is that of the generalised divergence of the module docstring, a (log a - log b) with
    respect to log a. It differs from the usual a (log a - log b + 1) by a multiple of a, which vanishes
    behind any normalisation (log-softmax).

    Args:
        log_a: [..., V] log-probabilities; -inf allowed.
        log_b: [..., V], the same shape.

    Returns:
        [...], at least float32; inf where a_i > 0 = b_i.
    """
    rows_a, rows_b = (x.reshape(-1, x.shape[-1]) for x in (log_a, log_b))
    if takes_triton(log_a.device, where="kl_divergence"):
        kernels = importlib.import_module("troll.algorithms.triton_projection")
        result: Tensor = kernels.RowKL.apply(rows_a, rows_b)
    else:
        result = _RowKL.apply(rows_a, rows_b)  # type: ignore[no-untyped-call]
    return result.reshape(log_a.shape[:-1])
