"""Inputs and outputs of trust-region rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from troll.algorithms.backends import require, result_dtype, takes_triton
from troll.algorithms.distributions import DEFAULT_LOG_PROB, SparseLogProbs
from troll.common.errors import UserError

# Log-ratios are clamped to this range before exp, as verl does (trainer/ppo/core_algos.py).
LOG_RATIO_LIMIT = 20.0
DIFFERENT_TOKENS = "token_ids: the two policies keep different tokens; score the new one on those of the old"
NOT_KEPT = "a sampled token is not among the kept tokens; force it (sparsify: always_keep)"


@dataclass(frozen=True)
class TokenPolicy:
    """One policy at the response tokens, as passed to a rule.

    Attributes:
        log_probs: [B, T] log-probability of the sampled tokens.
        distribution: [B, T, K]; new and old policy have the same token_ids, chosen by the old policy.
        entropy: [B, T] in nats.
        token_ids: [B, T] the sampled tokens; rules that read the distribution need them on one of the two
            policies, to find the sampled token among the kept tokens.
    """

    log_probs: Tensor
    distribution: SparseLogProbs | None = None
    entropy: Tensor | None = None
    token_ids: Tensor | None = None

    def where(self, mask: Tensor) -> TokenPolicy:
        """The same policy where mask [B, T] (bool) is true; zeros and empty rows elsewhere."""
        off = ~mask
        return TokenPolicy(
            self.log_probs.masked_fill(off, 0.0),
            None if self.distribution is None else self.distribution.where(mask),
            None if self.entropy is None else self.entropy.masked_fill(off, 0.0),
            None if self.token_ids is None else self.token_ids.masked_fill(off, 0),
        )

    def detach(self) -> TokenPolicy:
        """The same policy without gradient."""
        return TokenPolicy(
            self.log_probs.detach(),
            None if self.distribution is None else self.distribution.detach(),
            None if self.entropy is None else self.entropy.detach(),
            self.token_ids,
        )


@dataclass(frozen=True)
class GroupRewards:
    """Rewards of the responses to the same prompt, for rules that solve one problem per prompt.

    Every row carries the rewards of its whole group, so shuffling and micro-batching cannot split groups.

    Attributes:
        own: [B] reward of each response.
        of_group: [B, G] rewards of all responses to the same prompt, including `own`; padded with NaN.
    """

    own: Tensor
    of_group: Tensor

    @classmethod
    def from_groups(cls, rewards: Tensor, groups: Tensor) -> GroupRewards:
        """Build the group rewards of a whole rollout batch.

        Args:
            rewards: [B].
            groups: [B] int64, equal for responses to the same prompt.
        """
        same = groups.unsqueeze(1) == groups.unsqueeze(0)
        width = int(same.sum(1).max()) if len(groups) else 0
        # The stable sort moves each row's group members to the front and keeps their order.
        order = same.int().argsort(dim=1, descending=True, stable=True)[:, :width]
        member = same.gather(1, order)
        return cls(rewards, rewards[order].masked_fill(~member, torch.nan))


@dataclass(frozen=True)
class StepTokens:
    """All response tokens of an optimiser step, for rules whose decisions depend on all of them.

    A mini-batch may be split into micro-batches and over processes; the rule is called for each part. Every
    call receives the tokens of the whole step, so decisions do not depend on how the step is split.

    Attributes:
        log_probs: [N] log-probabilities under the policy being trained.
        log_ratio: [N], see `log_ratio`.
        advantages: [N].
        start: index of the first of these tokens that belongs to the current part; the part's tokens follow
            in the order of their responses.
        seed: seed of this step's random choices.
    """

    log_probs: Tensor
    log_ratio: Tensor
    advantages: Tensor
    start: int = 0
    seed: int = 0

    @classmethod
    def of(
        cls, new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, seed: int = 0
    ) -> StepTokens:
        """Build the tokens of a step that consists of a single part.

        Args:
            new: policy being trained.
            old: the policy it is compared with.
            advantages: [B, T].
            mask: [B, T] bool.
            seed: seed of this step's random choices.
        """
        difference = log_ratio(new, old).detach()[mask]
        log_probs = new.log_probs.detach()[mask].to(difference.dtype)
        return cls(log_probs, difference, advantages.detach()[mask].to(difference.dtype), seed=seed)

    def of_micro_batch(self, values: Tensor, mask: Tensor) -> Tensor:
        """Values [N] of the step's tokens, placed at the current part's mask [B, T] (bool); 0 elsewhere."""
        return scatter_rows(values[self.start : self.start + int(mask.sum())], mask)


@dataclass(frozen=True)
class TokenLosses:
    """Per-token losses and metrics of a rule.

    A rule may return any values at masked positions and metrics with gradients: `TrustRegion` removes both.

    Attributes:
        per_token: [B, T] loss to minimise, before aggregation; 0 at masked positions.
        metrics: detached tensors [B, T]; masked positions are 0 and must not enter means.
    """

    per_token: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def with_metrics(self, **extra: Tensor) -> TokenLosses:
        """The same losses with additional metrics; metrics that the rule has reported take precedence."""
        return replace(self, metrics={**extra, **self.metrics})


Rule = Callable[..., TokenLosses]


def log_ratio(new: TokenPolicy, old: TokenPolicy) -> Tensor:
    """Log-ratio log new - log old of the sampled tokens [B, T], at least float32, clamped to +-20."""
    dtype = result_dtype(new.log_probs, old.log_probs)
    return (new.log_probs.to(dtype) - old.log_probs.to(dtype)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def token_rows(values: Tensor, mask: Tensor) -> Tensor:
    """Values [B, T] at the positions where the mask is set, [M], in the order of `compared_rows`.

    With Triton kernels all positions are returned, [B T], because a selection would make the host wait for
    the number of rows; `scatter_rows` discards the masked positions.
    """
    return values.reshape(-1) if takes_triton(values.device) else values[mask]


def scatter_rows(rows: Tensor, mask: Tensor) -> Tensor:
    """Scatters values [M] to the positions where mask [B, T] (bool) is set; 0 elsewhere.

    Also accepts rows of all positions, see `token_rows`.
    """
    if takes_triton(rows.device) and rows.shape[0] == mask.numel():
        return rows.reshape(mask.shape).masked_fill(~mask, 0)
    return rows.new_zeros(mask.shape).masked_scatter(mask, rows)


def metric_rows(rows: Tensor, mask: Tensor) -> Tensor:
    """As `scatter_rows` for metrics, whose masked positions may hold any value: `TrustRegion` clears them."""
    if takes_triton(rows.device) and rows.shape[0] == mask.numel():
        return rows.reshape(mask.shape)
    return scatter_rows(rows, mask)


def compared_rows(policy: TokenPolicy, mask: Tensor) -> SparseLogProbs:
    """The distribution at the response tokens, [M, K], from which divergences between policies are computed.

    Masked positions are left out, or are empty rows (see `token_rows`). Tail masses are at least
    exp(DEFAULT_LOG_PROB), so an old tail that was rounded to zero does not make divergences infinite.

    Raises:
        UserError: the policy has no distribution.
    """
    if policy.distribution is None:
        raise UserError("this trust region needs the distributions of the new and the old policy")
    rows = policy.distribution.flat() if takes_triton(mask.device) else policy.distribution.rows(mask)
    return SparseLogProbs(rows.token_ids, rows.log_probs, rows.tail_log_prob.clamp(min=DEFAULT_LOG_PROB))


def sampled_ids(new: TokenPolicy, old: TokenPolicy) -> Tensor:
    """The sampled tokens [B, T], from whichever policy has them.

    Raises:
        UserError: neither policy has them.
    """
    sampled = new.token_ids if new.token_ids is not None else old.token_ids
    if sampled is None:
        raise UserError(
            "TokenPolicy.token_ids is missing: rules that read the distribution need the sampled ids"
        )
    return sampled


def sampled_slots(new: TokenPolicy, old: TokenPolicy, ids: Tensor, chosen: Tensor) -> Tensor:
    """Index of the sampled token among the kept tokens, [M] int64.

    Args:
        new: its `token_ids` [B, T] are used, else those of `old`.
        old: see `new`.
        ids: [M, K] kept tokens of the chosen positions, as returned by `compared_rows`.
        chosen: [B, T] bool, M of them true.

    Raises:
        UserError: neither policy has sampled ids, or a sampled token was not kept.
    """
    kept, slot = (ids == token_rows(sampled_ids(new, old), chosen).unsqueeze(-1)).max(-1)
    if kept.shape[0] == chosen.numel():
        kept = kept | ~chosen.reshape(-1)
    require(kept.all(), NOT_KEPT)
    return slot
