"""Cases, sizes and input policies of `gpu_check.py`."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from troll.algorithms.backends import default_backend
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head import lm_head
from troll.algorithms.trust_regions import TokenPolicy

BEFORE = "torch"
"""The reference backend."""
PAPER_KL_BOUND = 0.05
FAR, NEAR = 0.5, 0.02
LABELS, TOP_K = "label log-probs", "top-K, K = {}"
RULE_FORWARD, RULE = "rule, forward, K = {}", "rule, forward and backward, K = {}"
HEAD, CLIP, TROLL = "clip's head", "clip: head and loss", "TROLL: head and loss, K = {}"
CLIP_STEP, TROLL_STEP = "step, clip", "step, TROLL, K = {}"
CLIP_LONG, TROLL_LONG = "clip: head and loss, {} tokens", "TROLL: head and loss, {} tokens"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements; only the first ``few`` rows are compared with float64."""

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
        """Floating-point operations of the product of hidden states and the output layer's weight."""
        return 2.0 * self.tokens * self.width * self.vocab


DRY = Sizes(10, 32, 300, (8, 16), 24, 5, 128, 20, 2, "tiny", (1, 4, 10), "cpu", torch.float32, "triton")


class Value(NamedTuple):
    """A measured error and its upper limit (None: reported without a limit)."""

    value: float
    limit: float | None = None


@dataclass
class Case:
    """A row of the report: a call to time, its minimum cost, and its checks.

    Attributes:
        name: name of the row.
        backend: backend of the package's functions, or the origin of other code.
        run: one call; None if nothing is timed.
        flops: floating-point operations that the call requires.
        bytes: bytes that the call must read and write.
        exact: computes its errors by name.
        share: share of tokens that the last call projected.
        seconds: maximum duration of the timing.
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
    """Uses a backend for rules and models."""
    import troll.training.head as head

    try:
        if backend != "auto":
            head.lm_head = functools.partial(lm_head, backend=backend)  # type: ignore[assignment]
        with default_backend(backend):
            yield
    finally:
        head.lm_head = lm_head


def relative(value: Tensor, reference: Tensor) -> float:
    """Returns the norm of the difference over the norm of the reference."""
    return float((value.double() - reference.double()).norm() / reference.double().norm())


def largest(difference: Tensor) -> float:
    """Returns the largest magnitude."""
    return float(difference.detach().abs().max())


class Data:
    """Hidden states of both policies, weight, labels from the old one, advantages, and float64 references."""

    def __init__(self, sizes: Sizes, weight: Tensor | None = None) -> None:
        self.sizes = sizes
        # With a given weight, another seed: otherwise hidden states would repeat rows of the weight.
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
        """Returns the old policy's K most likely tokens."""
        output = self.top_pass(keep, backend)
        assert output.distribution is not None
        return output.distribution

    @torch.no_grad()
    def top_pass(self, keep: int, backend: str) -> Any:
        """Runs the old policy's pass over the vocabulary, which selects its top-K."""
        return lm_head(
            self.old_hidden, self.weight, self.labels, support_size=keep, dropped_mass=1e-5, backend=backend
        )

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: slice) -> Tensor:
        """Returns full log-probs of some rows in float64."""
        return (hidden[rows].double() @ self.weight.double().T).log_softmax(-1)

    @functools.cached_property
    def gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients of advantages times label log-probs in float64, for a few hidden states and columns."""
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
        """Returns a policy with all tokens as one response."""
        if distribution is not None:
            ids, kept, tail = distribution.token_ids, distribution.log_probs, distribution.tail_log_prob
            distribution = SparseLogProbs(ids[None], kept[None], tail[None])
        return TokenPolicy(label[None], distribution, token_ids=self.labels[None])

    def old_policy(self, keep: int) -> TokenPolicy:
        """Returns the old policy, with label log-probs from its distribution."""
        old = self.top(keep, self.sizes.fast)
        at = (old.token_ids == self.labels[:, None]).int().argmax(1, keepdim=True)
        return self.policy(old.log_probs.gather(1, at).squeeze(1), old)

    def new_policy(self, old: TokenPolicy, backend: str) -> TokenPolicy:
        """Returns the new policy on the old policy's support, with gradient."""
        support = None if old.distribution is None else old.distribution.token_ids[0]
        output = lm_head(self.hidden, self.weight, self.labels, support=support, backend=backend)
        return self.policy(output.label_log_probs, output.distribution)
