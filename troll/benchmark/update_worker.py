"""Measures one variant of an update: the worker of `troll.benchmark.update`."""

import gc
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head.head import lm_head
from troll.benchmark.harness import LEAST_PROJECTED, Clock, serve
from troll.benchmark.update_variants import VARIANTS, Batch, projected_share, troll_loss
from troll.common.seeding import derive_seed

PREPARE = "prepare"
"""The work that makes the old policy once for all variants."""
OLD_PASSES = {"old policy, label log-probs": None, "old policy, top-K": "keep"}
"""Forward passes without gradient that precede the updates: what clip needs, and what TROLL needs."""

_LOGIT_SPREAD = 4.0
_STEPS = (0.02, 0.5)
_WARM_UP = 64


@dataclass(frozen=True)
class Work:
    """What to measure."""

    variant: str
    tokens: int
    width: int
    vocab: int
    keep: int
    device: str
    dtype: str
    seed: int
    folder: str


def _tensors(work: Work) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
    """Hidden states of the new and of the old policy, and the weight; the same in every process.

    Logits are normal with a spread of 4 nats. One token in ten, the first of each, has moved far since it was
    sampled (a hundred times the share that the paper reports as projected, its Fig. 14), so that the solver
    has something to do.
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
    """Writes the old policy; returns the share of tokens that the new one moved out of the trust region."""
    hidden, old_hidden, weight, random = _tensors(work)
    labels = torch.zeros(work.tokens, dtype=torch.int64, device=work.device)
    old = lm_head(old_hidden, weight, labels, keep=work.keep, dropped_mass=1e-5).distribution
    assert old is not None
    slot = torch.multinomial(old.log_probs.exp(), 1, generator=random)
    labels = old.token_ids.gather(1, slot).squeeze(1)
    advantages = torch.randn(work.tokens, generator=random, device=work.device)
    batch = Batch(hidden, weight, labels, advantages, old.log_probs.gather(1, slot).squeeze(1), old)
    kept = (labels, advantages, batch.old_log_probs, old.token_ids, old.log_probs, old.tail_log_prob)
    torch.save(kept, Path(work.folder) / f"old-{work.width}.pt")
    return projected_share(batch)


def measure(work: Work) -> dict[str, float]:
    """Seconds and peak memory of one forward and backward pass, the inputs not counted.

    A short warm-up comes first (of full length on CUDA, where kernels are chosen by shape). The work
    `PREPARE` writes the old policy and tells the share of projected tokens.
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
        options = {"keep": work.keep, "dropped_mass": 1e-5} if OLD_PASSES[work.variant] else {}
        with torch.no_grad():
            lm_head(batch.hidden, batch.weight, batch.labels, **options)  # type: ignore[arg-type]
        return
    loss = VARIANTS[work.variant](batch)
    loss.backward()  # type: ignore[no-untyped-call]


def _solver_seconds(work: Work, batch: Batch) -> float:
    """Projection, both losses and their gradient, from and to the sparse log-probs: all that TROLL adds."""
    with torch.no_grad():
        head = lm_head(batch.hidden, batch.weight, batch.labels, support=batch.old.token_ids)
    new = head.distribution
    assert new is not None
    seconds = 0.0
    for _ in range(2):  # the first one warms up
        leaf = SparseLogProbs(
            new.token_ids, new.log_probs.clone().requires_grad_(), new.tail_log_prob.clone().requires_grad_()
        )
        clock = Clock(work.device)
        troll_loss(batch, head.label_log_probs, leaf).backward()  # type: ignore[no-untyped-call]
        seconds = clock.read()["seconds"]
    return seconds


if __name__ == "__main__":
    serve(Work, measure)
