"""The two steps of `troll.algorithms.lm_head.tiles` as Triton kernels for CUDA.

The matrix products are computed by cuBLAS. The kernels read a tile once (forward) or read and write it once
(backward), whereas the torch implementation makes several passes. This module imports triton, an optional
dependency, so only `passes` and kernel modules import it. With ``TRITON_INTERPRET=1`` set before the import,
the kernels run on a CPU, for tests.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from troll.algorithms.lm_head.tiles import (
    FLOOR,
    MASKED,
    RowGradients,
    RunningSums,
    Shape,
    Workspace,
    damping_tile,
)

_BLOCK = 1024


@triton.jit
def tanh(x):
    """Tanh within 2 ulp; CUDA's tanh is not available in Triton's interpreter."""
    a = tl.abs(x)
    e = tl.exp(-2.0 * a)
    near = tl.minimum(a, 0.25)
    s = near * near
    series = 62.0 / 2835.0 - s * (1382.0 / 155925.0)
    series = 2.0 / 15.0 + s * (-17.0 / 315.0 + s * series)
    series = near + near * s * (-1.0 / 3.0 + s * series)
    y = tl.where(a < 0.25, series, (1.0 - e) / (1.0 + e))
    return tl.where(x < 0.0, -y, y)


@triton.jit
def _take_kernel(
    tile, stride, labels, support, start, columns, scale, masked, label_logits, support_logits,
    K: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program per token: copies the logits at its label and support, and masks those at the support."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row) - start
    inside = (label >= 0) & (label < columns)
    value = tl.load(tile + row * stride + label, mask=inside, other=0.0)
    tl.store(label_logits + row, value * scale, mask=inside)
    if K > 0:
        slots = tl.arange(0, BLOCK_K)
        ids = tl.load(support + row * K + slots, mask=slots < K, other=-1)
        local = ids - start
        within = (ids >= 0) & (local >= 0) & (local < columns)
        values = tl.load(tile + row * stride + local, mask=within, other=0.0)
        tl.store(support_logits + row * K + slots, values * scale, mask=within)
        tl.debug_barrier()  # all threads must read before any masks: the label may be in the support
        tl.store(tile + row * stride + local, tl.zeros([BLOCK_K], tl.float32) + masked, mask=within)


@triton.jit
def _fold_kernel(
    tile, stride, columns, scale, masked, maximum, total, weighted, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per token: folds its row into m, s = sum exp(z - m) and u = sum exp(z - m) (m - z)."""
    row = tl.program_id(0).to(tl.int64)
    m = tl.load(maximum + row)
    s = tl.load(total + row)
    u = tl.load(weighted + row)
    for first in range(0, columns, BLOCK):
        places = first + tl.arange(0, BLOCK)
        z = tl.load(tile + row * stride + places, mask=places < columns, other=masked) * scale
        top = tl.maximum(m, tl.max(z, axis=0))
        e = tl.exp(z - top)
        decay = tl.exp(m - top)
        u = (u + (top - m) * s) * decay + tl.sum(e * (top - z), axis=0)
        s = s * decay + tl.sum(e, axis=0)
        m = top
    tl.store(maximum + row, m)
    tl.store(total + row, s)
    tl.store(weighted + row, u)


@triton.jit
def _gradient_kernel(
    tile, stride, out, columns, start, scale, labels, shift, offset, slope, at_label,
    HAS_SLOPE: tl.constexpr, HAS_LABEL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per token and block: exp(x) (offset + slope * x), plus the label's own gradient."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = places < columns
    x = tl.load(tile + row * stride + places, mask=real, other=0.0) * scale - tl.load(shift + row)
    factor = tl.load(offset + row)
    if HAS_SLOPE:
        factor = factor + x * tl.load(slope + row)
    gradient = tl.exp(x) * factor
    if HAS_LABEL:
        here = (places + start) == tl.load(labels + row)
        gradient += tl.where(here, tl.load(at_label + row), 0.0)
    tl.store(out + row * stride + places, gradient.to(out.dtype.element_ty), mask=real)


@triton.jit
def _support_kernel(
    out, stride, step, columns, start, labels, support, at_label, at_support,
    K: tl.constexpr, BLOCK_K: tl.constexpr, HAS_LABEL: tl.constexpr,
):  # fmt: skip
    """One program per token: overwrites the gradient in the support's columns."""
    row = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, BLOCK_K)
    ids = tl.load(support + row * K + slots, mask=slots < K, other=-1)
    local = ids - start
    within = (ids >= 0) & (local >= 0) & (local < columns)
    gradient = tl.load(at_support + row * K + slots, mask=slots < K, other=0.0)
    if HAS_LABEL:
        gradient += tl.where(ids == tl.load(labels + row), tl.load(at_label + row), 0.0)
    tl.store(out + row * stride + local * step, gradient.to(out.dtype.element_ty), mask=within)


@triton.jit
def _centred_kernel(
    tile, columns, tokens, start, scale, masked, floor, bias, labels, centre, shift, offset, slope, at_label,
    HAS_BIAS: tl.constexpr, HAS_SLOPE: tl.constexpr, HAS_LABEL: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turns centred raw scores [columns, tokens] into the gradient, in place."""
    rows = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = rows < tokens
    added = tl.load(centre + rows, mask=real, other=0.0).to(tl.float32)
    rest = tl.load(shift + rows, mask=real, other=0.0)
    if not HAS_BIAS:
        rest += scale * added  # the small, exact rounding error of the shift
    factor = tl.load(offset + rows, mask=real, other=0.0)
    if HAS_SLOPE:
        steep = tl.load(slope + rows, mask=real, other=0.0)
    if HAS_LABEL:
        label = (tl.load(labels + rows, mask=real, other=-1) - start).to(tl.int32)
        more = tl.load(at_label + rows, mask=real, other=0.0)
    for index in range(COLUMNS):
        column = tl.program_id(0) * COLUMNS + index
        mask = real & (column < columns)
        place = tile + column.to(tl.int64) * tokens + rows
        raw = tl.load(place, mask=mask, other=0.0).to(tl.float32)
        if HAS_BIAS:
            own = tl.load(bias + column, mask=column < columns, other=0.0)
            raw += own - (own + added).to(tile.dtype.element_ty).to(tl.float32)
            raw = tl.where(own > floor, raw, masked)
        x = tl.maximum(raw * scale - rest, masked)
        gradient = tl.exp(x)
        if HAS_SLOPE:
            gradient *= factor + x * steep
        else:
            gradient *= factor
        if HAS_LABEL:
            gradient += tl.where(label == column, more, 0.0)
        tl.store(place, gradient.to(tile.dtype.element_ty), mask=mask)


def reduce_tile_(
    tile: Tensor,
    start: int,
    rows: slice,
    labels: Tensor,
    support: Tensor | None,
    label_logits: Tensor,
    support_logits: Tensor | None,
    sums: RunningSums,
    shape: Shape,
    workspace: Workspace,
) -> None:
    """As `troll.algorithms.lm_head.tiles.reduce_tile_`."""
    scale = _scale_(tile, shape)
    tokens, columns = tile.shape
    support_size = 0 if support is None else support.shape[1]
    own = labels[rows]
    _take_kernel[(tokens,)](
        tile, tile.stride(0), own, own if support is None else support[rows], start, columns, scale, MASKED,
        label_logits[rows], label_logits if support_logits is None else support_logits[rows],
        K=support_size, BLOCK_K=triton.next_power_of_2(max(support_size, 1)),
    )  # fmt: skip
    _fold_kernel[(tokens,)](
        tile, tile.stride(0), columns, scale, MASKED,
        sums.maximum[rows], sums.total[rows], sums.weighted[rows], BLOCK=_BLOCK,
    )  # fmt: skip


def gradient_tile_(
    tile: Tensor,
    start: int,
    labels: Tensor,
    support: Tensor | None,
    gradients: RowGradients,
    shape: Shape,
    workspace: Workspace,
    dtype: torch.dtype,
) -> Tensor:
    """As `troll.algorithms.lm_head.tiles.gradient_tile_`."""
    scale = _scale_(tile, shape)
    damping = damping_tile(tile, shape, workspace)
    tokens, columns = tile.shape
    out = tile if dtype == tile.dtype else workspace.tile("rounded", tokens, columns, dtype)
    shift, at_label, at_support = gradients.shift, gradients.at_label, gradients.at_support
    _gradient_kernel[(tokens, triton.cdiv(columns, _BLOCK))](
        tile, tile.stride(0), out, columns, start, scale, labels, shift, gradients.offset,
        shift if gradients.slope is None else gradients.slope, shift if at_label is None else at_label,
        HAS_SLOPE=gradients.slope is not None, HAS_LABEL=at_label is not None, BLOCK=_BLOCK,
    )  # fmt: skip
    if support is not None and at_support is not None:
        scatter_support_(out, start, labels, support, gradients)
    return out if damping is None else out.mul_(damping)


def centred_gradient_(
    tile: Tensor,
    start: int,
    scale: float,
    bias: Tensor | None,
    centre: Tensor,
    labels: Tensor,
    gradients: RowGradients,
) -> None:
    """Turns raw scores [v, n], to which ``centre`` [n] (and ``bias`` [v]) was added, into the gradient."""
    columns, tokens = tile.shape
    shift, slope, at_label = gradients.shift, gradients.slope, gradients.at_label
    _centred_kernel[(triton.cdiv(columns, 16), triton.cdiv(tokens, _BLOCK))](
        tile, columns, tokens, start, scale, MASKED, FLOOR, shift if bias is None else bias, labels, centre,
        shift, gradients.offset, shift if slope is None else slope, shift if at_label is None else at_label,
        HAS_BIAS=bias is not None, HAS_SLOPE=slope is not None, HAS_LABEL=at_label is not None,
        COLUMNS=16, BLOCK=_BLOCK,
    )  # fmt: skip


def scatter_support_(
    out: Tensor, start: int, labels: Tensor, support: Tensor, gradients: RowGradients
) -> None:
    """Overwrites the gradient ``out`` [n, v], of any strides, at the logits of the support."""
    at_label, at_support = gradients.at_label, gradients.at_support
    assert at_support is not None
    if not support.shape[1]:
        return
    _support_kernel[(len(support),)](
        out, out.stride(0), out.stride(1), out.shape[1], start, labels, support,
        gradients.shift if at_label is None else at_label, at_support,
        K=support.shape[1], BLOCK_K=triton.next_power_of_2(support.shape[1]), HAS_LABEL=at_label is not None,
    )  # fmt: skip


def _scale_(tile: Tensor, shape: Shape) -> float:
    """The kernels' factor of raw scores; a softcap is applied before, by torch."""
    if shape.softcap is None:
        return shape.slope
    shape.apply_(tile)
    return 1.0
