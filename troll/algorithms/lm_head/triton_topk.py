"""The exact K largest logits of whole rows as Triton kernels, without synchronising with the host.

A chunk of rows is multiplied with the whole vocabulary at once. Rows are split into blocks of B columns. Two
launches compute the inputs of `troll.algorithms.lm_head.topk.select`, excluding the label in registers:

* ``_stats_kernel`` reads the row once and computes maximum, sum of exp and weighted sum of every block (on
  Hopper, with 16-bit operands, ``_product_kernel`` computes them from the accumulators of the product);
* ``_choose_kernel`` selects the K blocks with the largest maxima and sums all others from their statistics;
* ``_select_kernel`` reads those K blocks again, selects their K largest logits and sums the others.

No logit outside the chosen blocks is above the smallest chosen maximum, and the K maxima are logits
themselves, so the K largest logits are in the chosen blocks. Sums are only added, never subtracted, so a rest
of e^-50 of the mass keeps its precision. This module imports triton, an optional dependency, so only `passes`
imports it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from troll.algorithms.lm_head import triton_gemm
from troll.algorithms.lm_head.plan import Plan, matmul_, slices
from troll.algorithms.lm_head.tiles import FLOOR, MASKED, RunningSums, Shape
from troll.algorithms.lm_head.topk import TopK
from troll.algorithms.lm_head.triton import tanh
from troll.algorithms.lm_head.triton_gemm import _place

MOST = 1024
"""The largest K that the kernels support."""

_WIDEST = 16384
"""Maximum elements of one program: all block maxima of a row, or its K chosen blocks."""

STATS_COLUMNS = 2048
"""Columns per program of ``_stats_kernel``; 8,192 would need seven times the registers."""

STATS_WARPS = 8

PRODUCT = {"BM": 256, "BN": 128, "BK": 64, "GROUP": 64, "num_warps": 8, "num_stages": 3}
"""Sizes of ``_product_kernel``: 208 KiB of a multiprocessor's 227 KiB of shared memory, and all registers."""

_MASKED: tl.constexpr = tl.constexpr(MASKED)
_FLOOR: tl.constexpr = tl.constexpr(FLOOR)


@triton.jit
def _logits(raw, bias, columns, real, scale, cap, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr):
    """Logits of raw scores, whose shape ``columns`` must broadcast to; MASKED for -inf; propagates NaN."""
    x = raw
    if HAS_BIAS:
        x += tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)
    x = tanh(tl.where(x < _MASKED, _MASKED, x) * scale) * cap if HAS_CAP else x * scale
    return tl.where(x < _MASKED, _MASKED, x)


@triton.jit
def _keys(x):
    """Maps float32 to uint32 keys of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@triton.jit
def _largest(keys, real, wanted, floor):
    """Marks the ``wanted`` largest keys (all real keys if fewer), ties by position, with bisection.

    At least ``wanted`` keys must be at or above ``floor``, unless it is 0. Returns the marks, the index of
    each marked key among them, and their number.
    """
    least, most = floor, tl.max(keys, axis=0)
    count = tl.sum((keys >= least).to(tl.int32), axis=0)
    while (least < most) & (count > wanted):
        middle = least + ((most - least) >> 1) + ((most - least) & 1)
        inside = tl.sum((keys >= middle).to(tl.int32), axis=0)
        enough = inside >= wanted
        least = tl.where(enough, middle, least)
        most = tl.where(enough, most, middle - 1)
        count = tl.where(enough, inside, count)
    above = keys > least
    equal = (keys == least) & real
    # Both counts in one scan, each at most 16,384.
    kinds = above.to(tl.int32) + equal.to(tl.int32) * 65536
    total = tl.sum(kinds, axis=0)
    spare = wanted - (total & 65535)
    seen = tl.cumsum(kinds, axis=0)
    rank = tl.minimum(seen >> 16, spare)
    marked = above | (equal & ((seen >> 16) <= spare))
    return marked, (seen & 65535) + rank - 1, (total & 65535) + tl.minimum(total >> 16, spare)


@triton.jit
def _stats_kernel(
    scores, stride, bias, labels, maxima, sums, weighted, vocab, blocks, scale, cap,
    B: tl.constexpr, BLOCKS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """One program per row and BLOCKS blocks: m, sum exp(z - m), sum exp(z - m) (m - z) of each block."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    label = tl.load(labels + row)
    block = part * BLOCKS + tl.arange(0, BLOCKS)
    columns = block[:, None] * B + tl.arange(0, B)[None, :]
    real = columns < vocab
    x = tl.load(scores + row * stride + columns, mask=real, other=0.0)
    x = tl.where(real, _logits(x, bias, columns, real, scale, cap, HAS_BIAS, HAS_CAP), _MASKED)
    x = tl.where(columns == label, _MASKED, x)
    m = tl.max(x, axis=1)
    below = x - m[:, None]
    e = tl.exp(below)
    place = row * blocks + block
    tl.store(maxima + place, m, mask=block < blocks)
    tl.store(sums + place, tl.sum(e, axis=1), mask=block < blocks)
    tl.store(weighted + place, -tl.sum(e * below, axis=1), mask=block < blocks)


@triton.jit
def _product_kernel(
    h, w, scores, stride, bias, labels, maxima, sums, weighted, tokens, vocab, blocks, scale, cap,
    D: tl.constexpr, B: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, PROGRAMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Computes the raw scores, and the statistics of ``_stats_kernel`` before they leave the chip."""
    nm, nn = tl.cdiv(tokens, BM), tl.cdiv(vocab, BN)
    for tile in tl.range(tl.program_id(0), nm * nn, PROGRAMS, flatten=True):
        pid_m, pid_n = _place(tile, nm, nn, GROUP)
        x = tl.zeros([BM, BN], tl.float32)
        for k in range(0, D, BK):
            x = tl.dot(h.load([pid_m * BM, k]), w.load([pid_n * BN, k]).T, x, input_precision="ieee")
        rows = pid_m * BM + tl.arange(0, BM)
        columns = pid_n * BN + tl.arange(0, BN)[None, :]
        real, inside = columns < vocab, (rows < tokens)[:, None]
        tl.store(scores + rows.to(tl.int64)[:, None] * stride + columns, x, mask=inside & real)
        label = tl.load(labels + rows, mask=rows < tokens, other=-1).to(tl.int32)
        x = tl.where(real, _logits(x, bias, columns, real, scale, cap, HAS_BIAS, HAS_CAP), _MASKED)
        x = tl.reshape(tl.where(columns == label[:, None], _MASKED, x), [BM, BN // B, B])
        m = tl.max(x, axis=2)
        x -= m[:, :, None]
        e = tl.exp(x)
        block = (pid_n * (BN // B) + tl.arange(0, BN // B))[None, :]
        place = rows.to(tl.int64)[:, None] * blocks + block
        tl.store(maxima + place, m, mask=inside & (block < blocks))
        tl.store(sums + place, tl.sum(e, axis=2), mask=inside & (block < blocks))
        tl.store(weighted + place, -tl.sum(e * x, axis=2), mask=inside & (block < blocks))


@triton.jit
def _choose_kernel(
    maxima, sums, weighted, chosen, rest_maximum, rest_total, rest_weighted, blocks, support_size,
    BLOCKS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program per row: the ``support_size`` blocks with the largest maxima, and sums of all others."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    real = block < blocks
    m = tl.load(maxima + row * blocks + block, mask=real, other=_MASKED)
    keys = tl.where(real, _keys(m), 0)
    floor = tl.zeros([], tl.uint32)
    if BLOCKS > BLOCK_K:  # the least of BLOCK_K group maxima: at least BLOCK_K keys reach it
        floor = tl.min(tl.max(tl.reshape(keys, [BLOCKS // BLOCK_K, BLOCK_K]), axis=0), axis=0)
    taken, place, count = _largest(keys, real, support_size, floor)
    tl.store(chosen + row * support_size + place, block, mask=taken)
    slots = tl.arange(0, BLOCK_K)
    tl.store(chosen + row * support_size + slots, blocks, mask=(slots >= count) & (slots < support_size))
    left = real & (taken == 0)
    s = tl.load(sums + row * blocks + block, mask=left, other=0.0)
    u = tl.load(weighted + row * blocks + block, mask=left, other=0.0)
    top = tl.maximum(tl.max(tl.where(left, m, _MASKED), axis=0), _FLOOR)
    rise = tl.where(left, top - m, 0.0)
    decay = tl.exp(-rise)
    tl.store(rest_maximum + row, top)
    tl.store(rest_total + row, tl.sum(s * decay, axis=0))
    tl.store(rest_weighted + row, tl.sum((u + rise * s) * decay, axis=0))


@triton.jit
def _select_kernel(
    scores, stride, bias, labels, label_logits, chosen, values, ids, rest_maximum, rest_total, rest_weighted,
    vocab, blocks, support_size, scale, cap,
    B: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """One program per row: selects the ``support_size`` largest logits of its blocks; sums the others."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    own = tl.load(scores + row * stride + label)
    tl.store(label_logits + row, _logits(own, bias, label, label >= 0, scale, cap, HAS_BIAS, HAS_CAP))
    slots = tl.arange(0, BLOCK_K)
    block = tl.load(chosen + row * support_size + slots, mask=slots < support_size, other=blocks)
    columns = block[:, None] * B + tl.arange(0, B)[None, :]
    real = columns < vocab
    x = tl.load(scores + row * stride + columns, mask=real, other=0.0)
    x = tl.where(real, _logits(x, bias, columns, real, scale, cap, HAS_BIAS, HAS_CAP), _MASKED)
    x = tl.where(columns == label, _MASKED, x)
    keys = tl.where(real, _keys(x), 0)
    # Each block has a logit at or above the smallest of the blocks' maxima.
    floor = tl.min(tl.where(slots < support_size, tl.max(keys, axis=1), 4294967295), axis=0)
    columns = tl.reshape(columns, [BLOCK_K * B])
    real = tl.reshape(real, [BLOCK_K * B])
    x = tl.reshape(x, [BLOCK_K * B])
    taken, place, count = _largest(tl.reshape(keys, [BLOCK_K * B]), real, support_size, floor)
    left = real & (taken == 0)
    before = tl.load(rest_maximum + row)
    total = tl.load(rest_total + row)
    top = tl.maximum(before, tl.max(tl.where(left, x, _MASKED), axis=0))
    below = tl.where(left, x - top, 0.0)
    e = tl.where(left, tl.exp(below), 0.0)
    decay = tl.exp(before - top)
    tl.store(rest_maximum + row, top)
    tl.store(rest_total + row, total * decay + tl.sum(e, axis=0))
    u = tl.load(rest_weighted + row) + (top - before) * total
    tl.store(rest_weighted + row, u * decay - tl.sum(e * below, axis=0))
    tl.store(values + row * support_size + place, x, mask=taken)
    tl.store(ids + row * support_size + place, columns, mask=taken)
    empty = (slots >= count) & (slots < support_size)
    tl.store(values + row * support_size + slots, tl.full([BLOCK_K], float("-inf"), tl.float32), mask=empty)
    tl.store(ids + row * support_size + slots, tl.full([BLOCK_K], -1, tl.int32), mask=empty)


@triton.jit
def _pick_kernel(
    scores, stride, bias, labels, label_logits, maxima, sums, weighted, chosen, values, ids,
    rest_maximum, rest_total, rest_weighted, vocab, blocks, support_size, scale, cap,
    B: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """Both kernels in one launch: each program only reads what it has written itself."""
    _choose_kernel(
        maxima, sums, weighted, chosen, rest_maximum, rest_total, rest_weighted, blocks, support_size,
        BLOCKS, BLOCK_K,
    )  # fmt: skip
    tl.debug_barrier()
    _select_kernel(
        scores, stride, bias, labels, label_logits, chosen, values, ids, rest_maximum, rest_total,
        rest_weighted, vocab, blocks, support_size, scale, cap, B, BLOCK_K, HAS_BIAS, HAS_CAP,
    )  # fmt: skip


def fits(vocab: int, support_size: int) -> bool:
    """Whether the kernels support this vocabulary size and K."""
    return support_size <= MOST and _block_width(vocab, support_size) is not None


def _block_width(vocab: int, support_size: int) -> int | None:
    """B, a power of two such that programs can hold all maxima of a row, and K blocks; None if impossible."""
    padded = triton.next_power_of_2(support_size)
    blocks = {width: triton.next_power_of_2(triton.cdiv(vocab, width)) for width in (64, 32, 16, 8)}
    sizes = {width: (count, padded * width) for width, count in blocks.items()}
    able = [width for width, size in sizes.items() if max(size) <= _WIDEST]
    return min(able, key=lambda width: sum(sizes[width]), default=None)


Program = tuple[str, dict[str, int], int]
"""Name of a kernel, sizes of its programs, and their number of warps."""


def programs(vocab: int, support_size: int, width: int | None = None) -> list[Program]:
    """The kernels to launch, in order."""
    width = width or _block_width(vocab, support_size)
    assert width is not None
    padded, blocks = triton.next_power_of_2(support_size), triton.next_power_of_2(triton.cdiv(vocab, width))
    at_once, elements = min(STATS_COLUMNS // width, blocks), padded * width
    stats = ("_stats_kernel", {"B": width, "BLOCKS": at_once}, STATS_WARPS)
    if max(blocks, elements) <= 4096:
        sizes = {"B": width, "BLOCKS": blocks, "BLOCK_K": padded}
        return [stats, ("_pick_kernel", sizes, _warps(max(blocks, elements)))]
    # A single kernel would run out of registers.
    choose = ("_choose_kernel", {"BLOCKS": blocks, "BLOCK_K": padded}, _warps(blocks))
    return [stats, choose, ("_select_kernel", {"B": width, "BLOCK_K": padded}, _warps(elements))]


def product_tile(plain: bool, vocab: int) -> dict[str, int]:
    """Sizes of ``_product_kernel``, with smaller tiles where large ones exceed a multiprocessor's resources.

    These are registers with a bias or a softcap, and shared memory (272 KiB) if V is not a multiple of 16 and
    scores are stored one by one.
    """
    return {**PRODUCT, "BM": 256 if plain and vocab % 16 == 0 else 128}


def _warps(elements: int) -> int:
    """Warps of a program with this many elements (measured on an H100 at 4,096 and at 8,192)."""
    return 16 if elements > 4096 else min(max(elements // 256, 1), 4)


def _makes_products(hidden: Tensor, weight: Tensor, width: int) -> bool:
    """Whether ``_product_kernel`` computes the raw scores (B >= 32, because of registers), or cuBLAS."""
    half = hidden.dtype in (torch.bfloat16, torch.float16)
    return half and width >= 32 and triton_gemm.fits(hidden, weight)


def _rows_at_once(elements: int, vocab: int, width: int) -> int:
    """Rows whose logits and statistics fit into this many float32 numbers; a multiple of a product's tile."""
    rows = elements // (vocab + 3 * triton.cdiv(vocab, width))
    return max(rows // 128 * 128 or rows, 1)


def top_by_rows(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, support_size: int, plan: Plan
) -> tuple[TopK, Tensor, RunningSums]:
    """The K best tokens of every row other than the label, the label's logits, and the sums over the rest.

    Uses the memory of at most three float32 tiles; the pass in plain torch uses two, and more for gathered
    candidates. Weights of another type than the product's are converted once, as a whole.

    Args:
        hidden: [N, D], in the type of the product.
        weight: [V, D].
        bias: [V], or None.
        labels: [N].
        support_size: K; see `fits`.
        plan: plan of the call.

    Returns:
        Inputs of `troll.algorithms.lm_head.topk.select`; label logits [N] are MASKED for -inf.
    """
    tokens, vocab, device = hidden.shape[0], weight.shape[0], hidden.device
    width = _block_width(vocab, support_size)
    assert width is not None
    rows = min(_rows_at_once(3 * plan.chunk_tokens * plan.chunk_vocab, vocab, width), max(tokens, 1))
    weight = weight.to(plan.operands)
    fused = _makes_products(hidden, weight, width)
    hidden = triton_gemm.readable(hidden) if fused else hidden
    scores = torch.empty(rows, vocab, device=device)
    statistics = torch.empty(3, rows, triton.cdiv(vocab, width), device=device)
    chosen = torch.empty(rows, support_size, dtype=torch.int32, device=device)
    values = torch.empty(tokens, support_size, device=device)
    token_ids = torch.empty(tokens, support_size, dtype=torch.int32, device=device)
    rest = RunningSums(*torch.empty(3, tokens, device=device))
    label_logits = torch.empty(tokens, device=device)
    labels = labels.contiguous()
    for part in slices(tokens, rows):
        tile = scores[: part.stop - part.start]
        if not fused:
            matmul_(tile, hidden[part], weight.t())
        top_chunk_(
            tile, bias, labels[part], plan.shape, width, statistics, chosen,
            values[part], token_ids[part], label_logits[part],
            RunningSums(rest.maximum[part], rest.total[part], rest.weighted[part]),
            (hidden[part], weight) if fused else None,
        )  # fmt: skip
    return TopK(values, token_ids), label_logits, rest


def top_chunk_(
    scores: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    shape: Shape,
    width: int,
    statistics: Tensor,
    chosen: Tensor,
    values: Tensor,
    token_ids: Tensor,
    label_logits: Tensor,
    rest: RunningSums,
    factors: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Fills the arguments from ``statistics`` to ``rest`` from raw scores [n, V], in two or three launches.

    With ``factors``, hidden states [n, D] and weight [V, D], the scores are computed here as their product.
    """
    tokens, vocab = scores.shape
    support_size, blocks = chosen.shape[1], statistics.shape[2]
    scale, cap = shape.slope, 1.0
    if shape.softcap is not None:
        scale, cap = shape.logit_scale / shape.softcap, shape.softcap / shape.temperature
    inputs = (scores, scores.stride(0), scores if bias is None else bias, labels)
    blockwise = tuple(statistics)
    options = {"HAS_BIAS": bias is not None, "HAS_CAP": shape.softcap is not None}
    (_, stats, few), *others = programs(vocab, support_size, width)
    if factors is None:
        _stats_kernel[(tokens, triton.cdiv(blocks, stats["BLOCKS"]))](
            *inputs, *blockwise, vocab, blocks, scale, cap, **stats, **options, num_warps=few
        )  # fmt: skip
    else:
        hidden, weight = factors
        on_cuda = hidden.device.type == "cuda"
        count = torch.cuda.get_device_properties(hidden.device).multi_processor_count if on_cuda else 3
        size = product_tile(not any(options.values()), vocab)
        _product_kernel[(count,)](
            triton_gemm.descriptor(hidden, size["BM"], size["BK"]),
            triton_gemm.descriptor(weight, size["BN"], size["BK"]),
            *inputs, *blockwise, tokens, vocab, blocks, scale, cap,
            D=hidden.shape[1], B=width, PROGRAMS=count, **options, **size,
        )  # fmt: skip
    sums_of_rest = (rest.maximum, rest.total, rest.weighted)
    results, numbers = (chosen, values, token_ids), (vocab, blocks, support_size, scale, cap)
    if len(others) == 1:
        _, pick, warps = others[0]
        _pick_kernel[(tokens,)](
            *inputs, label_logits, *blockwise, *results, *sums_of_rest, *numbers,
            **pick, **options, num_warps=warps,
        )  # fmt: skip
        return
    (_, choose, some), (_, select, many) = others
    _choose_kernel[(tokens,)](*blockwise, chosen, *sums_of_rest, *numbers[1:3], **choose, num_warps=some)
    _select_kernel[(tokens,)](
        *inputs, label_logits, *results, *sums_of_rest, *numbers, **select, **options, num_warps=many
    )
