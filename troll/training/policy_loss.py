"""The loss of a micro-batch: that of the trust region, with the masks and terms of TRL's options."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from trl import GRPOTrainer

from troll.algorithms.aggregation import aggregate
from troll.algorithms.trust_regions import GroupRewards, StepTokens, TokenLosses, TokenPolicy, TrustRegion
from troll.common.errors import NotFinite
from troll.training.batches import loss_mask
from troll.training.config import TrustRegionConfig
from troll.training.diagnostics import Diagnostics, Report
from troll.training.entropy_bonus import EntropyBonus
from troll.training.policies import NewPolicy, OldPolicy
from troll.training.reference_kl import COEFFICIENT, ReferenceKL, trl_reference_kl

STEP_TOKENS = "rule_step_tokens"
STEP_SEED = "rule_step_seed"
"""Keys of a batch for trust regions that need the whole optimiser step: its `StepTokens` (absent if the batch
is the whole step), and the seed of random choices."""


@dataclass(frozen=True)
class _Part:
    """Inputs of the loss for a micro-batch or a part of it; mask and advantages are [B, T]."""

    inputs: dict[str, Any]
    mask: Tensor
    advantages: Tensor
    new: TokenPolicy
    old: TokenPolicy
    auxiliary: Tensor | None

    @property
    def entropy(self) -> Tensor:
        """Entropy of the new policy, [B, T]."""
        assert self.new.entropy is not None
        return self.new.entropy


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of the policy."""

    args: TrustRegionConfig
    trust_region: TrustRegion
    aggregation: str
    old_policy: OldPolicy
    new_policy: NewPolicy
    reference_kl: ReferenceKL | None  # None: TRL's KL, weighted by ``args.beta``
    entropy_bonus: EntropyBonus
    auxiliary_weight: float  # weight of the load-balancing loss of a mixture of experts
    high_entropy: Callable[[Tensor, Tensor, float], Tensor]  # TRL's: (entropy [B, T], mask, quantile) to mask
    diagnostics: Diagnostics
    accelerator: Accelerator
    report: Report
    _unread: list[Tensor] = field(default_factory=list)

    def __call__(
        self, model: Any, inputs: dict[str, Any], part_weight: Tensor | float, *, step: int
    ) -> Tensor:
        """The contribution of this process's micro-batch, or a part of it, to the loss of the optimiser step.

        Args:
            model: the policy, with the sparse head of `troll.training.head`.
            inputs: rows of a rollout batch, with the old policy and the counts of
                `troll.training.batches.step_counts`; optionally `STEP_TOKENS` and `STEP_SEED`.
            part_weight: these tokens' share of the step, for the terms that are means over a micro-batch.
            step: number of the optimiser step, from 1, for error messages.

        Raises:
            NotFinite: the loss is not finite.
        """
        part = self._read(model, inputs)
        losses = self._token_losses(model, part)
        per_token, entropy_mask = self._filtered(losses.per_token, part)
        per_token, kl = self._with_reference(per_token, part)
        loss = self._reduced(per_token, part)
        self._unread.append(loss.detach())
        if not (model.training and loss.is_cuda):  # reading it there would synchronise in each part
            self.check_finite(step)
        if model.training:
            self._logged(losses.metrics | kl, part)
        # DDP averages gradients over processes, but the normalisers already count all processes.
        loss = loss * self.accelerator.num_processes
        return self._with_means(loss, part, entropy_mask, part_weight, training=model.training)

    def _read(self, model: Any, inputs: dict[str, Any]) -> _Part:
        mask, old = loss_mask(inputs).float(), self.old_policy.read(inputs)
        assert old.distribution is not None
        new, auxiliary = self.new_policy.read(model, inputs, old.distribution.token_ids)
        return _Part(inputs, mask, _advantages(inputs, mask), new, old, auxiliary)

    def _token_losses(self, model: Any, part: _Part) -> TokenLosses:
        """Token losses of the trust region."""
        inputs, group_rewards = part.inputs, None
        if self.trust_region.needs_group_rewards:
            group_rewards = GroupRewards(inputs["rewards"], inputs["group_rewards"])
        compared = self.new_policy.compared(model, part.new, part.old)
        step_tokens, seed = inputs.get(STEP_TOKENS), inputs.get(STEP_SEED, 0)
        return self.trust_region(*compared, part.advantages, part.mask, group_rewards, step_tokens, seed=seed)

    def _filtered(self, per_token: Tensor, part: _Part) -> tuple[Tensor, Tensor]:
        """The losses after TRL's masks and weights, and the mask of the entropy bonus; both [B, T]."""
        inputs, mask, entropy_mask = part.inputs, part.mask, part.mask
        threshold, quantile = self.args.off_policy_mask_threshold, self.args.top_entropy_quantile
        if threshold is not None:
            # DeepSeek-V3.2's mask: 0 at negative advantages of responses that are far off-policy.
            sampled = inputs.get("sampling_per_token_logps", part.old.log_probs)
            per_token = per_token * GRPOTrainer.get_off_policy_mask(
                part.advantages, part.new.log_probs, sampled, mask, threshold
            )
        if quantile < 1.0:
            chosen = self.high_entropy(part.entropy.detach(), mask, 1 - quantile)
            per_token, entropy_mask = per_token * chosen, mask * chosen
        if "importance_sampling_ratio" in inputs:  # TRL's correction for sampling with vLLM
            per_token = per_token * inputs["importance_sampling_ratio"]
        return per_token, entropy_mask

    def _with_reference(self, per_token: Tensor, part: _Part) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the weighted KL to the reference, of the regulariser or of TRL; returns also TRL's metric."""
        reference = part.inputs.get("ref_per_token_logps")
        if reference is None:
            return per_token, {}
        policies = (part.new.log_probs, part.old.log_probs, reference, part.mask)
        if self.reference_kl is not None:
            return per_token + self.reference_kl.loss(*policies, part.inputs.get(COEFFICIENT)), {}
        kl = trl_reference_kl(
            *policies,
            weighted=self.args.use_bias_correction_kl,
            sequences=self.args.importance_sampling_level == "sequence",
        )
        return per_token + self.args.beta * kl, {"kl": kl.detach()}

    def _reduced(self, per_token: Tensor, part: _Part) -> Tensor:
        return aggregate(
            per_token,
            part.mask,
            self.aggregation,
            tokens=part.inputs["step_tokens"],
            sequences=part.inputs["step_sequences"],
            responses=part.inputs["step_responses"],
            max_response_tokens=self.args.max_completion_length,
        )

    def _logged(self, metrics: dict[str, Tensor], part: _Part) -> None:
        assert part.old.distribution is not None
        kept = (part.old.distribution.token_ids >= 0).sum(-1)
        metrics = metrics | self.old_policy.fullness(kept)
        self.diagnostics.add({"entropy": part.entropy.detach(), "kept_tokens": kept, **metrics}, part.mask)
        if part.auxiliary is not None:
            self.report("aux_loss", part.auxiliary.detach())

    def _with_means(
        self, loss: Tensor, part: _Part, entropy_mask: Tensor, part_weight: Tensor | float, *, training: bool
    ) -> Tensor:
        """Adds the terms that are means over a micro-batch: entropy bonus and load-balancing loss."""
        if self.entropy_bonus.enabled:
            bonus = self.entropy_bonus(part.entropy, entropy_mask, loss.detach(), training=training)
            loss = loss - part_weight * bonus
        if part.auxiliary is not None:
            loss = loss + part_weight * self.auxiliary_weight * part.auxiliary
        return loss

    def check_finite(self, step: int) -> None:
        """Raises before the update of an optimiser step (from 1) if the loss of a part is not finite."""
        not_finite = [value for value in self._unread if not torch.isfinite(value)]
        self._unread.clear()
        if not_finite:
            raise NotFinite(
                f"loss is {not_finite[0].item()} at optimiser step {step}; training stopped, "
                "the last checkpoint is intact. A smaller learning_rate may help"
            )

    @torch.no_grad()
    def tokens(self, model: Any, inputs: dict[str, Any]) -> StepTokens:
        """The `StepTokens` of a micro-batch or a part of it; see `__call__` for the arguments."""
        part = self._read(model, inputs)
        return StepTokens.of(part.new, part.old, part.advantages, part.mask.bool())


def _advantages(inputs: dict[str, Any], mask: Tensor) -> Tensor:
    advantages: Tensor = inputs["advantages"]
    return advantages.unsqueeze(1).expand_as(mask) if advantages.dim() == 1 else advantages
