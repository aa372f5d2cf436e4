"""Sparse next-token distributions: a few kept tokens and one atom for all other tokens.

A language model's distribution over V tokens is stored as K kept log-probabilities and the pooled mass of the
remaining V - K tokens, the *tail*. The K + 1 atoms are a coarse partition of the vocabulary, so

* they sum to one, whichever tokens are dropped;
* the KL divergence of two such distributions on the same tokens is a true KL divergence: never negative, and
  never above the KL divergence over the full vocabulary (data processing inequality);
* mass that a policy moves outside the kept tokens is part of the tail and enters the KL divergence.

The exact error of the coarse KL (chain rule), with Q the tail mass of q and r = log q - log p, is

    KL(q || p) - KL_coarse(q || p) = Q KL(q given tail || p given tail)  <=  Q min(w, w^2 / 8),

where w = max r - min r over the dropped tokens. (On the path from p to q inside the tail, KL is the integral
of t Var_t(r) over t in [0, 1], and a variable of range w has a variance of at most w^2 / 4. Also, no
log-ratio of the two conditionals exceeds w, because the smallest is at most 0.) So the error is at most Q
times a number that is small if the update moves the dropped logits alike; see `tail_gap_bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from troll.algorithms.backends import result_dtype, wide_dtype
from troll.algorithms.divergences import kl_divergence
from troll.common.errors import UserError

# log 1e-12: log-probability of each dropped token in the paper's variant (configuration of its code), and the
# minimum log-mass of a tail when two policies are compared.
DEFAULT_LOG_PROB = -27.631
# Names of a distribution's tensors in a batch, and their padding values for rows without a token: no kept
# token and all mass in the tail, so every row is a valid distribution.
BATCH_PADDING: Mapping[str, float] = {
    "token_ids": -1,
    "support_log_probs": -torch.inf,
    "tail_log_prob": 0.0,
}


@dataclass(frozen=True)
class SparseLogProbs:
    """Log-probabilities of K kept tokens and the log of the pooled mass of all other tokens.

    Attributes:
        token_ids: [..., K] int64, distinct within a row; -1 in unused slots.
        log_probs: [..., K]; -inf in unused slots.
        tail_log_prob: [...]; log of the total mass of all tokens that are not kept; -inf without any.
        dropped_log_mass: [...]; log of the mass that was actually dropped, if `tail_log_prob` differs from it
            (a constant tail); else None.
    """

    token_ids: Tensor
    log_probs: Tensor
    tail_log_prob: Tensor
    dropped_log_mass: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the shapes.

        Raises:
            UserError: the shapes are not [..., K], [..., K] and [...].
        """
        shapes = tuple(tuple(x.shape) for x in (self.token_ids, self.log_probs, self.tail_log_prob))
        if shapes[0] != shapes[1] or shapes[0][:-1] != shapes[2]:
            raise UserError(
                "SparseLogProbs: token_ids [..., K], log_probs [..., K] and tail_log_prob [...] must agree, "
                f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )

    @property
    def batch_shape(self) -> torch.Size:
        """The shape [...] of the leading axes."""
        return self.tail_log_prob.shape

    @property
    def support_size(self) -> int:
        """K, the number of slots."""
        return self.log_probs.shape[-1]

    def kept_mass(self) -> Tensor:
        """Mass of the kept tokens in the full distribution, [...], without gradient."""
        dropped = self.tail_log_prob if self.dropped_log_mass is None else self.dropped_log_mass
        return -torch.expm1(dropped.detach().clamp(max=0.0))

    def atoms(self) -> Tensor:
        """All atoms in one tensor, [..., K + 1]: the kept tokens, then the tail."""
        return torch.cat([self.log_probs, self.tail_log_prob.unsqueeze(-1)], dim=-1)

    def with_atoms(self, atoms: Tensor) -> SparseLogProbs:
        """The same tokens with new log-probabilities, given as atoms [..., K + 1]."""
        return SparseLogProbs(self.token_ids, atoms[..., :-1], atoms[..., -1])

    def _each(self, change: Callable[[Tensor, float], Tensor]) -> SparseLogProbs:
        """A copy with `change` applied to each tensor and its padding value, see `BATCH_PADDING`."""
        tensors = (self.token_ids, self.log_probs, self.tail_log_prob)
        ids, log_probs, tail = (
            change(values, fill) for values, fill in zip(tensors, BATCH_PADDING.values(), strict=True)
        )
        dropped = None if self.dropped_log_mass is None else change(self.dropped_log_mass, 0.0)
        return SparseLogProbs(ids, log_probs, tail, dropped)

    def detach(self) -> SparseLogProbs:
        """The same values without gradient."""
        return self._each(lambda values, _: values.detach())

    def cpu(self) -> SparseLogProbs:
        """The same distribution in main memory."""
        return self._each(lambda values, _: values.cpu())

    def where(self, mask: Tensor) -> SparseLogProbs:
        """The rows where mask (bool, of batch shape) is true, `BATCH_PADDING` elsewhere."""
        off = ~mask
        return self._each(
            lambda values, fill: values.masked_fill(
                off if values.dim() == off.dim() else off.unsqueeze(-1), fill
            )
        )

    def rows(self, index: Tensor) -> SparseLogProbs:
        """Rows [M, K] selected by indices into the flattened batch, or by a boolean mask of batch shape."""
        if index.dtype == torch.bool:
            return self._each(lambda values, _: values[index])
        flat = self.flat()
        return flat._each(lambda values, _: values[index])

    def flat(self) -> SparseLogProbs:
        """All rows of the batch, [M, K]."""
        batch = len(self.batch_shape)
        return self._each(lambda values, _: values.reshape(-1, *values.shape[batch:]))

    def scatter(self, mask: Tensor, places: Tensor | None = None) -> SparseLogProbs:
        """Scatter rows [N, K] to the N positions where mask [B, T] is set; `BATCH_PADDING` elsewhere.

        Differentiable even for N = 0.

        Args:
            mask: [B, T].
            places: [N] indices of the set positions in the flattened mask, if already computed: on a GPU,
                computing them synchronises with the host.
        """
        if places is None:
            places = mask.reshape(-1).nonzero().squeeze(-1)

        def spread(values: Tensor, fill: float) -> Tensor:
            full = values.new_full((mask.numel(), *values.shape[1:]), fill)
            return full.index_copy(0, places, values).view(*mask.shape, *values.shape[1:])

        return self._each(spread)

    @classmethod
    def cat(cls, parts: Sequence[SparseLogProbs]) -> SparseLogProbs:
        """Concatenate distributions [B_i, ..., K] with exact tails to [sum B_i, ..., K]."""
        return cls(
            torch.cat([part.token_ids for part in parts]),
            torch.cat([part.log_probs for part in parts]),
            torch.cat([part.tail_log_prob for part in parts]),
        )

    def to_batch(self, prefix: str = "") -> dict[str, Tensor]:
        """The tensors by their names in `BATCH_PADDING`, for a batch of rows or a model's output.

        Only exact tails are supported: apply `constant_tail` after `from_batch`.

        Args:
            prefix: prefix of the names, as in ``old_token_ids``.

        Returns:
            The three tensors, token ids as int32 to halve their size in a rollout batch.
        """
        tensors = (self.token_ids.int(), self.log_probs, self.tail_log_prob)
        return {prefix + name: tensor for name, tensor in zip(BATCH_PADDING, tensors, strict=True)}

    @classmethod
    def from_batch(
        cls, batch: Mapping[str, Any], prefix: str = "", device: torch.device | None = None
    ) -> SparseLogProbs:
        """Restore the distribution that `to_batch` stored, even from a shuffled, split or padded batch.

        Args:
            batch: contains the three tensors.
            prefix: prefix of their names.
            device: device to move them to; None keeps theirs.
        """
        token_ids, log_probs, tail = (batch[prefix + name].to(device=device) for name in BATCH_PADDING)
        return cls(token_ids.long(), log_probs, tail)


def _logsumexp(values: Tensor) -> Tensor:
    """Log-sum-exp over the last axis; rows of -inf give -inf with gradient 0 (torch gives NaN)."""
    empty = (values == -torch.inf).all(-1)
    safe = values.masked_fill(empty.unsqueeze(-1), 0.0)
    return torch.logsumexp(safe, dim=-1).masked_fill(empty, -torch.inf)


def on_support(values: Tensor, token_ids: Tensor, *, normalised: bool = False) -> SparseLogProbs:
    """Restrict a dense distribution to given tokens and pool the rest; differentiable in `values`.

    The reference implementation for small vocabularies: it works in float64 on all of [..., V].
    `troll.algorithms.lm_head.head` computes the same from hidden states without materialising V columns.

    Args:
        values: [..., V] logits, or log-probabilities with `normalised`.
        token_ids: [..., K] int64, distinct; -1 in unused slots.
        normalised: whether `values` are log-probabilities.
    """
    dtype = result_dtype(values)
    log_probs = values.to(wide_dtype(values.device))
    if not normalised:
        log_probs = torch.log_softmax(log_probs, dim=-1)
    used = token_ids >= 0
    index = token_ids.clamp(min=0)
    kept = torch.zeros_like(log_probs, dtype=torch.int32).scatter_add(-1, index, used.int()) > 0
    tail = _logsumexp(log_probs.masked_fill(kept, -torch.inf)).clamp(max=0.0)
    support = log_probs.gather(-1, index).masked_fill(~used, -torch.inf)
    return SparseLogProbs(token_ids, support.to(dtype), tail.to(dtype))


def sparsify(
    values: Tensor,
    support_size: int = 64,
    dropped_mass: float = 1e-5,
    always_keep: Tensor | None = None,
    *,
    normalised: bool = False,
    tail: Literal["pooled", "constant"] = "pooled",
    default_log_prob: float = DEFAULT_LOG_PROB,
) -> SparseLogProbs:
    """Keep the most probable tokens until their mass is 1 - dropped_mass or there are `support_size` of them.

    Source: TROLL, arXiv 2510.03817, and its configuration (K = 64, delta = 1e-5, sampled token always
    kept). The reference implementation, see `on_support`.

    Args:
        values: [..., V] logits, or log-probabilities with `normalised`. -inf allowed.
        support_size: K >= 1, slots per row; at most V are used.
        dropped_mass: delta in [0, 1): a token is kept while it and all less probable tokens hold more mass.
        always_keep: [...] or [..., m] token ids that are kept regardless of probability; each takes a slot.
        normalised: whether `values` are log-probabilities.
        tail: "pooled" puts the exact remaining mass into the tail, so the result is normalised. "constant" is
            the paper's variant: every dropped token gets `default_log_prob`, so the tail has the mass
            (V - kept) exp(default_log_prob) without gradient, and the kept tokens share the rest.
        default_log_prob: log-probability of each dropped token under "constant".

    Returns:
        [..., K], slots in descending order of probability, unused slots last.

    Raises:
        UserError: support_size or dropped_mass out of range, or an unknown tail.
    """
    vocabulary = values.shape[-1]
    if tail not in ("pooled", "constant"):
        raise UserError(f"sparsify: tail={tail!r} must be 'pooled' or 'constant'")
    if not 0.0 <= dropped_mass < 1.0:
        raise UserError(f"sparsify: dropped_mass is {dropped_mass!r}, must be a number in [0, 1)")
    forced = values.new_empty((*values.shape[:-1], 0), dtype=torch.int64)
    if always_keep is not None:
        forced = always_keep.unsqueeze(-1) if always_keep.dim() == values.dim() - 1 else always_keep
    if not isinstance(support_size, int) or support_size < max(1, forced.shape[-1]):
        raise UserError(
            f"sparsify: support_size={support_size!r} must be an integer >= 1 and hold all of always_keep"
        )
    log_probs = values.detach().to(wide_dtype(values.device))
    if not normalised:
        log_probs = torch.log_softmax(log_probs, dim=-1)
    always = torch.zeros_like(log_probs, dtype=torch.bool).scatter(-1, forced, True)
    best = log_probs.masked_fill(always, torch.inf).topk(min(support_size, vocabulary), dim=-1).indices
    ranked = log_probs.gather(-1, best)
    ranked, order = ranked.sort(dim=-1, descending=True, stable=True)
    ids = best.gather(-1, order)
    keep = (1.0 - (ranked.exp().cumsum(-1) - ranked.exp()) > dropped_mass) & (ranked > -torch.inf)
    keep |= always.gather(-1, ids)
    front = (~keep).int().argsort(dim=-1, stable=True)
    ids = ids.gather(-1, front).masked_fill(~keep.gather(-1, front), -1)
    sparse = on_support(values, ids, normalised=normalised)
    return sparse if tail == "pooled" else constant_tail(sparse, vocabulary, default_log_prob)


def constant_tail(
    sparse: SparseLogProbs, vocabulary: int, default_log_prob: float = DEFAULT_LOG_PROB
) -> SparseLogProbs:
    """Replace the tail by the paper's: each dropped token has `default_log_prob`.

    The kept tokens are rescaled so that the distribution sums to one. Without rescaling, the ratio of a
    projected token to its old probability would jump by 1 / (kept mass) at the boundary of the ball, because
    a projected policy sums to one.

    Args:
        sparse: [..., K], with its exact tail.
        vocabulary: V.
        default_log_prob: log-probability of each dropped token; log 1e-12 in the paper.

    Returns:
        A distribution with a constant tail without gradient; `dropped_log_mass` records the dropped mass.
    """
    empty = (sparse.token_ids < 0).all(-1)
    dropped = vocabulary - (sparse.token_ids >= 0).sum(-1)
    tail = (dropped.log() + default_log_prob).to(sparse.log_probs).masked_fill(empty, 0.0)
    scale = (torch.log1p(-tail.exp()) - _logsumexp(sparse.log_probs)).masked_fill(empty, 0.0)
    exact = sparse.tail_log_prob if sparse.dropped_log_mass is None else sparse.dropped_log_mass
    return SparseLogProbs(sparse.token_ids, sparse.log_probs + scale.unsqueeze(-1), tail, exact.detach())


def _matches(ids: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """For each of `ids` [..., K]: whether it occurs in `others` [..., L], and its index there."""
    ordered, order = others.sort(dim=-1)
    place = torch.searchsorted(ordered.contiguous(), ids.contiguous()).clamp(max=others.shape[-1] - 1)
    shared = (ordered.gather(-1, place) == ids) & (ids >= 0)
    return shared, order.gather(-1, place)


def align(
    a: SparseLogProbs,
    b: SparseLogProbs,
    *,
    missing: Literal["pool", "default"] = "pool",
    default_log_prob: float = DEFAULT_LOG_PROB,
) -> tuple[SparseLogProbs, SparseLogProbs]:
    """Express two distributions with different supports on common atoms.

    * "pool": the atoms are the tokens that both keep; each distribution pools all others. This is the finest
      partition on which both are known, so a KL divergence on it is a true divergence and a lower bound.
    * "default": the atoms are the tokens that at least one keeps (the union, as in the paper); a token that a
      distribution lacks gets `default_log_prob`, taken out of its constant tail. Intended for the "constant"
      variant of `sparsify`; both still sum to one.

    Returns:
        Both distributions, with the same token_ids.
    """
    if missing not in ("pool", "default"):
        raise UserError(f"align: missing={missing!r} must be 'pool' or 'default'")
    in_b, place = _matches(a.token_ids, b.token_ids)
    in_a, _ = _matches(b.token_ids, a.token_ids)
    ids = a.token_ids.masked_fill(~in_b, -1)
    b_shared = b.log_probs.gather(-1, place)
    if missing == "pool":
        pooled = []
        for part, shared in ((a, in_b), (b, in_a)):
            rest = torch.cat(
                [part.log_probs.masked_fill(shared, -torch.inf), part.tail_log_prob.unsqueeze(-1)], -1
            )
            pooled.append(_logsumexp(rest))
        return (
            SparseLogProbs(ids, a.log_probs.masked_fill(~in_b, -torch.inf), pooled[0], a.dropped_log_mass),
            SparseLogProbs(ids, b_shared.masked_fill(~in_b, -torch.inf), pooled[1], b.dropped_log_mass),
        )
    only_a, only_b = (a.token_ids >= 0) & ~in_b, (b.token_ids >= 0) & ~in_a
    union = torch.cat([a.token_ids, b.token_ids.masked_fill(~only_b, -1)], dim=-1)
    a_extra = torch.full_like(b.log_probs, default_log_prob).masked_fill(~only_b, -torch.inf)
    b_first = torch.where(only_a, torch.full_like(b_shared, default_log_prob), b_shared)
    b_first = b_first.masked_fill(a.token_ids < 0, -torch.inf)
    b_extra = b.log_probs.masked_fill(~only_b, -torch.inf)

    def rest_of(tail: Tensor, taken: Tensor) -> Tensor:
        tokens = (tail - default_log_prob).to(wide_dtype(tail.device)).exp().round() - taken
        return (tokens.clamp(min=0.0).log() + default_log_prob).to(tail)

    aligned_a, aligned_b = torch.cat([a.log_probs, a_extra], -1), torch.cat([b_first, b_extra], -1)
    return (
        SparseLogProbs(union, aligned_a, rest_of(a.tail_log_prob, only_b.sum(-1)), a.dropped_log_mass),
        SparseLogProbs(union, aligned_b, rest_of(b.tail_log_prob, only_a.sum(-1)), b.dropped_log_mass),
    )


def kl(
    a: SparseLogProbs,
    b: SparseLogProbs,
    *,
    missing: Literal["pool", "default"] = "pool",
    default_log_prob: float = DEFAULT_LOG_PROB,
) -> Tensor:
    """KL(a || b) on the common atoms, [...]; never negative, differentiable in both.

    With pooled tails it is a lower bound of the KL divergence over the vocabulary, with an error of at most
    `tail_gap_bound` if both keep the same tokens. Different supports are aligned first, see `align`.
    """
    if a.token_ids is not b.token_ids and not torch.equal(a.token_ids, b.token_ids):
        a, b = align(a, b, missing=missing, default_log_prob=default_log_prob)
    return kl_divergence(a.atoms(), b.atoms())


def tail_gap_bound(tail_log_prob: Tensor, log_ratio_range: Tensor | float) -> Tensor:
    """Upper bound of the difference between the dense and the coarse KL(q || p) on the same kept tokens.

    Q min(w, w^2 / 8), see the module docstring. If p and q are softmaxes of logits that differ by at most d
    on the dropped tokens, w <= 2 d.

    Args:
        tail_log_prob: [...] log of q's tail mass Q.
        log_ratio_range: w, the range of log q - log p over the dropped tokens.
    """
    w = torch.as_tensor(log_ratio_range, dtype=tail_log_prob.dtype, device=tail_log_prob.device)
    return tail_log_prob.exp() * torch.minimum(w, w.square() / 8.0)
