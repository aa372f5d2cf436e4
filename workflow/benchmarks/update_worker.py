"""The worker of `update`: measures one variant of an update, from hidden states and weight to a scalar loss.

All variants minimise a token mean over the same tokens, advantages and old policy. The two on full logits do
what published code does; the three others never store a matrix of tokens x vocabulary.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from harness import LEAST_PROJECTED, Clock, serve
from troll.algorithms.distributions import SparseLogProbs, align
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.lm_head.head import lm_head
from troll.algorithms.projection import project
from troll.algorithms.trust_regions.projected import troll
from troll.algorithms.trust_regions.ratio import clip
from troll.algorithms.trust_regions.types import TokenPolicy
from troll.common.seeding import derive_seed

PAPER_KL_BOUND = 0.05
"""The paper's settings (arXiv 2510.03817)."""
PREPARE = "prepare"
"""Variant that computes the old policy once for all others."""
OLD_PASSES = {"old policy, label log-probs": None, "old policy, top-K": "keep"}
"""Forward passes without gradient that precede the updates: what clip needs, and what TROLL needs."""

_LOGIT_SPREAD = 4.0
_STEPS = (0.02, 0.5)
_WARM_UP = 64


@dataclass(frozen=True)
class Work:
    """Settings of a measurement."""

    variant: str
    tokens: int
    width: int
    vocab: int
    keep: int
    device: str
    dtype: str
    seed: int
    folder: str


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
        """Returns the first ``tokens`` tokens, as new leaf tensors."""
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
    """Returns a policy with one response of N tokens."""
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
    """TROLL's loss after the head: projection, policy gradient and regression."""
    mask = torch.ones_like(_rows(batch.labels), dtype=torch.bool)
    new = _policy(log_probs, distribution, batch.labels)
    old = _policy(batch.old_log_probs, batch.old, batch.labels)
    return troll(new, old, _rows(batch.advantages), mask, kl_bound=PAPER_KL_BOUND).per_token.mean()


def _full_log_probs(batch: Batch) -> Tensor:
    return (batch.hidden @ batch.weight.T).float().log_softmax(-1)


def _at_labels(log_probs: Tensor, batch: Batch) -> Tensor:
    return log_probs.gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1)


def clip_full(batch: Batch) -> Tensor:
    """Clip on a full log-softmax, as verl does without fused kernels."""
    return _clip_loss(batch, _at_labels(_full_log_probs(batch), batch))


def clip_trl(batch: Batch) -> Tensor:
    """Clip on TRL's chunked head with TRL's settings, including entropy, as in GRPOTrainer."""
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
    """Clip on our head, with the same memory strategy as `troll_ours`."""
    return _clip_loss(batch, lm_head(batch.hidden, batch.weight, batch.labels).label_log_probs)


def troll_naive(batch: Batch) -> Tensor:
    """TROLL as in the published code: full logits, top-K, union of supports, 24 bisections of log eta.

    The gradient treats the multiplier as constant, as the third-party port does (design notes: "prime").
    """
    keep = batch.old.support_size
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
            outside = kl_divergence(_interpolate(q, p, middle.exp()), p).unsqueeze(-1) > PAPER_KL_BOUND
            low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
        eta = torch.where(kl_divergence(q, p).unsqueeze(-1) > PAPER_KL_BOUND, high.exp(), 0.0)
    pi = _interpolate(q, p, eta)
    slot = (new.token_ids == batch.labels.unsqueeze(-1)).int().argmax(-1, keepdim=True)
    ratio = (pi.gather(-1, slot).squeeze(-1) - batch.old_log_probs).exp()
    return (-batch.advantages * ratio + kl_divergence(q, pi.detach())).mean()


def _interpolate(q: Tensor, p: Tensor, eta: Tensor) -> Tensor:
    return ((eta * p + q) / (eta + 1)).log_softmax(-1)


def troll_ours(batch: Batch) -> Tensor:
    """TROLL on our head, with the new policy on the old policy's support."""
    head = lm_head(batch.hidden, batch.weight, batch.labels, support=batch.old.token_ids)
    assert head.distribution is not None
    return troll_loss(batch, head.label_log_probs, head.distribution)


def projected_share(batch: Batch) -> float:
    """Returns the share of tokens outside their trust region."""
    with torch.no_grad():
        head = lm_head(batch.hidden, batch.weight, batch.labels, support=batch.old.token_ids)
        assert head.distribution is not None
        return float(project(head.distribution, batch.old, PAPER_KL_BOUND).active.float().mean())


VARIANTS: dict[str, Callable[[Batch], Tensor]] = {
    "clip, full logits": clip_full,
    "clip, TRL's chunked head": clip_trl,
    "clip, our head": clip_ours,
    "TROLL, naive (full logits)": troll_naive,
    "TROLL, our head": troll_ours,
}


def _tensors(work: Work) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
    """Makes hidden states of the new and the old policy, and the weight; the same in every process.

    Logits are normal with a standard deviation of 4 nats. Every tenth token has moved far since it was
    sampled, so that the solver has work; the paper's Fig. 14 reports a hundredth of that share as projected.
    """
    random = torch.Generator(work.device).manual_seed(derive_seed(purpose="cost", seed=work.seed))
    dtype = getattr(torch, work.dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=work.device, dtype=dtype)

    old, noise = normal(work.tokens, work.width), normal(work.tokens, work.width)
    far = (torch.arange(work.tokens, device=work.device) % round(1 / LEAST_PROJECTED) == 0).unsqueeze(1)
    step = torch.where(far, _STEPS[1], _STEPS[0]).to(dtype)
    weight = normal(work.vocab, work.width).mul_(_LOGIT_SPREAD / work.width**0.5)
    return old + step * noise, old, weight, random


def prepare(work: Work) -> float:
    """Writes the old policy, and returns the share of the new policy's tokens outside the trust region."""
    hidden, old_hidden, weight, random = _tensors(work)
    labels = torch.zeros(work.tokens, dtype=torch.int64, device=work.device)
    old = lm_head(old_hidden, weight, labels, support_size=work.keep, dropped_mass=1e-5).distribution
    assert old is not None
    slot = torch.multinomial(old.log_probs.exp(), 1, generator=random)
    labels = old.token_ids.gather(1, slot).squeeze(1)
    advantages = torch.randn(work.tokens, generator=random, device=work.device)
    batch = Batch(hidden, weight, labels, advantages, old.log_probs.gather(1, slot).squeeze(1), old)
    kept = (labels, advantages, batch.old_log_probs, old.token_ids, old.log_probs, old.tail_log_prob)
    torch.save(kept, Path(work.folder) / f"old-{work.width}.pt")
    return projected_share(batch)


def measure(work: Work) -> dict[str, float]:
    """Measures seconds and peak memory of one forward and backward pass, without the inputs.

    Before it, there is a short warm-up (of full length on CUDA, where kernels are chosen by shape). `PREPARE`
    only writes the old policy and returns the share of projected tokens.
    """
    if work.variant == PREPARE:
        return {"projected_share": prepare(work)}
    hidden, old_hidden, weight, _ = _tensors(work)
    labels, advantages, old_log_probs, *old = torch.load(
        Path(work.folder) / f"old-{work.width}.pt", map_location=work.device, weights_only=True
    )
    batch = Batch(hidden, weight, labels, advantages, old_log_probs, SparseLogProbs(*old))
    if work.variant in OLD_PASSES:
        batch.hidden = old_hidden
    warm_up = work.tokens if work.device == "cuda" else min(_WARM_UP, work.tokens)
    _run(work, batch.first(warm_up))
    batch = batch.first(work.tokens)
    gc.collect()
    clock = Clock(work.device)
    _run(work, batch)
    result = clock.read()
    if work.variant == "TROLL, our head":
        result["solver_seconds"] = _solver_seconds(work, batch)
    return result


def _run(work: Work, batch: Batch) -> None:
    if work.variant in OLD_PASSES:
        options = {"support_size": work.keep, "dropped_mass": 1e-5} if OLD_PASSES[work.variant] else {}
        with torch.no_grad():
            lm_head(batch.hidden, batch.weight, batch.labels, **options)  # type: ignore[arg-type]
        return
    loss = VARIANTS[work.variant](batch)
    loss.backward()  # type: ignore[no-untyped-call]


def _solver_seconds(work: Work, batch: Batch) -> float:
    """Measures the seconds of what TROLL adds: projection, both losses and their gradient."""
    with torch.no_grad():
        head = lm_head(batch.hidden, batch.weight, batch.labels, support=batch.old.token_ids)
    new = head.distribution
    assert new is not None
    seconds = 0.0
    for _ in range(2):  # the first is a warm-up
        leaf = SparseLogProbs(
            new.token_ids, new.log_probs.clone().requires_grad_(), new.tail_log_prob.clone().requires_grad_()
        )
        clock = Clock(work.device)
        troll_loss(batch, head.label_log_probs, leaf).backward()  # type: ignore[no-untyped-call]
        seconds = clock.read()["seconds"]
    return seconds


if __name__ == "__main__":
    serve(Work, measure)
