"""Per-token computations of the head as single Triton kernels: from sums to log-probs, and backward.

In plain torch (`troll.algorithms.lm_head.passes`, `troll.algorithms.lm_head.topk.select`) these take some
twenty to fifty operations on [N] or [N, K] numbers, whose launches take longer than their execution. This
module imports triton, an optional dependency, so only `passes` and `head` import it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head.tiles import FLOOR, MASKED, RowGradients, RunningSums
from troll.algorithms.lm_head.topk import TopK
from troll.algorithms.triton_solver import in_two

GROUP = 128
"""Tokens per entry of `RowGradients.busy`."""

_MASKED: tl.constexpr = tl.constexpr(MASKED)
_FLOOR: tl.constexpr = tl.constexpr(FLOOR)


@triton.jit
def _check_kernel(labels, support, good, vocab, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """One program per token: sets `good` to 0 for a label or id out of range, or a repeated id."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    bad = ((label < 0) | (label >= vocab)).to(tl.int32)
    if K > 0:
        slots = tl.arange(0, BLOCK_K)
        ids = tl.load(support + row * K + slots, mask=slots < K, other=-1)
        wrong = ((ids < -1) | (ids >= vocab)).to(tl.int32)
        for slot in range(K):
            wrong |= ((ids == tl.load(support + row * K + slot)) & (ids >= 0) & (slots > slot)).to(tl.int32)
        bad += tl.sum(wrong, axis=0)
    if bad > 0:
        tl.store(good, 0)


@triton.jit
def _absorbed(x, maximum, total, weighted):
    """The running sums with logits [K] added; none of them may be below MASKED."""
    top = tl.maximum(maximum, tl.max(x, axis=0))
    below = x - top
    e = tl.exp(below)
    rise = top - maximum
    decay = tl.exp(-rise)
    weighted = (weighted + rise * total) * decay - tl.sum(e * below, axis=0)
    return top, total * decay + tl.sum(e, axis=0), weighted


@triton.jit
def _finish_kernel(
    label_logits, logits, maximum, total, weighted, label_log_probs, entropy, log_z, log_probs, tail,
    K: tl.constexpr, BLOCK_K: tl.constexpr, HAS_SUPPORT: tl.constexpr,
):  # fmt: skip
    """One program per token: log-probs, entropy and log Z from its logits and sums over all others."""
    row = tl.program_id(0).to(tl.int64)
    m = tl.load(maximum + row)
    s = tl.load(total + row)
    u = tl.load(weighted + row)
    top = m
    if HAS_SUPPORT:
        slots = tl.arange(0, BLOCK_K)
        x = tl.load(logits + row * K + slots, mask=slots < K, other=_MASKED)
        before, log_before = m, tl.log(s)
        top, s, u = _absorbed(tl.where(x < _FLOOR, _MASKED, x), m, s, u)
        x = tl.where(x < _FLOOR, float("-inf"), x)
        log_s = tl.log(s)
        tl.store(log_probs + row * K + slots, x - top - log_s, mask=slots < K)
        tl.store(tail + row, before - top + log_before - log_s)
    log_s = tl.log(s)
    label = tl.load(label_logits + row)
    tl.store(label_log_probs + row, tl.where(label < _FLOOR, float("-inf"), label) - top - log_s)
    tl.store(entropy + row, log_s + u / s)
    tl.store(log_z + row, top + log_s)


@triton.jit
def _gradients_kernel(
    log_z, entropy, log_probs, tail, of_label, of_entropy, of_support, of_tail,
    shift, offset, slopes, at_label, at_support, busy, slope,
    K: tl.constexpr, BLOCK_K: tl.constexpr, HAS_LABEL: tl.constexpr, HAS_ENTROPY: tl.constexpr,
    HAS_SUPPORT: tl.constexpr, HAS_OF_SUPPORT: tl.constexpr, HAS_TAIL: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """One program per token: the factors of `troll.algorithms.lm_head.tiles.RowGradients`."""
    row = tl.program_id(0).to(tl.int64)
    zero = tl.full([], 0.0, tl.float32)
    pull, steep, at_tail, log_mass, label, h = zero, zero, zero, zero, zero, zero
    mass = zero + 1.0
    surprise = tl.load(entropy + row)
    if HAS_LABEL:
        label = tl.load(of_label + row) * slope
        pull += label
        tl.store(at_label + row, label)
    if HAS_ENTROPY:
        h = tl.load(of_entropy + row) * slope
    if HAS_SUPPORT:
        log_mass = tl.load(tail + row)
        some = log_mass > float("-inf")
        log_mass = tl.where(some, log_mass, 0.0)
        mass = tl.exp(log_mass)
        if HAS_TAIL:
            at_tail = tl.where(some, tl.load(of_tail + row) * slope, 0.0)
            pull += at_tail
        slots = tl.arange(0, BLOCK_K)
        x = tl.load(log_probs + row * K + slots, mask=slots < K, other=float("-inf"))
        real = x > float("-inf")
        own = tl.zeros([BLOCK_K], tl.float32)
        if HAS_OF_SUPPORT:
            own = tl.load(of_support + row * K + slots, mask=slots < K, other=0.0)
            own = tl.where(real, own * slope, 0.0)
            pull += tl.sum(own, axis=0)
        if HAS_ENTROPY:
            own -= tl.exp(x) * (pull + h * (tl.where(real, x, 0.0) + surprise))
        else:
            own -= tl.exp(x) * pull
        tl.store(at_support + row * K + slots, own, mask=slots < K)
    level = at_tail - mass * pull
    if HAS_ENTROPY:
        steep = -mass * h
        level += steep * (log_mass + surprise)
        tl.store(slopes + row, steep)
    tl.store(shift + row, tl.load(log_z + row) + log_mass)
    tl.store(offset + row, level)
    if (level != 0) | (steep != 0) | (label != 0):
        tl.store(busy + row // GROUP, 1)


@triton.jit
def _sort_keys(x, slots, real):
    """Uint64 keys that sort like the logits x, with ties by position, and unused slots last."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)  # -0 equals 0
    key = (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)
    place = (2147483647 - slots).to(tl.uint64)
    return tl.where(real, (key.to(tl.uint64) << 32) | place, place)


@triton.jit
def _keep_kernel(
    values, ids, labels, label_logits, maximum, total, weighted,
    label_log_probs, entropy, token_ids, log_probs, tail, dropped_mass, dropped_rest,
    K: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program per token: implements `troll.algorithms.lm_head.topk.select`."""
    row = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, BLOCK_K)
    real = slots < K
    x = tl.load(values + row * K + slots, mask=real, other=float("-inf"))
    x = tl.where(x < _FLOOR, float("-inf"), x)
    keys = tl.sort(_sort_keys(x, slots, real), descending=True)
    source = 2147483647 - (keys & 4294967295).to(tl.int32)
    x = tl.load(values + row * K + source, mask=real, other=float("-inf"))
    x = tl.where(x < _FLOOR, float("-inf"), x)
    own = tl.load(label_logits + row)
    own = tl.where(own < _FLOOR, float("-inf"), own)
    first = tl.sum((real & (x > own)).to(tl.int32), axis=0)  # the label's rank, before equal logits

    before = tl.load(maximum + row)
    outside = tl.load(total + row)
    u = tl.load(weighted + row)
    top, s, u = _absorbed(tl.where(x < _FLOOR, _MASKED, x), before, outside, u)
    label = tl.maximum(own, _MASKED)
    higher = tl.maximum(top, label)
    rise, below = higher - top, label - higher
    u = (u + rise * s) * tl.exp(-rise) - tl.exp(below) * below
    s = s * tl.exp(-rise) + tl.exp(below)
    log_s = tl.log(s)
    own = own - higher - log_s
    x = x - higher - log_s
    rest = before - higher + tl.log(outside) - log_s
    tl.store(label_log_probs + row, own)
    tl.store(entropy + row, log_s + u / s)

    # Mass of each token and all less probable ones, summed from the smallest.
    e = tl.where(real, tl.exp(x.to(tl.float64)), 0.0)
    e_own, e_rest = tl.exp(own.to(tl.float64)), tl.exp(rest.to(tl.float64))
    limit = tl.full([], 0.0, tl.float64) + dropped_mass + dropped_rest
    left = tl.cumsum(e, axis=0, reverse=True) + tl.where(slots < first, e_own, 0.0) + e_rest
    wanted = tl.sum((real & (left > limit)).to(tl.int32), axis=0)
    behind = tl.sum(tl.where(slots >= first, e, 0.0), axis=0) + e_own + e_rest
    wanted += (behind > limit).to(tl.int32)
    wanted = tl.maximum(tl.minimum(wanted, K), 1)
    early = first < wanted
    wanted = tl.where(early, wanted, tl.minimum(wanted, K - 1))
    place = slots + (slots >= first).to(tl.int32)
    kept = real & (place < wanted) & (x > float("-inf"))

    lost = tl.where(real & (kept == 0), x, float("-inf"))
    level = tl.maximum(rest, tl.max(lost, axis=0))
    level = tl.where(level == float("-inf"), 0.0, level)
    tl.store(tail + row, level + tl.log(tl.exp(rest - level) + tl.sum(tl.exp(lost - level), axis=0)))
    at = row * K
    own_place = tl.where(early, first, wanted)
    count = tl.sum(kept.to(tl.int32), axis=0) + 1
    tl.store(log_probs + at + place, x, mask=kept)
    found = tl.load(ids + at + source, mask=kept, other=-1).to(tl.int64)
    tl.store(token_ids + at + place, found, mask=kept)
    empty = (slots >= count) & real
    tl.store(log_probs + at + slots, tl.full([BLOCK_K], float("-inf"), tl.float32), mask=empty)
    tl.store(token_ids + at + slots, tl.full([BLOCK_K], -1, tl.int64), mask=empty)
    tl.store(log_probs + at + own_place, own)
    tl.store(token_ids + at + own_place, tl.load(labels + row))


def _sizes(support_size: int) -> dict[str, int]:
    """Sizes of a program that holds a row of the support."""
    block = max(triton.next_power_of_2(support_size), 16)
    return {"K": support_size, "BLOCK_K": block, "num_warps": min(max(block // 128, 1), 8)}


@functools.cache
def _good(device: torch.device) -> Tensor:
    """A one that a kernel may set to zero; cached because creating it takes a kernel launch."""
    return torch.ones(1, dtype=torch.int32, device=device)


def good_ids(labels: Tensor, support: Tensor | None, vocab: int) -> Tensor:
    """Whether labels [N] are in [0, V), and support [N, K] in [-1, V) and distinct in each row; [1] int32."""
    good, ids = _good(labels.device), labels.contiguous()
    if len(labels):
        support_size = 0 if support is None else support.shape[1]
        _check_kernel[(len(labels),)](
            ids, ids if support is None else support.contiguous(), good, vocab, **_sizes(support_size)
        )
    return good


def finish(
    label_logits: Tensor, logits: Tensor | None, sums: RunningSums
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Computes log-probs from logits.

    Args:
        label_logits: [N]; values below FLOOR mean -inf.
        logits: [N, K] logits of the support, likewise; or None.
        sums: sums over all logits outside the support.

    Returns:
        Label log-probs, entropy and log Z, [N] each; log-probs at the support [N, K] and its tail [N], or
        None.
    """
    label_log_probs, entropy, log_z, tail = (torch.empty_like(label_logits) for _ in range(4))
    log_probs = None if logits is None else torch.empty_like(logits)
    support_size = 0 if logits is None else logits.shape[1]
    if len(label_logits):
        _finish_kernel[(len(label_logits),)](
            label_logits, label_logits if logits is None else logits, sums.maximum, sums.total, sums.weighted,
            label_log_probs, entropy, log_z, log_z if log_probs is None else log_probs, tail,
            HAS_SUPPORT=logits is not None, **_sizes(support_size),
        )  # fmt: skip
    return label_log_probs, entropy, log_z, log_probs, None if logits is None else tail


def row_gradients(
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
    tokens, support_size = len(log_z), 0 if log_probs is None else log_probs.shape[1]
    upstream = (label_gradient, entropy_gradient, support_gradient, tail_gradient)
    given = (log_z if x is None else x.contiguous() for x in upstream)
    shift, offset = torch.empty_like(log_z), torch.empty_like(log_z)
    slopes = None if entropy_gradient is None else torch.empty_like(log_z)
    at_label = None if label_gradient is None else torch.empty_like(log_z)
    at_support = None if log_probs is None else torch.empty_like(log_probs)
    busy = torch.zeros(triton.cdiv(tokens, GROUP), dtype=torch.int32, device=log_z.device)
    if tokens:
        _gradients_kernel[(tokens,)](
            log_z, entropy, *(log_z if x is None else x for x in (log_probs, tail)), *given, shift, offset,
            *(shift if x is None else x for x in (slopes, at_label, at_support)), busy, slope,
            HAS_LABEL=label_gradient is not None, HAS_ENTROPY=entropy_gradient is not None,
            HAS_SUPPORT=log_probs is not None, HAS_OF_SUPPORT=support_gradient is not None,
            HAS_TAIL=tail_gradient is not None, GROUP=GROUP, **_sizes(support_size),
        )  # fmt: skip
    return RowGradients(shift, offset, slopes, at_label, at_support, busy)


def select(
    best: TopK, labels: Tensor, label_logits: Tensor, rest: RunningSums, dropped_mass: float
) -> tuple[Tensor, Tensor, SparseLogProbs]:
    """As `troll.algorithms.lm_head.topk.select`, but -inf is MASKED in label logits, and `rest` is kept."""
    tokens, support_size = best.values.shape
    label_log_probs, entropy, tail = (torch.empty_like(label_logits) for _ in range(3))
    log_probs = torch.empty_like(best.values)
    token_ids = torch.empty_like(best.values, dtype=torch.int64)
    if tokens:
        _keep_kernel[(tokens,)](
            best.values, best.token_ids, labels, label_logits, rest.maximum, rest.total, rest.weighted,
            label_log_probs, entropy, token_ids, log_probs, tail, *in_two(dropped_mass),
            **_sizes(support_size),
        )  # fmt: skip
    return label_log_probs, entropy, SparseLogProbs(token_ids, log_probs, tail)
