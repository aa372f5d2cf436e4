"""Computations inside one tile of logits (a few tokens by a few columns of the vocabulary), in plain torch.

A tile is computed by one matrix product, folded into per-token sums (forward) or turned in place into the
gradient of the loss with respect to the logits (backward), and then overwritten by the next tile.
`troll.algorithms.lm_head.passes` contains the loops, `troll.algorithms.lm_head.triton` the same two steps as
CUDA kernels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MASKED = -1e34
"""Represents a logit of -inf, or one excluded from a sum. Finite, so 0 * MASKED is 0 and not NaN."""

FLOOR = -1e30
"""Initial running maximum: far above MASKED (whose exponential thus vanishes), far below any real logit."""


@dataclass(frozen=True)
class Shape:
    """Conversion of raw scores to logits: `softcap * tanh(logit_scale * raw / softcap) / temperature`.

    The order (scale, then softcap, then temperature) is that of TRL's chunked head
    (`trl.kernels.chunked_logprob`) and of the models that use a softcap (Gemma 2) or a scale (Cohere).
    """

    logit_scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def apply_(self, raw: Tensor) -> Tensor:
        """Turns raw scores into logits in place."""
        if self.softcap is not None:
            raw.mul_(self.logit_scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)
        elif self.slope != 1.0:
            raw.mul_(self.slope)
        return raw

    @property
    def slope(self) -> float:
        """Derivative of a logit by its raw score, without the factor 1 - tanh^2 of the softcap."""
        return self.logit_scale / self.temperature


class Workspace:
    """Memory for one tile, allocated once and reused for every tile.

    Args:
        elements: chunk_tokens * chunk_vocab.
        dtype: data type of the logits (float32, or float64 for float64 inputs).
        device: device of the tiles.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self._elements, self._dtype, self._device = elements, dtype, device
        self._buffers: dict[str, Tensor] = {}

    def tile(self, name: str, rows: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised, contiguous [rows, columns] view of the buffer called ``name``."""
        if name not in self._buffers:
            self._buffers[name] = torch.empty(self._elements, dtype=dtype or self._dtype, device=self._device)
        return self._buffers[name][: rows * columns].view(rows, columns)


@dataclass
class RunningSums:
    """Per-token sums over the logits so far, sufficient for log-sum-exp and entropy.

    With m the running maximum, these are s = sum exp(z - m) and u = sum exp(z - m) (m - z). All terms are
    non-negative, so log Z = m + log s and H = log s + u / s do not suffer from cancellation.
    """

    maximum: Tensor  # [N]
    total: Tensor  # [N]
    weighted: Tensor  # [N]

    @classmethod
    def empty(cls, tokens: int, dtype: torch.dtype, device: torch.device) -> "RunningSums":
        """Empty sums."""
        total = torch.zeros(tokens, dtype=dtype, device=device)
        return cls(torch.full_like(total, FLOOR), total, torch.zeros_like(total))

    def fold_(self, rows: slice, logits: Tensor, scratch: Tensor, row_maximum: Tensor | None = None) -> None:
        """Adds logits [n, v] of the tokens ``rows``; overwrites ``logits`` and ``scratch`` (same shape).

        ``row_maximum`` [n], if already known, saves a pass over the logits.
        """
        before, total, weighted = self.maximum[rows], self.total[rows], self.weighted[rows]
        maximum = torch.maximum(before, logits.amax(-1) if row_maximum is None else row_maximum)
        below = logits.sub_(maximum.unsqueeze(-1))
        masses = torch.exp(below, out=scratch)
        new_total = masses.sum(-1)
        new_weighted = masses.mul_(below).sum(-1).neg_()
        rise = maximum - before
        decay = torch.exp(-rise)
        weighted.add_(rise * total).mul_(decay).add_(new_weighted)
        total.mul_(decay).add_(new_total)
        before.copy_(maximum)

    def absorb_(self, logits: Tensor, rows: slice = slice(None)) -> None:
        """Adds a few more logits [n, C] of the tokens ``rows``; -inf marks an empty slot."""
        if logits.shape[-1]:
            values = logits.clamp(min=MASKED)
            self.fold_(rows, values, torch.empty_like(values))

    def log_sum_exp(self) -> Tensor:
        """[N]; -inf where nothing was added."""
        return self.maximum + self.total.log()

    def log_probs(self, logits: Tensor) -> Tensor:
        """Log-probs of logits [N] or [N, K] with respect to all that were added.

        The maximum is subtracted first, so log-probs near 0 are as exact as log s instead of the logits.
        """
        width = (slice(None),) + (None,) * (logits.dim() - 1)
        return logits - self.maximum[width] - self.total.log()[width]

    def copy(self) -> "RunningSums":
        """A copy of the current sums."""
        return RunningSums(self.maximum.clone(), self.total.clone(), self.weighted.clone())

    def log_share_in(self, whole: "RunningSums") -> Tensor:
        """Log of the share [N] of these sums in ``whole``, which includes them."""
        return self.maximum - whole.maximum + self.total.log() - whole.total.log()

    def entropy(self) -> Tensor:
        """Entropy in nats [N] of the normalised sums."""
        return self.total.log() + self.weighted / self.total


def take_labels_(tile: Tensor, labels: Tensor, start: int, label_logits: Tensor) -> None:
    """Copies the logits of the labels [n] that are in this tile's columns to ``label_logits`` [n]."""
    local = labels - start
    inside = (local >= 0) & (local < tile.shape[1])
    here = tile.gather(1, local.clamp(0, tile.shape[1] - 1).unsqueeze(1)).squeeze(1)
    label_logits.copy_(torch.where(inside, here, label_logits))


def locate(ids: Tensor, start: int, columns: int) -> tuple[Tensor, Tensor]:
    """Which ids [n, K] are in columns [start, start + columns), and their indices in the flattened tile."""
    inside = (ids >= start) & (ids < start + columns)
    first = torch.arange(-start, ids.shape[0] * columns - start, columns, device=ids.device)
    return inside, (ids + first.unsqueeze(1))[inside]


def take_support_(tile: Tensor, support: Tensor, start: int, support_logits: Tensor) -> None:
    """Moves the logits at ``support`` [n, K] to ``support_logits``, replacing them by MASKED."""
    inside, places = locate(support, start, tile.shape[1])
    flat = tile.view(-1)
    support_logits.masked_scatter_(inside, flat[places])
    flat.index_fill_(0, places, MASKED)


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
    """The forward step: folds raw scores [n, v] of the tokens ``rows`` into the per-token results.

    Args:
        tile: the raw scores; overwritten.
        start: token id of its first column.
        rows: the tile's slice of the N tokens.
        labels: [N].
        support: [N, K], or None.
        label_logits: [N], written where the label is in this tile.
        support_logits: [N, K], written where the support is in this tile.
        sums: sums over all logits outside the support; updated.
        shape: conversion of raw scores to logits.
        workspace: scratch memory.
    """
    shape.apply_(tile)
    take_labels_(tile, labels[rows], start, label_logits[rows])
    if support is not None and support_logits is not None:
        take_support_(tile, support[rows], start, support_logits[rows])
    sums.fold_(rows, tile, workspace.tile("scratch", tile.shape[0], tile.shape[1]))


@dataclass(frozen=True)
class RowGradients:
    """Per-token factors of the backward pass, computed once from the upstream gradients.

    With S the support, M the mass outside it, G the sum of upstream gradients of all log-probs, and upstream
    gradient h of the entropy H, the gradient with respect to logit j is (q = softmax of the logits)

        j outside S:  q_j / M * g_tail - q_j (G + h (log q_j + H))      = e_j (offset + slope * x_j)
        j = S_k:      g_k - q_j (G + h (log q_j + H))                   = at_support[k]

    plus g_label at the label, where x_j = z_j - shift, e_j = exp(x_j) and shift = log Z + log M. This shift
    keeps q_j / M exact when M is tiny. The columns of the support are overwritten instead of corrected,
    because a correction would cancel all digits. Without a support (or anything outside it) shift is log Z.
    """

    shift: Tensor  # [n]
    offset: Tensor  # [n]
    slope: Tensor | None  # [n]; None without a gradient for the entropy
    at_label: Tensor | None  # [n]
    at_support: Tensor | None  # [n, K]
    busy: Tensor | None = None  # [n / 128] int32, only for kernels: 0 where no token has a gradient

    def rows(self, rows: slice) -> "RowGradients":
        """The factors of a slice of the tokens."""

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[rows]

        return RowGradients(
            self.shift[rows], self.offset[rows], cut(self.slope), cut(self.at_label), cut(self.at_support)
        )


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
    """The backward step: turns raw scores [n, v] in place into the gradient with respect to them.

    ``labels`` [n], ``support`` [n, K] and ``gradients`` are those of the tile's tokens; ``gradients`` include
    the factor `Shape.slope`. The result is rounded to ``dtype``, the operand type of the matrix products.
    """
    shape.apply_(tile)
    damping = damping_tile(tile, shape, workspace)
    tile.sub_(gradients.shift.unsqueeze(1))
    if gradients.slope is None:
        tile.exp_().mul_(gradients.offset.unsqueeze(1))
    else:
        factor = workspace.tile("scratch", *tile.shape)
        torch.mul(tile, gradients.slope.unsqueeze(1), out=factor)
        factor.add_(gradients.offset.unsqueeze(1))
        tile.exp_().mul_(factor)
    if support is not None and gradients.at_support is not None:
        inside, places = locate(support, start, tile.shape[1])
        tile.view(-1)[places] = gradients.at_support[inside]
    if gradients.at_label is not None:
        inside, places = locate(labels.unsqueeze(1), start, tile.shape[1])
        tile.view(-1).index_add_(0, places, gradients.at_label[inside.squeeze(1)])
    if damping is not None:
        tile.mul_(damping)
    if dtype == tile.dtype:
        return tile
    return workspace.tile("rounded", tile.shape[0], tile.shape[1], dtype).copy_(tile)


def damping_tile(logits: Tensor, shape: Shape, workspace: Workspace) -> Tensor | None:
    """The softcap's factor 1 - tanh^2 of the gradient, from the logits; None without a softcap."""
    if shape.softcap is None:
        return None
    damping = workspace.tile("damping", logits.shape[0], logits.shape[1])
    torch.mul(logits, shape.temperature / shape.softcap, out=damping)
    return damping.square_().neg_().add_(1)
