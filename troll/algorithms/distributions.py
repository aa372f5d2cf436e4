"""Sparse next-token distributions: a few kept tokens and one atom for all the others.

A language model's distribution over V tokens is stored as K kept log-probabilities and the pooled mass of the
remaining V - K tokens, the *tail*. The K + 1 atoms are a coarse partition of the vocabulary, so

* they sum to one, whatever was dropped;
* the KL divergence of two such distributions on the same tokens is a true KL divergence: never negative, and
  never above the KL divergence over the full vocabulary (data processing inequality);
* mass that a policy moves outside the kept tokens lands in the tail and is charged for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from troll.errors import UserError


@dataclass(frozen=True)
class SparseLogProbs:
    """Log-probabilities of K kept tokens and the log of the pooled mass of all other tokens.

    Attributes:
        token_ids: [..., K] int64, distinct within a row; -1 in unused slots.
        log_probs: [..., K]; -inf in unused slots.
        tail_log_prob: [...]; log of the total mass of all tokens that are not kept; -inf when none is left.
    """

    token_ids: Tensor
    log_probs: Tensor
    tail_log_prob: Tensor

    def __post_init__(self) -> None:
        """Check that the three shapes belong together.

        Raises:
            UserError: shapes [..., K], [..., K], [...] do not hold.
        """
        shapes = tuple(tuple(x.shape) for x in (self.token_ids, self.log_probs, self.tail_log_prob))
        if shapes[0] != shapes[1] or shapes[0][:-1] != shapes[2]:
            raise UserError(
                "SparseLogProbs: token_ids [..., K], log_probs [..., K] and tail_log_prob [...] must agree, "
                f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes [...] that all three tensors share."""
        return self.tail_log_prob.shape

    @property
    def keep(self) -> int:
        """K, the number of slots."""
        return self.log_probs.shape[-1]

    def atoms(self) -> Tensor:
        """All atoms in one tensor, [..., K + 1]: the kept tokens, then the tail."""
        return torch.cat([self.log_probs, self.tail_log_prob.unsqueeze(-1)], dim=-1)

    def with_atoms(self, atoms: Tensor) -> SparseLogProbs:
        """The same tokens with other log-probabilities, given as [..., K + 1] atoms."""
        return SparseLogProbs(self.token_ids, atoms[..., :-1], atoms[..., -1])

    def detach(self) -> SparseLogProbs:
        """The same values without gradient."""
        return SparseLogProbs(self.token_ids, self.log_probs.detach(), self.tail_log_prob.detach())

    def rows(self, index: Tensor) -> SparseLogProbs:
        """Chosen rows [M, K] of the flattened batch, or those where a boolean mask of batch shape is true."""
        if index.dtype == torch.bool:
            return SparseLogProbs(self.token_ids[index], self.log_probs[index], self.tail_log_prob[index])
        flat = self.token_ids.reshape(-1, self.keep), self.log_probs.reshape(-1, self.keep)
        return SparseLogProbs(flat[0][index], flat[1][index], self.tail_log_prob.reshape(-1)[index])
