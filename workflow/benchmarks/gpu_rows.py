"""Groups of `gpu_check.py`: the passes of the head, both losses and the rule alone.

Every function below yields groups of cases. The cases of a group take turns, so that they are compared under
the same conditions. Sizes are those of Qwen3-0.6B's output layer. Old and new policy are close, except that
every tenth token is outside its trust region.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gpu_cases import (
    BEFORE,
    CLIP,
    HEAD,
    LABELS,
    PAPER_KL_BOUND,
    RULE,
    RULE_FORWARD,
    TOP_K,
    TROLL,
    Case,
    Data,
    Groups,
    Sizes,
    Value,
    largest,
    relative,
    using,
)
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head import lm_head
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region


def passes(s: Sizes, data: Data, keeps: tuple[int, ...] | None = None) -> Groups:
    """Passes of the head over the vocabulary: label log-probs alone, and with the old policy's top-K."""

    def labels(backend: str) -> Any:
        with torch.no_grad():
            return lm_head(data.hidden, data.weight, data.labels, backend=backend)

    def label_errors(backend: str) -> dict[str, Value]:
        rows = slice(0, s.few)
        want = data.log_probs(data.hidden, rows).gather(1, data.labels[rows, None]).squeeze(1)
        return {"log-prob": Value(largest(labels(backend).label_log_probs[rows] - want), 2e-4)}

    def top_errors(keep: int, backend: str) -> dict[str, Value]:
        rows = slice(0, s.few)
        old = data.top(keep, backend).rows(torch.arange(s.tokens, device=s.device) < s.few)
        full, kept = data.log_probs(data.old_hidden, rows), old.token_ids >= 0
        best = full.topk(keep).values.gather(1, kept.sum(1, keepdim=True) - 1)
        own = full.gather(1, old.token_ids.clamp(min=0))
        free = kept & (old.token_ids != data.labels[rows, None])
        rest = full.scatter(1, torch.where(kept, old.token_ids, data.labels[rows, None]), -torch.inf)
        return {
            "kept below the K-th best by": Value(largest((best - own)[free].clamp(min=0)), 2e-4),
            "log-probs": Value(largest((old.log_probs - own)[kept]), 2e-4),
            "tail": Value(largest(old.tail_log_prob - rest.logsumexp(-1)), 2e-4),
        }

    group, needs = [], {"flops": s.product, "bytes": 2.0 * s.width * (s.tokens + s.vocab)}
    for backend in (s.fast, BEFORE):
        if keeps is None:
            exact = functools.partial(label_errors, backend)
            group.append(Case(LABELS, backend, functools.partial(labels, backend), exact=exact, **needs))
        for keep in keeps or s.keeps:
            run, exact = (
                functools.partial(data.top_pass, keep, backend),
                functools.partial(top_errors, keep, backend),
            )
            group.append(Case(TOP_K.format(keep), backend, run, exact=exact, **needs))
    yield group


def heads(s: Sizes, data: Data) -> Groups:
    """The head alone, forward and backward: ours, TRL's, and full logits."""

    def step(log_probs: Callable[[], Tensor]) -> None:
        data.forget()
        (log_probs() * data.advantages).sum().backward()

    def ours(backend: str) -> Tensor:
        return lm_head(data.hidden, data.weight, data.labels, backend=backend).label_log_probs

    def full() -> Tensor:
        log_probs = (data.hidden @ data.weight.T).float().log_softmax(-1)
        return log_probs.gather(1, data.labels[:, None]).squeeze(1)

    def timed(log_probs: Callable[[], Tensor]) -> None:
        step(log_probs)
        data.forget()  # so that the next call's peak includes gradients

    def errors(log_probs: Callable[[], Tensor], limit: float | None) -> dict[str, Value]:
        step(log_probs)
        of_hidden, of_weight = data.gradients
        assert data.hidden.grad is not None and data.weight.grad is not None
        found = {
            "dH": Value(relative(data.hidden.grad[: s.few], of_hidden), limit),
            "dW": Value(relative(data.weight.grad[: s.columns], of_weight), limit),
        }
        data.forget()
        return found

    variants: list[tuple[str, Callable[[], Tensor], float | None, int]] = [
        (backend, functools.partial(ours, backend), 5e-3, 4) for backend in (s.fast, BEFORE)
    ]
    trl = trl_head()
    if trl is not None:
        variants.append(("TRL", lambda: trl(data.hidden, data.weight, data.labels), None, 4))
    variants.append(("full logits", full, None, 3))
    yield [
        Case(
            HEAD,
            backend,
            functools.partial(timed, function),
            flops=products * s.product,
            exact=functools.partial(errors, function, limit),
        )
        for backend, function, limit, products in variants
    ]


def trl_head() -> Callable[..., Tensor] | None:
    """Returns TRL's chunked head as called by its trainer; None if TRL is missing or too old."""
    try:
        from trl.kernels.chunked_logprob import ChunkedLogProbFunction as Function
    except ImportError:
        return None
    return lambda hidden, weight, labels: Function.apply(
        hidden, weight, None, labels, 1.0, 32_768, None, 1.0, ("entropy",)
    )[0]


class Loss:
    """Head and loss of one rule, forward and backward."""

    def __init__(self, data: Data, keep: int | None, backend: str) -> None:
        self.data, self.backend = data, backend
        self.rule = make_trust_region("clip" if keep is None else "troll")
        self.old = data.old_policy(keep or data.sizes.keeps[0])
        if keep is None:
            self.old = replace(self.old, distribution=None)
        self.mask = torch.ones_like(self.old.log_probs)
        self.projected = self.mask

    def __call__(self, new: Callable[[], TokenPolicy] | None = None) -> None:
        """Runs one update and drops its gradients."""
        self.update(new)
        self.data.forget()  # so that the next call's peak includes gradients

    def update(self, new: Callable[[], TokenPolicy] | None = None) -> None:
        """Runs one update and keeps its gradients."""
        with using(self.backend):
            policy = self.data.new_policy(self.old, self.backend) if new is None else new()
            losses = self.rule(policy, self.old, self.data.advantages[None], self.mask)
            losses.per_token.sum().backward()  # type: ignore[no-untyped-call]
        self.projected = losses.metrics.get("clip_fraction", self.mask)

    def share(self) -> float:
        """Returns the share of tokens that the last update projected."""
        return float(self.projected.double().mean())

    def errors(self) -> dict[str, Value]:
        """Returns errors of the gradient of a few hidden states, compared with float64."""
        self.update()
        assert self.data.hidden.grad is not None
        data, few = self.data, slice(0, self.data.sizes.few)
        gradient = data.hidden.grad[few].clone()
        data.forget()
        hidden = data.hidden.detach()[few].double().requires_grad_()
        support = None if self.old.distribution is None else self.old.distribution.token_ids[0, few]
        output = lm_head(hidden, data.weight.detach().double(), data.labels[few], support=support)
        new, old = wide(data.policy(output.label_log_probs, output.distribution), few), wide(self.old, few)
        new = replace(new, token_ids=data.labels[None, few])
        with using(BEFORE):
            losses = self.rule(new, old, data.advantages[None, few].double(), self.mask[:, few])
        losses.per_token.sum().backward()  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        return {"dH": Value(relative(gradient, hidden.grad), 1e-2)}


def wide(policy: TokenPolicy, few: slice) -> TokenPolicy:
    """Returns the tokens ``few`` of a policy in float64."""
    d, ids = policy.distribution, policy.token_ids
    if d is not None:
        d = SparseLogProbs(
            d.token_ids[:, few], d.log_probs[:, few].double(), d.tail_log_prob[:, few].double()
        )
    return TokenPolicy(policy.log_probs[:, few].double(), d, token_ids=None if ids is None else ids[:, few])


def losses(s: Sizes, data: Data) -> Groups:
    """Head and loss of an update without the model's body: clip and TROLL."""
    group = []
    for backend in (s.fast, BEFORE):
        loss = Loss(data, None, backend)
        group.append(Case(CLIP, backend, loss, flops=4 * s.product, exact=loss.errors))
        for keep in s.keeps:
            loss = Loss(data, keep, backend)
            case = Case(TROLL.format(keep), backend, loss, flops=4 * s.product, exact=loss.errors)
            group.append(replace(case, share=loss.share))
    yield group


def rules(s: Sizes, data: Data, keeps: tuple[int, ...] | None = None) -> Groups:
    """TROLL's rule from log-probs to the loss and back, without the head."""
    for keep in keeps or s.keeps:
        group = []
        for backend in (s.fast, BEFORE):
            loss = Loss(data, keep, backend)
            with torch.no_grad():
                new = data.new_policy(loss.old, s.fast)
            rule = _Rule(loss, new)
            atoms = 4.0 * s.tokens * (keep + 1)
            group.append(
                Case(RULE_FORWARD.format(keep), backend, rule.forward, bytes=3 * atoms, share=loss.share)
            )
            group.append(
                Case(
                    RULE.format(keep),
                    backend,
                    rule.both,
                    bytes=7 * atoms,
                    exact=rule.errors,
                    share=loss.share,
                )
            )
        yield group


class _Rule:
    def __init__(self, loss: Loss, new: TokenPolicy) -> None:
        assert new.distribution is not None
        self.loss, self.new, self.distribution = loss, new, new.distribution
        self.metrics: dict[str, Tensor] = {}

    def losses(self, new: TokenPolicy, old: TokenPolicy) -> Tensor:
        with using(self.loss.backend):
            losses = self.loss.rule(
                new, old, self.loss.data.advantages[None].to(new.log_probs), self.loss.mask
            )
        self.metrics = losses.metrics
        self.loss.projected = losses.metrics["clip_fraction"]
        return losses.per_token

    def leaf(self, dtype: torch.dtype = torch.float32) -> tuple[TokenPolicy, list[Tensor]]:
        d = self.distribution
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (d.log_probs, d.tail_log_prob)]
        own = SparseLogProbs(d.token_ids, *leaves)
        return TokenPolicy(self.new.log_probs.to(dtype), own, token_ids=self.new.token_ids), leaves

    def forward(self) -> Tensor:
        return self.losses(self.leaf()[0], self.loss.old)

    def both(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[Tensor]]:
        new, leaves = self.leaf(dtype)
        old = self.loss.old if dtype == torch.float32 else wide(self.loss.old, slice(None))
        per_token = self.losses(new, old)
        return per_token.detach(), list(torch.autograd.grad(per_token.sum(), leaves))

    def errors(self) -> dict[str, Value]:
        """Returns errors compared with float64."""
        value, (kept, tail) = self.both()
        over = float(self.metrics["kl_projected"].max()) / PAPER_KL_BOUND - 1
        own, self.loss.backend = self.loss.backend, BEFORE
        reference, (kept64, tail64) = self.both(torch.float64)
        self.loss.backend = own
        return {
            "loss": Value(relative(value, reference), 1e-4),
            "gradient": Value(relative(kept, kept64), 1e-4),
            "gradient of the tail": Value(relative(tail, tail64), 1e-3),
            "KL above the bound, relative": Value(max(over, 0.0), 1e-4),
        }
