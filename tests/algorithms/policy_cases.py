"""Random pairs of policies for the tests, and high-precision references of the projection."""

from __future__ import annotations

from dataclasses import dataclass

import mpmath
import torch
from torch import Tensor

from troll.algorithms.distributions import on_support, sparsify
from troll.algorithms.trust_regions import GroupRewards, TokenPolicy


def log_probs_pair(
    rows: int, atoms: int, spread: float = 2.0, shift: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """New and old log-probabilities [rows, atoms], float64."""
    generator = torch.Generator().manual_seed(seed)
    old = spread * torch.randn(rows, atoms, generator=generator, dtype=torch.float64)
    new = old + shift * torch.randn(rows, atoms, generator=generator, dtype=torch.float64)
    return new.log_softmax(-1), old.log_softmax(-1)


@dataclass
class Case:
    """One micro-batch as a rule sees it."""

    logits: Tensor
    old_logits: Tensor
    token_ids: Tensor
    support: Tensor
    advantages: Tensor
    mask: Tensor
    group_rewards: GroupRewards

    def policy(self, logits: Tensor) -> TokenPolicy:
        log_probs = (
            logits.float().log_softmax(-1) if logits.dtype != torch.float64 else logits.log_softmax(-1)
        )
        sampled = log_probs.gather(-1, self.token_ids.unsqueeze(-1)).squeeze(-1)
        distribution = on_support(log_probs, self.support, normalised=True)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return TokenPolicy(sampled, distribution, entropy, self.token_ids)

    @property
    def new(self) -> TokenPolicy:
        return self.policy(self.logits)

    @property
    def old(self) -> TokenPolicy:
        return self.policy(self.old_logits.detach())


def make_case(
    *, responses: int = 4, tokens: int = 6, vocabulary: int = 12, keep: int = 7, shift: float = 0.8,
    dtype: torch.dtype = torch.float64, seed: int = 0,
) -> Case:  # fmt: skip
    """Responses of different lengths (the last one empty), new policy `shift` away from the old one."""
    generator = torch.Generator().manual_seed(seed)
    shape = (responses, tokens, vocabulary)
    old = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    new = old + shift * torch.randn(shape, generator=generator, dtype=torch.float64)
    flat = old.softmax(-1).reshape(-1, vocabulary)
    sampled = flat.multinomial(1, generator=generator).reshape(responses, tokens)
    support = sparsify(old, keep, 1e-5, sampled).token_ids
    lengths = torch.tensor([tokens - index for index in range(responses - 1)] + [0])
    mask = (torch.arange(tokens) < lengths.unsqueeze(1)).to(torch.float64)
    rewards = torch.tensor([1.0, 0.0] * (responses // 2) + [1.0] * (responses % 2), dtype=torch.float64)
    groups = torch.arange(responses) // 2
    advantages = torch.randn(responses, 1, generator=generator, dtype=torch.float64).expand(responses, tokens)
    return Case(
        logits=new.to(dtype).requires_grad_(),
        old_logits=old.to(dtype),
        token_ids=sampled,
        support=support,
        advantages=advantages.to(dtype),
        mask=mask.to(dtype),
        group_rewards=GroupRewards.from_groups(rewards, groups),
    )


def reference_projection(
    log_q: list[float], log_p: list[float], bound: float
) -> tuple[list[mpmath.mpf], mpmath.mpf]:
    """Projection by bisection at the working precision of mpmath: (log pi, beta)."""
    q, p = [mpmath.mpf(x) for x in log_q], [mpmath.mpf(x) for x in log_p]
    r = [a - b for a, b in zip(q, p, strict=True)]

    def path(beta: mpmath.mpf) -> list[mpmath.mpf]:
        raw = [b + beta * x for b, x in zip(p, r, strict=True)]
        psi = mpmath.log(mpmath.fsum(mpmath.exp(x) for x in raw))
        return [x - psi for x in raw]

    def divergence(log_pi: list[mpmath.mpf]) -> mpmath.mpf:
        return mpmath.fsum(mpmath.exp(a) * (a - b) for a, b in zip(log_pi, p, strict=True))

    if divergence(q) <= bound:
        return q, mpmath.mpf(1)
    low, high = mpmath.mpf(0), mpmath.mpf(1)
    for _ in range(int(mpmath.mp.prec) + 20):
        middle = (low + high) / 2
        if divergence(path(middle)) > bound:
            high = middle
        else:
            low = middle
    return path(low), low
