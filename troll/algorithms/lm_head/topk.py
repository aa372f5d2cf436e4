"""The exact K most likely tokens from logits in tiles, without sorting the vocabulary.

`troll.algorithms.lm_head.triton_topk` is the CUDA implementation; `select` applies to the result of either.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head.tiles import FLOOR, MASKED, RunningSums

BLOCK = 64
"""Columns per block maximum. Blocks whose maximum is below the K-th best logit so far are skipped."""

_DENSE_SHARE = 0.25
"""If more than this share of a tile's blocks may have candidates, a plain top-K of the tile is cheaper and
needs less memory than gathering them, as in the first tile, whose tokens have no K-th best yet."""


@dataclass
class TopK:
    """The K largest logits of each token, unsorted."""

    values: Tensor  # [N, K]; -inf in empty slots
    token_ids: Tensor  # [N, K]; -1 in empty slots


class RunningTopK(TopK):
    """The K largest logits of each token so far, updated tile by tile in plain torch.

    Args:
        tokens: N.
        support_size: K.
        dtype: data type of the logits.
        device: device of the logits.
    """

    def __init__(self, tokens: int, support_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(
            torch.full((tokens, support_size), float("-inf"), dtype=dtype, device=device),
            torch.full((tokens, support_size), -1, dtype=torch.int64, device=device),
        )

    def update_(self, rows: slice, tile: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Moves candidates out of the tile (replacing them by MASKED) and keeps the best K so far.

        ``tile`` has logits [n, v] of the token ids from ``start`` on. Returns the row maxima [n] of the
        logits remaining in the tile, and the logits removed from the K best [n, C] (-inf in empty slots). The
        K best, the removed and the remaining logits together contain every logit once.
        """
        threshold = self.values[rows].amin(-1)
        maxima = _block_maxima(tile)
        block_rows, blocks = torch.nonzero(maxima > threshold.unsqueeze(1), as_tuple=True)
        if block_rows.numel() > _DENSE_SHARE * maxima.numel():
            values, columns = tile.topk(min(self.values.shape[1], tile.shape[1]), dim=-1, sorted=False)
            tile.scatter_(1, columns, MASKED)
            return tile.amax(-1), self._merge_(rows, values, columns + start)
        if not block_rows.numel():
            return maxima.amax(-1), tile.new_empty(tile.shape[0], 0)
        columns = blocks.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=tile.device)
        beyond = columns >= tile.shape[1]
        columns = columns.clamp(max=tile.shape[1] - 1)
        values = tile[block_rows.unsqueeze(1), columns].masked_fill_(beyond, float("-inf"))
        better = values > threshold[block_rows].unsqueeze(1)
        hits, offsets = torch.nonzero(better, as_tuple=True)
        hit_rows, hit_columns = block_rows[hits], columns[hits, offsets]
        hit_values = values[hits, offsets]
        tile[hit_rows, hit_columns] = MASKED
        maxima[block_rows, blocks] = values.masked_fill_(better, MASKED).amax(-1)
        removed = self._merge_(rows, *_pad(hit_rows, hit_values, hit_columns + start, tile.shape[0]))
        return maxima.amax(-1), removed

    def _merge_(self, rows: slice, values: Tensor, token_ids: Tensor) -> Tensor:
        support_size = self.values.shape[1]
        all_values = torch.cat([self.values[rows], values], -1)
        all_ids = torch.cat([self.token_ids[rows], token_ids], -1)
        best, order = all_values.topk(support_size, dim=-1, sorted=False)
        self.values[rows] = best
        self.token_ids[rows] = all_ids.gather(-1, order)
        return all_values.scatter_(-1, order, float("-inf"))


def _block_maxima(tile: Tensor) -> Tensor:
    """Block maxima [n, ceil(v / BLOCK)]; the last block may be shorter."""
    whole = tile.shape[1] // BLOCK * BLOCK
    parts = [tile[:, :whole].view(tile.shape[0], -1, BLOCK).amax(-1)] if whole else []
    if whole < tile.shape[1]:
        parts.append(tile[:, whole:].amax(-1, keepdim=True))
    return torch.cat(parts, -1)


def _pad(rows: Tensor, values: Tensor, token_ids: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Arranges lists of hits [h] (in any order) by token, padded to [tokens, most hits of a token]."""
    order = torch.argsort(rows, stable=True)
    rows = rows[order]
    counts = torch.bincount(rows, minlength=tokens)
    slots = torch.arange(rows.numel(), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    width = int(counts.max())
    padded = values.new_full((tokens, width), float("-inf"))
    padded_ids = token_ids.new_full((tokens, width), -1)
    padded[rows, slots] = values[order]
    padded_ids[rows, slots] = token_ids[order]
    return padded, padded_ids


def select(
    best: TopK,
    labels: Tensor,
    label_logits: Tensor,
    rest: RunningSums,
    dropped_mass: float,
) -> tuple[Tensor, Tensor, SparseLogProbs]:
    """Keeps tokens of descending probability until 1 - dropped_mass or K is reached, always with the label.

    As in TROLL (arXiv 2510.03817: K = 64, dropped_mass 1e-5, sampled token kept). A token is kept while the
    mass of it and all less probable tokens exceeds ``dropped_mass``. That mass is summed from the smallest
    probability, so a dropped_mass of 1e-7 differs from zero even in float32. If the label is not among the
    kept tokens, it replaces the last one.

    Args:
        best: the K best tokens other than the label.
        labels: [N].
        label_logits: [N].
        rest: sums over all tokens that are neither in ``best`` nor the label. Extended here to all tokens.
        dropped_mass: in [0, 1).

    Returns:
        Label log-probs [N], entropy [N] and the sparse distribution [N, K].
    """
    support_size = best.values.shape[1]
    # The label first, so it wins ties.
    logits = torch.cat([label_logits.unsqueeze(1), best.values], -1)
    token_ids = torch.cat([labels.unsqueeze(1), best.token_ids], -1)
    logits, order = logits.masked_fill(logits < FLOOR, float("-inf")).sort(
        dim=-1, descending=True, stable=True
    )
    token_ids, is_label = token_ids.gather(-1, order), order == 0
    outside = rest.copy()
    rest.absorb_(logits)
    log_probs = rest.log_probs(logits)
    tail = outside.log_share_in(rest)
    remaining_mass = log_probs.double().exp().flip(-1).cumsum(-1).flip(-1) + tail.double().exp().unsqueeze(1)
    kept_tokens = (remaining_mass > dropped_mass).sum(-1).clamp(1, support_size).unsqueeze(1)
    place = torch.arange(support_size + 1, device=logits.device)
    label_place = is_label.long().argmax(-1, keepdim=True)
    kept_tokens = torch.where(label_place < kept_tokens, kept_tokens, kept_tokens.clamp(max=support_size - 1))
    kept = ((place < kept_tokens) | is_label) & (log_probs > float("-inf"))
    kept |= is_label  # even if its probability underflows: the ratio needs it
    dropped = log_probs.masked_fill(kept, float("-inf"))
    tail = torch.logaddexp(tail, dropped.logsumexp(-1))
    front = torch.argsort((~kept).long(), dim=-1, stable=True)[:, :support_size]
    kept = kept.gather(-1, front)
    distribution = SparseLogProbs(
        token_ids=token_ids.gather(-1, front).masked_fill(~kept, -1),
        log_probs=log_probs.gather(-1, front).masked_fill(~kept, float("-inf")),
        tail_log_prob=tail,
    )
    return rest.log_probs(label_logits), rest.entropy(), distribution
