"""The updates that the cost benchmark compares: hidden states and weight to a scalar loss.

All of them minimise a token mean over the same tokens, advantages and old policy. The two full-logits
variants are what the published codes do; the three others never hold tokens x vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs, align
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.lm_head.head import lm_head
from troll.algorithms.projection import project
from troll.algorithms.trust_regions.projected import troll
from troll.algorithms.trust_regions.ratio import clip
from troll.algorithms.trust_regions.types import TokenPolicy

KL_BOUND = 0.05
"""The paper's (arXiv 2510.03817)."""


@dataclass
class Batch:
    """One mini-batch: [N, D] hidden states of the new policy, the weight [V, D], and the old policy."""

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    advantages: Tensor
    old_log_probs: Tensor
    old: SparseLogProbs

    def first(self, tokens: int) -> "Batch":
        """The first ``tokens`` tokens, with leaves of their own."""
        return Batch(
            self.hidden[:tokens].detach().requires_grad_(),
            self.weight.detach().requires_grad_(),
            self.labels[:tokens],
            self.advantages[:tokens],
            self.old_log_probs[:tokens],
            self.old.rows(torch.arange(self.hidden.shape[0], device=self.hidden.device) < tokens),
        )


def _rows(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(0)


def _policy(log_probs: Tensor, distribution: SparseLogProbs | None, labels: Tensor) -> TokenPolicy:
    """One response of N tokens."""
    if distribution is not None:
        distribution = SparseLogProbs(
            _rows(distribution.token_ids), _rows(distribution.log_probs), _rows(distribution.tail_log_prob)
        )
    return TokenPolicy(_rows(log_probs), distribution, token_ids=_rows(labels))


def _clip_loss(batch: Batch, log_probs: Tensor) -> Tensor:
    mask = torch.ones_like(_rows(batch.labels), dtype=torch.bool)
    new, old = _policy(log_probs, None, batch.labels), _policy(batch.old_log_probs, None, batch.labels)
    return clip(new, old, _rows(batch.advantages), mask).per_token.mean()


def troll_loss(batch: Batch, log_probs: Tensor, distribution: SparseLogProbs) -> Tensor:
    """What TROLL adds behind the head: projection, policy gradient and regression."""
    mask = torch.ones_like(_rows(batch.labels), dtype=torch.bool)
    new = _policy(log_probs, distribution, batch.labels)
    old = _policy(batch.old_log_probs, batch.old, batch.labels)
    return troll(new, old, _rows(batch.advantages), mask, kl_bound=KL_BOUND).per_token.mean()


def _full_log_probs(batch: Batch) -> Tensor:
    return (batch.hidden @ batch.weight.T).float().log_softmax(-1)


def _at_labels(log_probs: Tensor, batch: Batch) -> Tensor:
    return log_probs.gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1)


def clip_full(batch: Batch) -> Tensor:
    """Clip on a full log-softmax, as verl does without fused kernels."""
    return _clip_loss(batch, _at_labels(_full_log_probs(batch), batch))


def clip_trl(batch: Batch) -> Tensor:
    """Clip on TRL's chunked head with its own settings, entropy included, as GRPOTrainer asks for it."""
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE, _ChunkedLogProbFunction

    outputs = _ChunkedLogProbFunction.apply(
        batch.hidden,
        batch.weight,
        None,
        batch.labels,
        1.0,
        _CHUNKED_LOGPROB_CHUNK_SIZE,
        None,
        1.0,
        ("entropy",),
    )
    return _clip_loss(batch, outputs[0])


def clip_ours(batch: Batch) -> Tensor:
    """Clip on our head: the same memory strategy as `troll_ours`."""
    return _clip_loss(batch, lm_head(batch.hidden, batch.weight, batch.labels).label_log_probs)


def troll_naive(batch: Batch) -> Tensor:
    """TROLL as the published codes do it: full logits, top-K, union of supports, 24 bisections of log eta.

    The multiplier is frozen in the gradient, as in the third-party port (design notes: "prime").
    """
    keep = batch.old.keep
    log_probs = _full_log_probs(batch)
    values, ids = log_probs.topk(keep, dim=-1)
    constant = torch.full_like(values[:, 0], -torch.inf)
    new, old = align(
        SparseLogProbs(ids, values, constant),
        SparseLogProbs(batch.old.token_ids, batch.old.log_probs, constant),
        missing="default",
    )
    q, p = new.log_probs.clamp(min=-100.0).log_softmax(-1), old.log_probs.clamp(min=-100.0).log_softmax(-1)
    with torch.no_grad():
        low, high = torch.full_like(q[:, :1], -8.0), torch.full_like(q[:, :1], 10.0)
        for _ in range(24):
            middle = (low + high) / 2
            outside = kl_divergence(_interpolate(q, p, middle.exp()), p).unsqueeze(-1) > KL_BOUND
            low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
        eta = torch.where(kl_divergence(q, p).unsqueeze(-1) > KL_BOUND, high.exp(), 0.0)
    pi = _interpolate(q, p, eta)
    slot = (new.token_ids == batch.labels.unsqueeze(-1)).int().argmax(-1, keepdim=True)
    ratio = (pi.gather(-1, slot).squeeze(-1) - batch.old_log_probs).exp()
    return (-batch.advantages * ratio + kl_divergence(q, pi.detach())).mean()


def _interpolate(q: Tensor, p: Tensor, eta: Tensor) -> Tensor:
    return ((eta * p + q) / (eta + 1)).log_softmax(-1)


def troll_ours(batch: Batch) -> Tensor:
    """TROLL on our head: the new policy at the old policy's support."""
    head = lm_head(batch.hidden, batch.weight, batch.labels, support=batch.old.token_ids)
    assert head.distribution is not None
    return troll_loss(batch, head.label_log_probs, head.distribution)


def projected_share(batch: Batch) -> float:
    """Share of the tokens that lie outside their trust region."""
    with torch.no_grad():
        head = lm_head(batch.hidden, batch.weight, batch.labels, support=batch.old.token_ids)
        assert head.distribution is not None
        return float(project(head.distribution, batch.old, KL_BOUND).active.float().mean())


VARIANTS: dict[str, Callable[[Batch], Tensor]] = {
    "clip, full logits": clip_full,
    "clip, TRL's chunked head": clip_trl,
    "clip, our head": clip_ours,
    "TROLL, naive (full logits)": troll_naive,
    "TROLL, our head": troll_ours,
}
