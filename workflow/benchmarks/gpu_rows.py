"""What `gpu_check.py` measures: the passes of the head, both losses and the rule alone.

Every function below yields groups of cases; those of a group take turns, so that what they are compared by
was measured in the same minutes. Sizes are those of Qwen3-0.6B's output layer. Old and new policy differ
little, but for one token in ten, the first of each, which lies outside its ball.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.divergences import default_backend
from troll.algorithms.lm_head import lm_head
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region

BEFORE = "torch"
"""The backend that everything is compared with."""
KL_BOUND = 0.05
FAR, NEAR = 0.5, 0.02
LABELS, TOP_K = "label log-probs", "top-K, K = {}"
RULE_FORWARD, RULE = "rule, forward, K = {}", "rule, forward and backward, K = {}"
HEAD, CLIP, TROLL = "clip's head", "clip: head and loss", "TROLL: head and loss, K = {}"
CLIP_STEP, TROLL_STEP = "step, clip", "step, TROLL, K = {}"
CLIP_LONG, TROLL_LONG = "clip: head and loss, {} tokens", "TROLL: head and loss, {} tokens"


@dataclass(frozen=True)
class Sizes:
    """Of everything that is measured; `few` rows are compared with float64."""

    tokens: int = 8192
    width: int = 1024
    vocab: int = 151_936
    keeps: tuple[int, ...] = (64, 256)
    largest: int = 1024
    few: int = 256
    columns: int = 8192
    long: int = 32_768
    updates: int = 10
    shape: str = "qwen3-0.6b"
    step: tuple[int, int, int] = (8, 256, 1024)
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    fast: str = "auto"

    @property
    def product(self) -> float:
        """Floating-point operations of hidden states times the output layer's weight."""
        return 2.0 * self.tokens * self.width * self.vocab


DRY = Sizes(20, 32, 300, (8, 16), 24, 10, 128, 30, 2, "tiny", (1, 4, 20), "cpu", torch.float32, "triton")


class Value(NamedTuple):
    """A measured error, and what it may be at most (None: it is only told)."""

    value: float
    limit: float | None = None


@dataclass
class Case:
    """One row: what is run, what it must cost at least, and what is checked about it.

    Attributes:
        name: of the row.
        backend: of the package's functions, or whose code it is.
        run: one call; None where there is nothing to time.
        flops: floating-point operations that it needs.
        bytes: that it has to read and write.
        exact: its errors by name.
        share: of its tokens that the last call projected.
        seconds: of measuring at most.
    """

    name: str
    backend: str
    run: Callable[[], Any] | None
    flops: float = 0.0
    bytes: float = 0.0
    exact: Callable[[], dict[str, Value]] | None = None
    share: Callable[[], float] | None = None
    seconds: float = 1.5


Groups = Iterator[list[Case]]


@contextlib.contextmanager
def using(backend: Any) -> Iterator[None]:
    """Gives rules and models another backend than the one they take by themselves."""
    import troll.training.head as head

    try:
        if backend != "auto":
            head.lm_head = functools.partial(lm_head, backend=backend)  # type: ignore[assignment]
        with default_backend(backend):
            yield
    finally:
        head.lm_head = lm_head


def relative(value: Tensor, reference: Tensor) -> float:
    """Norm of the difference over the norm of the reference."""
    return float((value.double() - reference.double()).norm() / reference.double().norm())


def largest(difference: Tensor) -> float:
    """The largest magnitude."""
    return float(difference.detach().abs().max())


class Data:
    """Hidden states of both policies, weight, labels from the old one, advantages, and float64 references."""

    def __init__(self, sizes: Sizes, weight: Tensor | None = None) -> None:
        self.sizes = sizes
        # With the weight of another one, numbers of its own: hidden states would repeat rows of it.
        generator = torch.Generator(sizes.device).manual_seed(0 if weight is None else 1)
        self.normal = functools.partial(
            torch.randn, generator=generator, device=sizes.device, dtype=sizes.dtype
        )
        tokens, width = sizes.tokens, sizes.width
        self.old_hidden = self.normal(tokens, width)
        far = (torch.arange(tokens, device=sizes.device) % 10 == 0).unsqueeze(1)
        moved = torch.where(far, FAR, NEAR).to(sizes.dtype) * self.normal(tokens, width)
        self.hidden = (self.old_hidden + moved).requires_grad_()
        if weight is None:
            weight = self.normal(sizes.vocab, width).mul_(4 / width**0.5).requires_grad_()
        self.weight = weight
        self.labels = torch.zeros(tokens, dtype=torch.int64, device=sizes.device)
        old = self.top(sizes.keeps[0], sizes.fast)
        slot = torch.multinomial(old.log_probs.exp(), 1, generator=generator)
        self.labels = old.token_ids.gather(1, slot).squeeze(1)
        self.advantages = self.normal(tokens).float()

    def top(self, keep: int, backend: str) -> SparseLogProbs:
        """The old policy's K most likely tokens."""
        output = self.top_pass(keep, backend)
        assert output.distribution is not None
        return output.distribution

    @torch.no_grad()
    def top_pass(self, keep: int, backend: str) -> Any:
        """The whole pass of the old policy."""
        return lm_head(
            self.old_hidden, self.weight, self.labels, keep=keep, dropped_mass=1e-5, backend=backend
        )

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: slice) -> Tensor:
        """Full log-probs of some rows in float64."""
        return (hidden[rows].double() @ self.weight.double().T).log_softmax(-1)

    @functools.cached_property
    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of advantages times label log-probs in float64: of a few hidden states and the first columns."""
        s, hidden = self.sizes, self.hidden.detach()
        of_weight = torch.zeros(s.columns, s.width, dtype=torch.float64, device=s.device)
        parts = []
        for start in range(0, s.tokens, s.few):
            rows = slice(start, min(start + s.few, s.tokens))
            tile = self.log_probs(hidden, rows).exp_().neg_()
            tile.scatter_add_(1, self.labels[rows, None], torch.ones_like(tile[:, :1]))
            tile *= self.advantages[rows, None].double()
            of_weight += tile[:, : s.columns].T @ hidden[rows].double()
            if start == 0:
                parts.append(tile @ self.weight.detach().double())
        return parts[0], of_weight

    def forget(self) -> None:
        """Drops the gradients of the last call."""
        self.hidden.grad = self.weight.grad = None

    def policy(self, label: Tensor, distribution: SparseLogProbs | None = None) -> TokenPolicy:
        """All tokens as one response."""
        if distribution is not None:
            ids, kept, tail = distribution.token_ids, distribution.log_probs, distribution.tail_log_prob
            distribution = SparseLogProbs(ids[None], kept[None], tail[None])
        return TokenPolicy(label[None], distribution, token_ids=self.labels[None])

    def old_policy(self, keep: int) -> TokenPolicy:
        """With the log-probs of the labels as its distribution has them."""
        old = self.top(keep, self.sizes.fast)
        at = (old.token_ids == self.labels[:, None]).int().argmax(1, keepdim=True)
        return self.policy(old.log_probs.gather(1, at).squeeze(1), old)

    def new_policy(self, old: TokenPolicy, backend: str) -> TokenPolicy:
        """At the old policy's support, with gradient."""
        support = None if old.distribution is None else old.distribution.token_ids[0]
        output = lm_head(self.hidden, self.weight, self.labels, support=support, backend=backend)
        return self.policy(output.label_log_probs, output.distribution)


def passes(s: Sizes, data: Data, keeps: tuple[int, ...] | None = None) -> Groups:
    """Label log-probs, and the old policy's top-K in the same pass."""

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
    """The head alone, forward and backward: ours, TRL's, full logits."""

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
        data.forget()  # so that the next call's peak counts gradients

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
    """TRL's chunked head as its trainer calls it; None where TRL is not installed or too old."""
    try:
        from trl.kernels.chunked_logprob import ChunkedLogProbFunction as Function
    except ImportError:
        return None
    return lambda hidden, weight, labels: Function.apply(
        hidden, weight, None, labels, 1.0, 32_768, None, 1.0, ("entropy",)
    )[0]


class Loss:
    """Head and loss of one rule, forward and backward; afterwards `share` says what was projected."""

    def __init__(self, data: Data, keep: int | None, backend: str) -> None:
        self.data, self.backend = data, backend
        self.rule = make_trust_region("clip" if keep is None else "troll")
        self.old = data.old_policy(keep or data.sizes.keeps[0])
        if keep is None:
            self.old = replace(self.old, distribution=None)
        self.mask = torch.ones_like(self.old.log_probs)
        self.projected = self.mask

    def __call__(self, new: Callable[[], TokenPolicy] | None = None) -> None:
        """One update, without what it leaves."""
        self.update(new)
        self.data.forget()  # so that the next call's peak counts gradients

    def update(self, new: Callable[[], TokenPolicy] | None = None) -> None:
        """Leaves the gradients."""
        with using(self.backend):
            policy = self.data.new_policy(self.old, self.backend) if new is None else new()
            losses = self.rule(policy, self.old, self.data.advantages[None], self.mask)
            losses.per_token.sum().backward()  # type: ignore[no-untyped-call]
        self.projected = losses.metrics.get("clip_fraction", self.mask)

    def share(self) -> float:
        """Of the tokens that the last update projected."""
        return float(self.projected.double().mean())

    def errors(self) -> dict[str, Value]:
        """Of the gradient of a few hidden states, against the same in float64."""
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
    """Some tokens of a response in float64."""
    d, ids = policy.distribution, policy.token_ids
    if d is not None:
        d = SparseLogProbs(
            d.token_ids[:, few], d.log_probs[:, few].double(), d.tail_log_prob[:, few].double()
        )
    return TokenPolicy(policy.log_probs[:, few].double(), d, token_ids=None if ids is None else ids[:, few])


def losses(s: Sizes, data: Data) -> Groups:
    """What an update computes behind the model's body: clip against TROLL."""
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
        """Against the same in float64."""
        value, (kept, tail) = self.both()
        over = float(self.metrics["kl_projected"].max()) / KL_BOUND - 1
        own, self.loss.backend = self.loss.backend, BEFORE
        reference, (kept64, tail64) = self.both(torch.float64)
        self.loss.backend = own
        return {
            "loss": Value(relative(value, reference), 1e-4),
            "gradient": Value(relative(kept, kept64), 1e-4),
            "gradient of the tail": Value(relative(tail, tail64), 1e-3),
            "KL above the bound, relative": Value(max(over, 0.0), 1e-4),
        }
