"""The loss of a micro-batch: a trust region's, and what options of TRL filter out of it or add to it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from trl import GRPOTrainer

from troll.algorithms.aggregation import aggregate
from troll.algorithms.distributions import SparseLogProbs, align, constant_tail
from troll.algorithms.trust_regions import GroupContext, StepTokens, TokenPolicy, TrustRegion
from troll.common.errors import NotFinite
from troll.training.batches import loss_mask
from troll.training.config import TrustRegionConfig
from troll.training.diagnostics import Diagnostics, Report
from troll.training.entropy_bonus import EntropyBonus
from troll.training.old_policy import OldPolicy
from troll.training.reference_kl import COEFFICIENT, ReferenceKL, trl_reference_kl

STEP_TOKENS = "rule_step_tokens"
STEP_SEED = "rule_step_seed"
"""What a trust region that decides over a whole optimiser step finds in a part of it: its `StepTokens` (none
where the part is the step), and the seed of random choices."""

_WIDE = 4096
"""Vocabularies above which the share of full supports is logged: K tokens of a smaller one are no small part
of it, and what its recorded runs log stays as it is."""


class PolicyLoss:
    """What the policy is trained on.

    Args:
        args: the trainer's.
        trust_region: gives the losses of tokens.
        aggregation: how they become one number.
        old_policy: reads the policy that sampled from a rollout batch.
        reference_kl: the regulariser; without one the KL is TRL's, weighted by ``args.beta``.
        entropy_bonus: TRL's.
        auxiliary: weight of the load-balancing loss of a mixture of experts; 0 for none.
        vocabulary: V of the model.
        high_entropy: TRL's filter: entropies [B, T], mask and quantile to a mask.
        diagnostics: what every optimiser step reports.
        accelerator: the trainer's.
        report: puts a number into the log of the next optimiser step.
    """

    def __init__(
        self,
        args: TrustRegionConfig,
        trust_region: TrustRegion,
        aggregation: str,
        old_policy: OldPolicy,
        reference_kl: ReferenceKL | None,
        entropy_bonus: EntropyBonus,
        auxiliary: float,
        vocabulary: int,
        high_entropy: Callable[[Tensor, Tensor, float], Tensor],
        diagnostics: Diagnostics,
        accelerator: Accelerator,
        report: Report,
    ) -> None:
        self._args, self.trust_region, self._aggregation = args, trust_region, aggregation
        self._old_policy, self._reference_kl = old_policy, reference_kl
        self._entropy_bonus, self._auxiliary, self._high_entropy = entropy_bonus, auxiliary, high_entropy
        self._diagnostics, self._accelerator, self._report = diagnostics, accelerator, report
        self._wide = vocabulary > _WIDE
        self._unread: list[Tensor] = []

    def __call__(self, model: Any, inputs: dict[str, Any], share: Tensor | float, *, step: int) -> Tensor:
        """The part of an optimiser step's loss that a (part of a) micro-batch of this process has.

        Args:
            model: with the sparse head of `troll.training.head`.
            inputs: of a rollout batch, with the old policy and the counts of
                `troll.training.batches.step_counts`; may have `STEP_TOKENS` and `STEP_SEED`.
            share: of the step that these tokens are, for the terms that are means over a micro-batch.
            step: number of the optimiser step, from 1, for messages.

        Raises:
            NotFinite: the loss is not finite.
        """
        mask = loss_mask(inputs).float()
        old = self._old_policy.read(inputs)
        assert old.distribution is not None
        new, auxiliary = self._new_policy(model, inputs, old.distribution.token_ids)
        assert new.entropy is not None
        advantages = _advantages(inputs, mask)
        context = None
        if self.trust_region.needs_context:
            context = GroupContext(inputs["rewards"], inputs["group_rewards"])
        compared = (new, old) if self._args.tail == "pooled" else self._constant_tails(model, new, old)
        whole, seed = inputs.get(STEP_TOKENS), inputs.get(STEP_SEED, 0)
        losses = self.trust_region(*compared, advantages, mask, context, whole, seed=seed)
        per_token, metrics, learnt = losses.per_token, losses.metrics, mask
        if self._args.off_policy_mask_threshold is not None:
            per_token = per_token * self._on_policy(new, old, inputs, advantages, mask)
        if self._args.top_entropy_quantile < 1.0:
            chosen = self._high_entropy(new.entropy.detach(), mask, 1 - self._args.top_entropy_quantile)
            per_token, learnt = per_token * chosen, mask * chosen
        if "importance_sampling_ratio" in inputs:  # vLLM sampled: TRL's correction of sampler against trainer
            per_token = per_token * inputs["importance_sampling_ratio"]
        if "ref_per_token_logps" in inputs:
            weighted, kl = self._reference_loss(new, old, inputs, mask)
            per_token, metrics = per_token + weighted, metrics | kl
        loss = aggregate(
            per_token,
            mask,
            self._aggregation,
            tokens=inputs["step_tokens"],
            sequences=inputs["step_sequences"],
            responses=inputs["step_responses"],
            max_response_tokens=self._args.max_completion_length,
        )
        self._unread.append(loss.detach())
        if not (model.training and loss.is_cuda):  # there, reading it would make the host wait for each part
            self.check_finite(step)
        if model.training:
            kept = (old.distribution.token_ids >= 0).sum(-1)
            if self._wide:
                metrics = metrics | {"support_full": kept >= self._args.keep}
            self._diagnostics.add({"entropy": new.entropy.detach(), "kept_tokens": kept, **metrics}, mask)
        # DDP averages gradients over processes, the normalisers already count all of them.
        loss = loss * self._accelerator.num_processes
        if self._entropy_bonus.enabled:
            loss = loss - share * self._entropy_bonus(
                new.entropy, learnt, loss.detach(), training=model.training
            )
        if auxiliary is not None:
            if model.training:
                self._report("aux_loss", auxiliary.detach())
            loss = loss + share * self._auxiliary * auxiliary
        return loss

    def check_finite(self, step: int) -> None:
        """Refuses a step of which a part's loss is not finite, before its update.

        Args:
            step: number of the optimiser step, from 1.

        Raises:
            NotFinite: one is not.
        """
        losses, self._unread = self._unread, []
        wrong = [value for value in losses if not torch.isfinite(value)]
        if wrong:
            raise NotFinite(
                f"loss is {wrong[0].item()} at optimiser step {step}; training stopped, "
                "the last checkpoint is intact. A smaller learning_rate may help"
            )

    @torch.no_grad()
    def tokens(self, model: Any, inputs: dict[str, Any]) -> StepTokens:
        """The tokens of a (part of a) micro-batch as the trust region will see them; see `__call__`."""
        mask, old = loss_mask(inputs).bool(), self._old_policy.read(inputs)
        assert old.distribution is not None
        new, _ = self._new_policy(model, inputs, old.distribution.token_ids)
        return StepTokens.of(new, old, _advantages(inputs, mask), mask)

    def _new_policy(
        self, model: Any, inputs: dict[str, Any], support: Tensor
    ) -> tuple[TokenPolicy, Tensor | None]:
        """The policy being trained, at the response tokens, and the auxiliary loss of its experts.

        Its tail decides on which tokens: the given support [B, T, K] if pooled, else the policy's own.
        """
        mask, args = inputs["completion_mask"], self._args
        own = {"keep": args.keep, "dropped_mass": args.dropped_mass}
        with self._accelerator.autocast():
            output = model(
                input_ids=torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                attention_mask=torch.cat([inputs["prompt_mask"], mask], dim=1),
                mask=mask,
                sparse_lm_head=True,
                **({"support": support} if args.tail == "pooled" else own),
                **({"output_router_logits": True} if self._auxiliary else {}),
            )
        distribution = SparseLogProbs.from_batch(output)
        policy = TokenPolicy(output.log_probs, distribution, output.entropy, inputs["completion_ids"])
        return policy, output.aux_loss

    def _constant_tails(
        self, model: Any, new: TokenPolicy, old: TokenPolicy
    ) -> tuple[TokenPolicy, TokenPolicy]:
        """Both policies on the tokens that one of them keeps, the others with the paper's constant."""
        assert new.distribution is not None and old.distribution is not None
        vocabulary = self._accelerator.unwrap_model(model).get_output_embeddings().weight.shape[0]
        ours, theirs = align(
            constant_tail(new.distribution, vocabulary),
            constant_tail(old.distribution, vocabulary),
            missing="default",
        )
        return replace(new, distribution=ours), replace(old, distribution=theirs)

    def _on_policy(
        self, new: TokenPolicy, old: TokenPolicy, inputs: dict[str, Any], advantages: Tensor, mask: Tensor
    ) -> Tensor:
        """DeepSeek-V3.2's mask, as in TRL: 0 at negative advantages of responses that are far off policy."""
        sampled = inputs.get("sampling_per_token_logps", old.log_probs)
        threshold = self._args.off_policy_mask_threshold
        kept: Tensor = GRPOTrainer.get_off_policy_mask(advantages, new.log_probs, sampled, mask, threshold)
        return kept

    def _reference_loss(
        self, new: TokenPolicy, old: TokenPolicy, inputs: dict[str, Any], mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted KL to the reference [B, T]: the regulariser's, else TRL's; and TRL's measure of it."""
        reference = inputs["ref_per_token_logps"]
        if self._reference_kl is not None:
            batch = (new.log_probs, old.log_probs, reference, mask, inputs.get(COEFFICIENT))
            return self._reference_kl.loss(*batch), {}
        kl = trl_reference_kl(
            new.log_probs,
            old.log_probs,
            reference,
            mask,
            weighted=self._args.use_bias_correction_kl,
            sequences=self._args.importance_sampling_level == "sequence",
        )
        return self._args.beta * kl, {"kl": kl.detach()}


def _advantages(inputs: dict[str, Any], mask: Tensor) -> Tensor:
    advantages: Tensor = inputs["advantages"]
    return advantages.unsqueeze(1).expand_as(mask) if advantages.dim() == 1 else advantages
