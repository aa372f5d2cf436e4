"""The head with 16-bit operands on CUDA: float32 logits are never in memory.

Backward processes a block of the vocabulary for all tokens at once. It only stores the gradient of the logits
in the operands' type, so each block of the weight's gradient is one product over all tokens, summed in
float32 and rounded once.

On GPUs with tensor memory descriptors (Hopper), `fold_gemm` and `gradient_gemm` work on the product's
accumulators. Elsewhere cuBLAS computes the tile of backward and adds each token's shift in its epilogue. Then
z - shift is rounded, which is small wherever a probability is not, instead of z (as in TRL's chunked head),
whose rounding error hides differences of probabilities once all logits are some tens from 0. Forward is then
that of `troll.algorithms.lm_head.passes`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from troll.algorithms.lm_head.plan import Plan, matmul_, slices
from troll.algorithms.lm_head.tiles import FLOOR, MASKED, RowGradients, RunningSums
from troll.algorithms.lm_head.triton import centred_gradient_, scatter_support_
from troll.algorithms.lm_head.triton_rows import GROUP

# The fastest of 16 and of 12 configurations on an H100 at 8,192 tokens, D 1,024 and V 151,936: 3.8 ms (4.3 ms
# with one program per tile), and 4.5 ms; cuBLAS takes 3.7 ms for the same products without the gradient.
FOLD = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 64, "num_warps": 8, "num_stages": 3}
GRADIENT = {"BM": GROUP, "BN": 256, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 4}
FOLD_BYTES = 96 * 2**20
"""Memory limit of the results of one launch of `fold_gemm`."""


@triton.jit
def _place(pid, nm, nn, GROUP: tl.constexpr):
    """Row and column of a tile, in groups of GROUP rows of tiles for better cache reuse."""
    group = pid // (GROUP * nn)
    size = tl.minimum(nm - group * GROUP, GROUP)
    within = pid % (GROUP * nn)
    return group * GROUP + within % size, within // size


@triton.jit
def _logits(
    h, w, bias, row, column, columns, scale, masked,
    D: tl.constexpr, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """[BM, BN] logits in float32."""
    tile = tl.zeros([BM, BN], tl.float32)
    for k in range(0, D, BK):
        tile = tl.dot(h.load([row, k]), w.load([column, k]).T, tile, input_precision="ieee")
    if HAS_BIAS:
        places = column + tl.arange(0, BN)
        tile += tl.load(bias + places, mask=places < columns, other=0.0).to(tl.float32)[None, :]
        return tl.maximum(tile * scale, masked)
    return tile * scale


@triton.jit
def fold_gemm(
    h, w, bias, labels, bits, bits_stride, label_logits, part_m, part_s, part_u, tokens, columns, start,
    scale, masked, floor,
    D: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BITS: tl.constexpr, PROGRAMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Computes tiles of logits and writes their per-token sums (see `RunningSums`) to [columns / BN, tokens].

    Each of the PROGRAMS processes every PROGRAMS-th tile, and prefetches the next one while it folds.
    """
    nm, nn = tl.cdiv(tokens, BM), tl.cdiv(columns, BN)
    for tile in tl.range(tl.program_id(0), nm * nn, PROGRAMS, flatten=True):
        pid_m, pid_n = _place(tile, nm, nn, GROUP)
        rows = pid_m * BM + tl.arange(0, BM)
        places = pid_n * BN + tl.arange(0, BN)
        real = rows < tokens
        z = _logits(h, w, bias, pid_m * BM, pid_n * BN, columns, scale, masked, D, HAS_BIAS, BM, BN, BK)
        z = tl.where((places < columns)[None, :], z, masked)
        label = (tl.load(labels + rows, mask=real, other=-1) - start).to(tl.int32)
        found = tl.sum(tl.where(places[None, :] == label[:, None], z, 0.0), axis=1)
        tl.store(label_logits + rows, found, mask=real & (label >= pid_n * BN) & (label < pid_n * BN + BN))
        if HAS_BITS:
            words = pid_n * (BN // 32) + tl.arange(0, BN // 32)
            word = tl.load(
                bits + rows.to(tl.int64)[:, None] * bits_stride + words[None, :], mask=real[:, None], other=0
            )
            bit = (word[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1
            z = tl.where(tl.reshape(bit.to(tl.int8), [BM, BN]) != 0, masked, z)
        m = tl.maximum(tl.max(z, axis=1), floor)
        z -= m[:, None]
        e = tl.exp(z)
        place = pid_n.to(tl.int64) * tokens + rows
        tl.store(part_m + place, m, mask=real)
        tl.store(part_s + place, tl.sum(e, axis=1), mask=real)
        tl.store(part_u + place, -tl.sum(e * z, axis=1), mask=real)


@triton.jit
def _merge_kernel(
    part_m, part_s, part_u, parts, tokens, maximum, total, weighted, floor,
    PARTS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Adds the sums [parts, tokens] of `fold_gemm` to the running sums."""
    rows = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    real = rows < tokens
    m = tl.load(maximum + rows, mask=real, other=floor)
    s = tl.load(total + rows, mask=real, other=0.0)
    u = tl.load(weighted + rows, mask=real, other=0.0)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        place = part.to(tl.int64)[:, None] * tokens + rows[None, :]
        mask = (part < parts)[:, None] & real[None, :]
        pm = tl.load(part_m + place, mask=mask, other=floor)
        ps = tl.load(part_s + place, mask=mask, other=0.0)
        pu = tl.load(part_u + place, mask=mask, other=0.0)
        top = tl.maximum(m, tl.max(pm, axis=0))
        rise, decay = top[None, :] - pm, tl.exp(pm - top[None, :])
        own = tl.exp(m - top)
        u = (u + (top - m) * s) * own + tl.sum((pu + rise * ps) * decay, axis=0)
        s = s * own + tl.sum(ps * decay, axis=0)
        m = top
    tl.store(maximum + rows, m, mask=real)
    tl.store(total + rows, s, mask=real)
    tl.store(weighted + rows, u, mask=real)


@triton.jit
def _mark_kernel(bits, bits_stride, support, start, columns, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """One program per token: sets the bits of the ids of its support that are among the columns."""
    row = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, BLOCK_K)
    ids = tl.load(support + row * K + slots, mask=slots < K, other=-1)
    local = ids - start
    within = (ids >= 0) & (local >= 0) & (local < columns)
    one = (tl.zeros([BLOCK_K], tl.int32) + 1) << (local % 32).to(tl.int32)
    tl.atomic_or(bits + row * bits_stride + local // 32, one, mask=within, sem="relaxed")


@triton.jit
def _gather_kernel(
    h, h_stride, w, w_stride, bias, labels, support, scale, masked, label_logits, support_logits,
    K: tl.constexpr, D: tl.constexpr, HAS_BIAS: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Logits at some slots of a token's support; a label among them gets bitwise the same logit."""
    row = tl.program_id(0).to(tl.int64)
    slots = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    ids = tl.load(support + row * K + slots, mask=slots < K, other=-1)
    used = ids >= 0
    z = tl.zeros([SLOTS], tl.float32)
    for k in range(0, D, BLOCK):
        depth = k + tl.arange(0, BLOCK)
        state = tl.load(h + row * h_stride + depth, mask=depth < D, other=0.0)
        values = tl.load(
            w + ids[:, None] * w_stride + depth[None, :], mask=used[:, None] & (depth < D)[None, :], other=0.0
        )
        values = values.to(state.dtype).to(tl.float32)  # in the operand type of the products
        z += tl.sum(values * state.to(tl.float32)[None, :], axis=1)
    if HAS_BIAS:
        z += tl.load(bias + ids, mask=used, other=0.0).to(tl.float32)
    z = tl.maximum(z * scale, masked)
    tl.store(support_logits + row * K + slots, z, mask=used)
    here = used & (ids == tl.load(labels + row))
    tl.store(label_logits + row + tl.zeros([SLOTS], tl.int64), z, mask=here)


@triton.jit
def gradient_gemm(
    h, w, bias, out, busy, labels, shift, offset, slope, at_label, tokens, columns, start, scale, masked,
    D: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPE: tl.constexpr, HAS_LABEL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of exp(z - shift) (offset + slope (z - shift)) in 16 bits; zeros where no row is busy."""
    pid_m, pid_n = _place(tl.program_id(0), tl.cdiv(tokens, BM), tl.cdiv(columns, BN), GROUP)
    if tl.load(busy + pid_m) == 0:
        out.store([pid_m * BM, pid_n * BN], tl.zeros([BM, BN], out.dtype))
    else:
        rows = pid_m * BM + tl.arange(0, BM)
        real = rows < tokens
        x = _logits(h, w, bias, pid_m * BM, pid_n * BN, columns, scale, masked, D, HAS_BIAS, BM, BN, BK)
        x -= tl.load(shift + rows, mask=real, other=0.0)[:, None]
        gradient = tl.exp(x)
        if HAS_SLOPE:
            factor = tl.load(offset + rows, mask=real, other=0.0)[:, None]
            gradient *= factor + x * tl.load(slope + rows, mask=real, other=0.0)[:, None]
        else:
            gradient *= tl.load(offset + rows, mask=real, other=0.0)[:, None]
        if HAS_LABEL:
            label = (tl.load(labels + rows, mask=real, other=-1) - start).to(tl.int32)
            places = pid_n * BN + tl.arange(0, BN)
            more = tl.load(at_label + rows, mask=real, other=0.0)
            gradient += tl.where(places[None, :] == label[:, None], more[:, None], 0.0)
        out.store([pid_m * BM, pid_n * BN], gradient.to(out.dtype))


def has_descriptors(device: torch.device) -> bool:
    """Whether the device supports these kernels: Hopper, data-centre Blackwell, or the interpreter."""
    if device.type != "cuda":
        return os.environ.get("TRITON_INTERPRET") == "1"
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def fits(operand: Tensor, weight: Tensor) -> bool:
    """Whether descriptors can read hidden states and weight, whose rows must be multiples of 16 bytes."""
    step = 16 // operand.element_size()
    whole = weight.dtype != operand.dtype or _aligned(weight, step)  # else converted to new memory
    return has_descriptors(operand.device) and operand.shape[1] % step == 0 and whole


def serves_backward(operand: Tensor, weight: Tensor, gradients: RowGradients) -> bool:
    """False for a gradient of the entropy if tiles are rounded: the error would be 2.5 times as large.

    This gradient weights a probability by its logarithm, and so is largest where |z - shift| is large.
    """
    return gradients.slope is None or fits(operand, weight)


def _aligned(matrix: Tensor, step: int) -> bool:
    return matrix.stride(1) == 1 and matrix.stride(0) % step == 0 and matrix.data_ptr() % 16 == 0


def readable(matrix: Tensor) -> Tensor:
    """The matrix in memory that descriptors can read; copied if necessary."""
    good = _aligned(matrix, 16 // matrix.element_size())
    return matrix if good else matrix.clone(memory_format=torch.contiguous_format)


def descriptor(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Descriptor that reads a `readable` matrix in blocks of rows and columns."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def forward(
    operand: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    support: Tensor | None,
    plan: Plan,
    label_logits: Tensor,
    support_logits: Tensor | None,
    sums: RunningSums,
) -> None:
    """Writes the logits at labels [N] and support [N, K]; adds all others to ``sums``."""
    (tokens, depth), vocab, scale = operand.shape, weight.shape[0], plan.shape.slope
    operand, device = readable(operand), operand.device
    support = support if support is not None and support.shape[1] else None
    whole = weight.dtype == operand.dtype
    step = vocab if whole else min(vocab, plan.chunk_vocab)
    parts, words = triton.cdiv(step, FOLD["BN"]), triton.cdiv(step, FOLD["BN"]) * FOLD["BN"] // 32
    masks = 0 if support is None else words
    launches = triton.cdiv(4 * (3 * parts + masks) * tokens, FOLD_BYTES)
    chunk = triton.cdiv(triton.cdiv(tokens, launches), FOLD["BM"]) * FOLD["BM"]
    on_cuda = device.type == "cuda"
    programs = torch.cuda.get_device_properties(device).multi_processor_count if on_cuda else 3
    buffers = torch.empty(3, parts * chunk, dtype=torch.float32, device=device)
    bits = torch.empty(chunk * masks, dtype=torch.int32, device=device)
    for columns in slices(vocab, step):
        width = columns.stop - columns.start
        block = weight[columns].to(operand.dtype)
        for rows in slices(tokens, chunk):
            count, nn = rows.stop - rows.start, triton.cdiv(width, FOLD["BN"])
            if support is not None:
                bits.zero_()
                _mark_kernel[(count,)](
                    bits, words, support[rows], columns.start, width,
                    K=support.shape[1], BLOCK_K=triton.next_power_of_2(support.shape[1]),
                )  # fmt: skip
            fold_gemm[(programs,)](
                descriptor(operand[rows], FOLD["BM"], FOLD["BK"]),
                descriptor(block, FOLD["BN"], FOLD["BK"]),
                sums.total if bias is None else bias[columns], labels[rows], bits, words, label_logits[rows],
                *buffers, count, width, columns.start, scale, MASKED, FLOOR,
                D=depth, HAS_BIAS=bias is not None, HAS_BITS=support is not None, PROGRAMS=programs, **FOLD,
            )  # fmt: skip
            _merge_kernel[(triton.cdiv(count, 32),)](
                *buffers, nn, count, sums.maximum[rows], sums.total[rows], sums.weighted[rows], FLOOR,
                PARTS=32, TOKENS=32,
            )  # fmt: skip
    if support is not None and support_logits is not None:
        slots = min(16, triton.next_power_of_2(support.shape[1]))
        _gather_kernel[(tokens, triton.cdiv(support.shape[1], slots))](
            operand, operand.stride(0), weight, weight.stride(0), sums.total if bias is None else bias,
            labels, support, scale, MASKED, label_logits, support_logits,
            K=support.shape[1], D=depth, HAS_BIAS=bias is not None, SLOTS=slots, BLOCK=256,
        )  # fmt: skip


def block_columns(plan: Plan, tokens: int, vocab: int) -> int:
    """Columns of a block in backward, in the memory of a float32 tile and its rounded copy; at least 256."""
    elements = 3 * plan.chunk_tokens * plan.chunk_vocab
    return min(vocab, max(256, elements // tokens // 256 * 256))


def gradient_blocks(
    operand: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    gradients: RowGradients,
    plan: Plan,
    fused: bool = True,
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yields blocks of the vocabulary as (columns, gradient of logits [N, block], weights [block, D])."""
    (tokens, depth), vocab, scale, dtype = operand.shape, weight.shape[0], plan.shape.slope, plan.operands
    step = block_columns(plan, tokens, vocab)
    stride = triton.cdiv(step, 8) * 8
    buffer = torch.empty(tokens * stride, dtype=dtype, device=operand.device)
    shift, slope, at_label = gradients.shift, gradients.slope, gradients.at_label
    flags = {"HAS_BIAS": bias is not None, "HAS_SLOPE": slope is not None, "HAS_LABEL": at_label is not None}
    # Placeholders for absent tensors, which are never read.
    factors = [gradients.offset, *(shift if x is None else x for x in (slope, at_label))]
    if not fused:
        largest = torch.finfo(dtype).max
        centre = (shift / -scale).clamp(-largest, largest).to(dtype)
    for columns in slices(vocab, step):
        width = columns.stop - columns.start
        block = weight[columns].to(dtype)
        block_bias = None if bias is None else bias[columns].float().clamp(min=MASKED)
        if fused:
            tile = buffer[: tokens * stride].view(tokens, stride)[:, :width]
            grid = (triton.cdiv(tokens, GRADIENT["BM"]) * triton.cdiv(width, GRADIENT["BN"]),)
            gradient_gemm[grid](
                descriptor(operand, GRADIENT["BM"], GRADIENT["BK"]),
                descriptor(block, GRADIENT["BN"], GRADIENT["BK"]), shift if block_bias is None else
                block_bias, descriptor(tile, GRADIENT["BM"], GRADIENT["BN"]), gradients.busy, labels, shift,
                *factors, tokens, width, columns.start, scale, MASKED, D=depth, **flags, **GRADIENT,
            )  # fmt: skip
            yield columns, tile, block
            continue
        tile = buffer[: tokens * width].view(width, tokens)
        if block_bias is None:
            torch.addmm(centre, block, operand.t(), out=tile)
        else:
            torch.add(block_bias.unsqueeze(1), centre.float(), out=tile)
            tile.addmm_(block, operand.t())
        centred_gradient_(tile, columns.start, scale, block_bias, centre, labels, gradients)
        yield columns, tile.t(), block


@contextmanager
def _sums_in_float32() -> Iterator[None]:
    """Makes cuBLAS add the parts of split products in float32 instead of the type of the result."""
    settings = torch.backends.cuda.matmul
    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    before = [getattr(settings, name) for name in names]
    try:
        for name in names:
            setattr(settings, name, False)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(settings, name, value)


def backward(
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
    """Gradients of hidden, weight and bias, as `troll.algorithms.lm_head.passes` computes them by tiles."""
    operand, dtype, fused = readable(operand), plan.accumulator, fits(operand, weight)
    grad_hidden = torch.zeros_like(hidden, dtype=dtype) if wanted[0] else None
    grad_weight = torch.empty_like(weight) if wanted[1] else None
    grad_bias = torch.empty_like(bias, dtype=dtype) if wanted[2] and bias is not None else None
    with _sums_in_float32():
        for columns, gradient, block in gradient_blocks(
            operand, weight, bias, labels, gradients, plan, fused
        ):
            if support is not None and gradients.at_support is not None:
                scatter_support_(gradient, columns.start, labels, support, gradients)
            if grad_bias is not None:
                grad_bias[columns] = gradient.sum(0, dtype=dtype)
            if grad_hidden is not None:
                matmul_(grad_hidden, gradient, block, accumulate=True)
            if grad_weight is not None:
                target = grad_weight[columns]
                direct = target.dtype in (dtype, plan.operands)
                product = target if direct else torch.empty_like(target, dtype=dtype)
                matmul_(product, gradient.t(), operand)
                if not direct:
                    target.copy_(product)
    return (
        None if grad_hidden is None else grad_hidden.to(hidden.dtype),
        grad_weight,
        None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
    )
