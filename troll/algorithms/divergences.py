"""KL divergence of rows of log-probabilities: exact, never negative, safe at zero probability.

Computes the *generalised* divergence of each row,

    KL(a || b) = sum_i [ a_i (log a_i - log b_i) - a_i + b_i ],

whose terms are all >= 0. For rows that sum to one it is the usual KL divergence. Rows from a
low-precision log-softmax sum to 1 + delta: then the usual formula has an error of delta and can be negative,
whereas this one has an error of delta^2 / 2 and cannot.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from troll.algorithms.autograd import differentiable_once
from troll.algorithms.backends import result_dtype, row_chunks, takes_triton, wide_dtype


def kl_terms(log_a: Tensor, log_b: Tensor) -> Tensor:
    """The terms a (log a - log b) - a + b >= 0, elementwise, where 0 log 0 = 0 and a log(a / 0) = inf.

    Computed in the type of the inputs; propagates NaN.
    """
    a, b = log_a.exp(), log_b.exp()
    # For a = 0 the term is b; without the substitution 0 * (-inf) would be NaN.
    log_ratio = (log_a - log_b).masked_fill_(a == 0, 0.0)
    return (a * (log_ratio - 1.0) + b).clamp_(min=0.0)


class _RowKL(torch.autograd.Function):
    """Row-wise generalised KL with its closed-form gradient; only saves its two inputs."""

    @staticmethod
    def forward(ctx: Any, log_a: Tensor, log_b: Tensor) -> Tensor:
        """Sum the terms of each row in float64, one block of rows at a time."""
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
    respect to log a. It differs from the usual a (log a - log b + 1) by a multiple of a, which
    vanishes under any normalisation (log-softmax).

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
