"""The loss of a micro-batch: that of the trust region, with the masks and terms of TRL's options."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.aggregation import aggregate
from troll.algorithms.trust_regions import GroupRewards, StepTokens, TokenLosses, TokenPolicy, TrustRegion
from troll.common.errors import NotFinite
from troll.training.agreement import Agreement
from troll.training.batches import RESPONSE_WEIGHTS, loss_mask
from troll.training.config import TrustRegionConfig
from troll.training.diagnostics import Diagnostics, Report
from troll.training.entropy_bonus import HIGH_ENTROPY, EntropyBonus, high_entropy
from troll.training.policies import NewPolicy, OldPolicy
from troll.training.reference_kl import COEFFICIENT, ReferenceKL, trl_reference_kl
from troll.training.trl_metrics import TrlMetrics
from troll.training.trl_parts import GRPOTrainer

STEP_TOKENS = "rule_step_tokens"
STEP_SEED = "rule_step_seed"
"""Keys of a batch for trust regions that need the whole optimiser step: its `StepTokens` (absent if the batch
is the whole step), and the seed of random choices."""


class LossOptions(Protocol):
    """TRL's options of the loss, as attributes of the trainer, which scripts may set during training."""

    beta: float
    importance_sampling_level: str
    max_completion_length: int
    off_policy_mask_threshold: float | None
    router_aux_loss_coef: float
    top_entropy_quantile: float


@dataclass(frozen=True)
class _MicroBatch:
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
    options: LossOptions
    trust_region: TrustRegion
    aggregation: str
    old_policy: OldPolicy
    new_policy: NewPolicy
    reference_kl: ReferenceKL | None  # None: TRL's KL, weighted by ``beta``
    entropy_bonus: EntropyBonus
    agreement: Agreement
    diagnostics: Diagnostics
    trl_metrics: TrlMetrics
    accelerator: Accelerator
    report: Report
    _unread: list[Tensor] = field(default_factory=list)

    def __call__(
        self, model: Any, inputs: dict[str, Any], part_weight: Tensor | float, *, step: int
    ) -> Tensor:
        """The contribution of this process's micro-batch, or a part of it, to the loss of the optimiser step.

        Args:
            model: the policy, with the sparse head of `troll.training.head`.
            inputs: rows of a rollout batch, with the counts of `troll.training.batches.step_counts` and,
                where it may differ from the new one, the old policy; optionally `STEP_TOKENS`, `STEP_SEED`
                and `HIGH_ENTROPY`.
            part_weight: these tokens' share of the step, for the load-balancing loss of experts, which is a
                mean over a pass.
            step: number of the optimiser step, from 1, for error messages.

        Raises:
            NotFinite: the loss is not finite.
        """
        batch = self._read(model, inputs)
        losses = self._token_losses(model, batch)
        per_token, trained, tokens = self._filtered(losses.per_token, batch)
        per_token, kl = self._with_reference(per_token, batch, first_step=step == 1 and model.training)
        loss = self._reduced(per_token, batch)
        self._unread.append(loss.detach())
        if not (model.training and loss.is_cuda):  # reading it there would synchronise in each micro-batch
            self.check_finite(step)
        self.trl_metrics.add_ratios(batch.new, batch.old, batch.advantages, batch.mask)
        if model.training:
            self._logged(losses.metrics | kl, batch)
        else:
            self.trl_metrics.add_means({"entropy": batch.entropy, **kl}, batch.mask)
        # DDP averages gradients over processes, but the normalisers already count all processes.
        loss = loss * self.accelerator.num_processes
        if self.entropy_bonus.enabled:
            bonus = self.entropy_bonus(
                batch.entropy, trained, loss.detach(), tokens=tokens, training=model.training
            )
            loss = loss - self.accelerator.num_processes * bonus
        if batch.auxiliary is not None:
            loss = loss + part_weight * self.options.router_aux_loss_coef * batch.auxiliary
        return loss

    def _read(self, model: Any, inputs: dict[str, Any]) -> _MicroBatch:
        mask = loss_mask(inputs).float()
        new, old, auxiliary = self.new_policy.read(model, inputs, self.old_policy.read(inputs))
        return _MicroBatch(inputs, mask, _advantages(inputs, mask), new, old, auxiliary)

    def _token_losses(self, model: Any, batch: _MicroBatch) -> TokenLosses:
        """Token losses of the trust region."""
        inputs, group_rewards = batch.inputs, None
        if self.trust_region.info.needs_group_rewards:
            group_rewards = GroupRewards(inputs["rewards"], inputs["group_rewards"])
        compared = self.new_policy.compared(model, batch.new, batch.old)
        step_tokens, seed = inputs.get(STEP_TOKENS), inputs.get(STEP_SEED, 0)
        return self.trust_region(
            *compared, batch.advantages, batch.mask, group_rewards, step_tokens, seed=seed
        )

    def _filtered(self, per_token: Tensor, batch: _MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The losses [B, T] after TRL's masks and weights, the mask of trained tokens, and their number.

        The number is that of the whole step, over all processes.
        """
        inputs, mask, trained = batch.inputs, batch.mask, batch.mask
        tokens = inputs["step_tokens"]
        far, quantile = self.options.off_policy_mask_threshold, self.options.top_entropy_quantile
        if far is not None:
            # DeepSeek-V3.2's mask: 0 at negative advantages of responses that are far off-policy.
            sampled = inputs.get("sampling_per_token_logps", batch.old.log_probs)
            per_token = per_token * GRPOTrainer.get_off_policy_mask(
                batch.advantages, batch.new.log_probs, sampled, mask, far
            )
        if quantile < 1.0:
            entropy = batch.entropy.detach()
            if HIGH_ENTROPY in inputs:
                threshold, tokens = inputs[HIGH_ENTROPY]
            else:  # this part is the whole step
                threshold, tokens = high_entropy(entropy[mask.bool()], quantile)
                tokens = tokens * self.accelerator.num_processes
            trained = mask * (entropy >= threshold)
            per_token = per_token * trained
        if "importance_sampling_ratio" in inputs:  # TRL's correction for sampling with vLLM
            per_token = per_token * inputs["importance_sampling_ratio"]
        return per_token, trained, tokens.clamp(min=1)

    def _with_reference(
        self, per_token: Tensor, batch: _MicroBatch, *, first_step: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the weighted KL to the reference, of the regulariser or of TRL; returns also TRL's metric."""
        reference = batch.inputs.get("ref_per_token_logps")
        if reference is None:
            return per_token, {}
        policies = (batch.new.log_probs, batch.old.log_probs, reference, batch.mask)
        if first_step:
            self.agreement.add_reference(batch.old.log_probs, reference, batch.mask)
        if self.reference_kl is not None:
            return per_token + self.reference_kl.loss(*policies, batch.inputs.get(COEFFICIENT)), {}
        kl = trl_reference_kl(
            *policies,
            weighted=self.args.use_bias_correction_kl,
            sequences=self.options.importance_sampling_level == "sequence",
        )
        return per_token + self.options.beta * kl, {"kl": kl.detach()}

    def _reduced(self, per_token: Tensor, batch: _MicroBatch) -> Tensor:
        return aggregate(
            per_token,
            batch.mask,
            self.aggregation,
            tokens=batch.inputs["step_tokens"],
            sequences=batch.inputs["step_sequences"],
            responses=batch.inputs["step_responses"],
            max_response_tokens=self.options.max_completion_length,
            weights=batch.inputs.get(RESPONSE_WEIGHTS),
        )

    def _logged(self, metrics: dict[str, Tensor], batch: _MicroBatch) -> None:
        assert batch.old.distribution is not None
        kept = (batch.old.distribution.token_ids >= 0).sum(-1)
        metrics = metrics | self.old_policy.fullness(kept)
        self.diagnostics.add({"entropy": batch.entropy.detach(), "kept_tokens": kept, **metrics}, batch.mask)
        if batch.auxiliary is not None:
            self.report("aux_loss", batch.auxiliary.detach())

    def begin_run(self) -> None:
        """Drops the part of an optimiser step that an earlier run was interrupted in."""
        self._unread.clear()
        self.trl_metrics.reset()
        self.entropy_bonus.begin_run()
        self.agreement.begin_run()

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
    def tokens(self, model: Any, inputs: dict[str, Any]) -> tuple[StepTokens, Tensor]:
        """The `StepTokens` of a micro-batch or a part of it, and the entropies [N]; see `__call__`."""
        batch, on = self._read(model, inputs), loss_mask(inputs).bool()
        return StepTokens.of(batch.new, batch.old, batch.advantages, on), batch.entropy[on]


def _advantages(inputs: dict[str, Any], mask: Tensor) -> Tensor:
    advantages: Tensor = inputs["advantages"]
    return advantages.unsqueeze(1).expand_as(mask) if advantages.dim() == 1 else advantages
