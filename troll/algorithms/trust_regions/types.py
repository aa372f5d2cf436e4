"""What goes into a trust-region rule and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.divergences import result_dtype
from troll.errors import UserError

# Log-ratios are clamped to this range before exp, as verl does (trainer/ppo/core_algos.py).
LOG_RATIO_LIMIT = 20.0
# Least mass of a tail: 1e-12, which the paper gives to each dropped token (its code's configuration,
# default_log_prob -27.631). An old tail rounded off to zero must not forbid what the new policy has there.
TAIL_FLOOR = -27.631


@dataclass(frozen=True)
class TokenPolicy:
    """What a rule may know of one policy at the response tokens.

    Attributes:
        log_probs: [B, T] log-probability of the sampled tokens.
        distribution: [B, T, K]; new and old on the same token_ids, chosen by the old policy.
        entropy: [B, T] in nats.
        token_ids: [B, T] the sampled tokens; needed (on one of the two policies) by rules that read the
            distribution, to find the sampled token among the kept ones.
    """

    log_probs: Tensor
    distribution: SparseLogProbs | None = None
    entropy: Tensor | None = None
    token_ids: Tensor | None = None


@dataclass(frozen=True)
class GroupContext:
    """Rewards of the responses to the same prompt, for rules that solve one problem per prompt.

    Every row carries the rewards of its whole group: shuffling and micro-batching cannot break groups.

    Attributes:
        rewards: [B].
        group_rewards: [B, G] rewards of all responses to the row's prompt, its own included; NaN pads.
    """

    rewards: Tensor
    group_rewards: Tensor

    @classmethod
    def from_groups(cls, rewards: Tensor, groups: Tensor) -> GroupContext:
        """Build it from a whole rollout batch.

        Args:
            rewards: [B].
            groups: [B] int64, equal for responses to the same prompt.
        """
        same = groups.unsqueeze(1) == groups.unsqueeze(0)
        width = int(same.sum(1).max()) if len(groups) else 0
        # Stable sort brings each row's members to the front in their order.
        order = same.int().argsort(dim=1, descending=True, stable=True)[:, :width]
        member = same.gather(1, order)
        return cls(rewards, rewards[order].masked_fill(~member, torch.nan))


@dataclass(frozen=True)
class TokenLosses:
    """Per-token losses and what to report about them.

    Attributes:
        per_token: [B, T] loss to minimise, before aggregation; 0 at masked positions.
        metrics: detached tensors [B, T]; masked positions are 0 and must not enter means.
    """

    per_token: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def with_metrics(self, **extra: Tensor) -> TokenLosses:
        """The same losses with metrics added where the rule has not reported them itself."""
        return replace(self, metrics={**extra, **self.metrics})


def log_ratio(new: TokenPolicy, old: TokenPolicy, mask: Tensor) -> Tensor:
    """Log-ratio log new - log old of the sampled tokens [B, T], clamped to +-20, and 0 where masked.

    Masked positions are cut off before the subtraction: NaN or inf there reaches neither value nor gradient.
    """
    masked = ~mask.bool()
    dtype = result_dtype(new.log_probs, old.log_probs)
    new_log = new.log_probs.masked_fill(masked, 0.0).to(dtype)
    old_log = old.log_probs.detach().masked_fill(masked, 0.0).to(dtype)
    return (new_log - old_log).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def compared_rows(policy: TokenPolicy, mask: Tensor) -> SparseLogProbs:
    """The distribution at the response tokens [M, K], as all divergences between policies see it.

    Masked positions are left out, and tails are floored at TAIL_FLOOR.

    Raises:
        UserError: the policy came without its distribution.
    """
    if policy.distribution is None:
        raise UserError("this trust region needs the distributions of the new and the old policy")
    rows = policy.distribution.rows(mask)
    return SparseLogProbs(rows.token_ids, rows.log_probs, rows.tail_log_prob.clamp(min=TAIL_FLOOR))


def sampled_slots(new: TokenPolicy, old: TokenPolicy, ids: Tensor, chosen: Tensor) -> Tensor:
    """Position of the sampled token among the kept ones.

    Args:
        new: its or the old policy's `token_ids` [B, T] are used.
        old: see `new`.
        ids: [M, K] kept tokens of the chosen positions.
        chosen: [B, T] bool, M of them true.

    Returns:
        [M] int64.

    Raises:
        UserError: no sampled ids are given, or one of them was not kept.
    """
    sampled = new.token_ids if new.token_ids is not None else old.token_ids
    if sampled is None:
        raise UserError(
            "TokenPolicy.token_ids is missing: rules that read the distribution need the sampled ids"
        )
    found, slot = (ids == sampled[chosen].unsqueeze(-1)).max(-1)
    if not bool(found.all()):
        raise UserError("a sampled token is not among the kept ones; keep it always (sparsify: always_keep)")
    return slot
