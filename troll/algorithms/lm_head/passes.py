"""The passes over all tiles behind `troll.algorithms.lm_head.head`: forward, top-K and backward."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor

from troll.algorithms.autograd import differentiable_once
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head import tiles
from troll.algorithms.lm_head.plan import Kernels, Plan, matmul_, slices
from troll.algorithms.lm_head.tiles import (
    FLOOR,
    MASKED,
    RowGradients,
    RunningSums,
    Workspace,
    take_support_,
)
from troll.algorithms.lm_head.topk import RunningTopK, TopK, select
from troll.common.errors import UserError


def kernels(backend: str, device: torch.device, dtype: torch.dtype) -> Kernels:
    """The backend by name; "auto" is Triton on CUDA if installed (except in float64), else torch.

    Raises:
        UserError: an unknown backend, or "triton" where it cannot run.
    """
    if backend not in ("auto", "torch", "triton"):
        raise UserError(f"lm_head: backend is {backend!r}, must be auto, torch or triton")
    usable = dtype != torch.float64 and importlib.util.find_spec("triton") is not None
    if backend == "triton" and not (
        usable and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")
    ):
        raise UserError(
            "lm_head: backend triton needs the package triton, a CUDA device and no float64 inputs"
        )
    if backend == "triton" or (backend == "auto" and usable and device.type == "cuda"):
        return cast(Kernels, importlib.import_module("troll.algorithms.lm_head.triton"))
    return cast(Kernels, tiles)


def operand_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """Data type of the operands of matrix products.

    CPU matmuls cannot return float32 for bf16 operands, which are therefore converted to float32, tile by
    tile.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = torch.promote_types(hidden.dtype, weight.dtype)
    return dtype if device == "cuda" or dtype == torch.float64 else torch.float32


def _without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    return torch.autocast(tensor.device.type, enabled=False)


def _raw_tiles(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, workspace: Workspace
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Yields every tile of hidden @ weight.T + bias as (tokens, columns, tile, weights of these columns).

    The vocabulary is the outer loop, so each block of the weight is converted once.
    """
    for columns in slices(weight.shape[0], plan.chunk_vocab):
        block = weight[columns].to(plan.operands)
        for rows in slices(hidden.shape[0], plan.chunk_tokens):
            tile = workspace.tile("logits", rows.stop - rows.start, columns.stop - columns.start)
            matmul_(tile, hidden[rows], block.t())
            if bias is not None:
                tile.add_(bias[columns]).clamp_(min=MASKED)  # -inf: a padded vocabulary
            yield rows, columns, tile, block


def top(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    support_size: int,
    dropped_mass: float,
    plan: Plan,
) -> tuple[Tensor, Tensor, SparseLogProbs]:
    """The pass of the old policy: label log-probs, entropy and the K most likely tokens."""
    with _without_autocast(hidden):
        hidden = hidden.to(plan.operands)
        by_rows = plan.kernels is not tiles and _triton_topk().fits(weight.shape[0], support_size)
        find = _triton_topk().top_by_rows if by_rows else _top_by_tiles
        best, label_logits, rest = find(hidden, weight, bias, labels, support_size, plan)
    if by_rows:
        chosen: tuple[Tensor, Tensor, SparseLogProbs] = _rows().select(
            best, labels.contiguous(), label_logits, rest, dropped_mass
        )
        return chosen
    return select(best, labels, _impossible(label_logits), rest, dropped_mass)


def _triton_topk() -> Any:
    return importlib.import_module("troll.algorithms.lm_head.triton_topk")


def _top_by_tiles(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, support_size: int, plan: Plan
) -> tuple[TopK, Tensor, RunningSums]:
    tokens, device, dtype = hidden.shape[0], hidden.device, plan.accumulator
    workspace = plan.workspace(tokens, weight.shape[0], device)
    rest = RunningSums.empty(tokens, dtype, device)
    best = RunningTopK(tokens, support_size, dtype, device)
    label_logits = torch.zeros(tokens, dtype=dtype, device=device)
    for rows, columns, tile, _ in _raw_tiles(hidden, weight, bias, plan, workspace):
        plan.shape.apply_(tile)
        take_support_(tile, labels[rows].unsqueeze(1), columns.start, label_logits[rows].unsqueeze(1))
        maxima, removed = best.update_(rows, tile, columns.start)
        rest.fold_(rows, tile, workspace.tile("scratch", *tile.shape), maxima)
        rest.absorb_(removed, rows)
    return best, label_logits, rest


def _impossible(logits: Tensor) -> Tensor:
    """Replaces masked logits by -inf."""
    return logits.masked_fill(logits < FLOOR, float("-inf"))


def _rows() -> Any:
    return importlib.import_module("troll.algorithms.lm_head.triton_rows")


def _gemm() -> Any:
    return importlib.import_module("troll.algorithms.lm_head.triton_gemm")


class Head(torch.autograd.Function):
    """Label log-probs [N], entropy [N], log-probs at the support [N, K] and tail [N]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        support: Tensor | None,
        plan: Plan,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Folds all tiles; see `troll.algorithms.lm_head.head.lm_head` for the arguments."""
        ctx.set_materialize_grads(False)
        tokens, device, dtype = hidden.shape[0], hidden.device, plan.accumulator
        labels = labels.contiguous()
        support = None if support is None else support.contiguous()
        workspace = plan.workspace(tokens, weight.shape[0], device)
        sums = RunningSums.empty(tokens, dtype, device)
        label_logits = torch.zeros(tokens, dtype=dtype, device=device)
        logits = None if support is None else torch.full_like(support, float("-inf"), dtype=dtype)
        with _without_autocast(hidden):
            operand = hidden.to(plan.operands)
            gemm = _gemm() if plan.narrow and tokens else None
            if gemm is not None and gemm.fits(operand, weight):
                gemm.forward(operand, weight, bias, labels, support, plan, label_logits, logits, sums)
            else:
                for rows, columns, tile, _ in _raw_tiles(operand, weight, bias, plan, workspace):
                    plan.kernels.reduce_tile_(
                        tile,
                        columns.start,
                        rows,
                        labels,
                        support,
                        label_logits,
                        logits,
                        sums,
                        plan.shape,
                        workspace,
                    )
        finish = _finish if plan.kernels is tiles else _rows().finish
        label_log_probs, entropy, log_z, log_probs, tail = finish(label_logits, logits, sums)
        ctx.plan = plan
        ctx.save_for_backward(hidden, weight, bias, labels, support, log_z, entropy, log_probs, tail)
        return label_log_probs, entropy, log_probs, tail

    @staticmethod
    @differentiable_once("lm_head")
    def backward(
        ctx: Any,
        label_gradient: Tensor | None,
        entropy_gradient: Tensor | None,
        support_gradient: Tensor | None,
        tail_gradient: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        """Gradients of hidden, weight and bias from those of the four outputs (None where unused)."""
        hidden, weight, bias, labels, support, log_z, entropy, log_probs, tail = ctx.saved_tensors
        plan: Plan = ctx.plan
        wanted: tuple[bool, bool, bool] = ctx.needs_input_grad[:3]
        gradients = (_row_gradients if plan.kernels is tiles else _rows().row_gradients)(
            log_z,
            entropy,
            log_probs,
            tail,
            label_gradient,
            entropy_gradient,
            support_gradient,
            tail_gradient,
            slope=plan.shape.slope,
        )
        with _without_autocast(hidden):
            operand = hidden.to(plan.operands)
            gemm = _gemm() if plan.narrow and len(hidden) else None
            narrow = gemm is not None and gemm.serves_backward(operand, weight, gradients)
            backward = gemm.backward if gemm is not None and narrow else _backward
            return (
                *backward(operand, hidden, weight, bias, labels, support, gradients, plan, wanted),
                *[None] * 3,
            )


def _finish(
    label_logits: Tensor, logits: Tensor | None, sums: RunningSums
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Label log-probs, entropy and log Z [N]; log-probs at the support [N, K] and its tail [N], or None."""
    label_logits = _impossible(label_logits)
    log_probs = tail = None
    if logits is not None:
        logits, outside = _impossible(logits), sums.copy()
        sums.absorb_(logits)
        log_probs, tail = sums.log_probs(logits), outside.log_share_in(sums)
    return sums.log_probs(label_logits), sums.entropy(), sums.log_sum_exp(), log_probs, tail


def _row_gradients(
    log_z: Tensor,
    entropy: Tensor,
    log_probs: Tensor | None,
    tail: Tensor | None,
    label_gradient: Tensor | None,
    entropy_gradient: Tensor | None,
    support_gradient: Tensor | None,
    tail_gradient: Tensor | None,
    *,
    slope: float,
) -> RowGradients:
    """Per-token factors from upstream gradients; see `RowGradients` for the formulas."""
    total = torch.zeros_like(log_z)
    if label_gradient is not None:
        label_gradient = label_gradient * slope
        total = total + label_gradient
    if entropy_gradient is not None:
        entropy_gradient = entropy_gradient * slope
    shift, mass, at_tail = log_z, torch.ones_like(log_z), torch.zeros_like(log_z)
    log_mass = torch.zeros_like(log_z)
    at_support = None
    if log_probs is not None and tail is not None:
        has_tail = tail > float("-inf")
        log_mass = torch.where(has_tail, tail, 0.0)
        shift, mass = log_z + log_mass, log_mass.exp()
        if tail_gradient is not None:
            at_tail = torch.where(has_tail, tail_gradient * slope, 0.0)
            total = total + at_tail
        real = log_probs > float("-inf")
        at_support = torch.zeros_like(log_probs)
        if support_gradient is not None:
            at_support = torch.where(real, support_gradient * slope, 0.0)
            total = total + at_support.sum(-1)
        pull = total.unsqueeze(1)
        if entropy_gradient is not None:
            surprise = torch.where(real, log_probs, 0.0) + entropy.unsqueeze(1)
            pull = pull + entropy_gradient.unsqueeze(1) * surprise
        at_support = at_support - log_probs.exp() * pull
    offset, slopes = at_tail - mass * total, None
    if entropy_gradient is not None:
        slopes = -mass * entropy_gradient
        offset = offset + slopes * (log_mass + entropy)
    rows = (None if x is None else x.contiguous() for x in (slopes, label_gradient, at_support))
    return RowGradients(shift, offset, *rows)


def _backward(
    operand: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    support: Tensor | None,
    gradients: RowGradients,
    plan: Plan,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Recomputes every tile and multiplies its gradient into those of hidden, weight and bias."""
    tokens, vocab, dtype = hidden.shape[0], weight.shape[0], plan.accumulator
    workspace = plan.workspace(tokens, vocab, hidden.device)
    grad_hidden = torch.zeros_like(hidden, dtype=dtype) if wanted[0] else None
    # Each block is written once, so the tensor is not zeroed (unless there are no tokens) nor in float32.
    grad_weight = (torch.empty_like if tokens else torch.zeros_like)(weight) if wanted[1] else None
    grad_bias = (
        torch.zeros(vocab, dtype=dtype, device=hidden.device) if wanted[2] and bias is not None else None
    )
    block_gradient = grad_weight
    for rows, columns, tile, block in _raw_tiles(operand, weight, bias, plan, workspace):
        gradient = plan.kernels.gradient_tile_(
            tile,
            columns.start,
            labels[rows],
            None if support is None else support[rows],
            gradients.rows(rows),
            plan.shape,
            workspace,
            plan.operands,
        )
        if grad_bias is not None:
            grad_bias[columns] += gradient.sum(0, dtype=dtype)
        if grad_hidden is not None:
            matmul_(grad_hidden[rows], gradient, block, accumulate=True)
        if grad_weight is not None:
            if rows.start == 0:
                target = grad_weight[columns]
                block_gradient = target if target.dtype == dtype else torch.empty_like(target, dtype=dtype)
            assert block_gradient is not None
            matmul_(block_gradient, gradient.t(), operand[rows], accumulate=rows.start > 0)
            if rows.stop == tokens and block_gradient.dtype != grad_weight.dtype:
                grad_weight[columns] = block_gradient
    return (
        None if grad_hidden is None else grad_hidden.to(hidden.dtype),
        grad_weight,
        None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
    )
