"""`TrustRegionTrainer`: TRL's GRPO trainer with the policy update of your choice.

Rollouts, rewards, sharding, logging and checkpoints are TRL's. What the TROLL paper changes happens here: the
old policy's sparse distribution travels in the rollout batch, advantages come from a named estimator, and the
loss from a named trust region. PPO-clip runs through the same code and differs in the registry entry alone.

Deviations from TRL 1.16, on purpose:

* token-mean divides by the tokens of the optimiser step itself; TRL's ``dapo`` divides by the average number
  of tokens in the generation batch.
* random streams of rollouts are seeded at every rollout batch from (seed, batch, process), so that a resumed
  run repeats an uninterrupted one whatever ran before.
"""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from troll.algorithms.advantages import make_estimator
from troll.algorithms.aggregation import aggregate
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.trust_regions import (
    Certificate,
    GroupContext,
    TokenPolicy,
    TrustRegion,
    make_trust_region,
)
from troll.errors import UserError
from troll.seeding import derive_seed
from troll.training.diagnostics import Diagnostics
from troll.training.head import add_sparse_lm_head

TRL_AGGREGATIONS: Mapping[str, str] = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""How ``GRPOConfig.loss_type`` aggregates (TRL 1.16, grpo_trainer.py)."""

# Options of GRPOConfig that change TRL's own loss and have no meaning here, with their neutral values.
_UNSUPPORTED: Mapping[str, Any] = {
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "delta": None,
    "use_liger_kernel": False,
}

_OLD_KEYS = ("old_token_ids", "old_support_log_probs", "old_tail_log_prob")


class TrustRegionTrainer(GRPOTrainer):
    """A drop-in for `trl.GRPOTrainer` whose policy update is a named trust region.

    Args:
        model: as for `trl.GRPOTrainer`.
        reward_funcs: as for `trl.GRPOTrainer`.
        args: a `trl.GRPOConfig`; ``loss_type`` chooses the aggregation unless ``aggregation`` does.
        trust_region: a registered name (``troll``, ``clip``, ...) or a `TrustRegion`.
        trust_region_settings: settings of the named rule.
        estimator: a registered advantage estimator; none keeps TRL's advantages (``scale_rewards``).
        estimator_settings: settings of the named estimator.
        aggregation: see `troll.algorithms.aggregation`; none takes the trust region's own where it insists on
            one, else the estimator's, else what ``args.loss_type`` means in TRL.
        keep: K, tokens kept of each old distribution (paper: 64).
        dropped_mass: delta, mass that may be left to the pooled tail (paper: 1e-5).
        **kwargs: as for `trl.GRPOTrainer`.

    Raises:
        troll.errors.UserError: unknown trust region, estimator or setting.
        ValueError: an option of GRPOConfig that a trust region cannot honour.
    """

    _tag_names = ["trl", "troll"]  # noqa: RUF012 - TRL's own declaration

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: GRPOConfig | None = None,
        *,
        trust_region: str | TrustRegion = "troll",
        trust_region_settings: Mapping[str, Any] | None = None,
        estimator: str | None = None,
        estimator_settings: Mapping[str, Any] | None = None,
        aggregation: str | None = None,
        keep: int = 64,
        dropped_mass: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        if isinstance(trust_region, str):
            trust_region = make_trust_region(trust_region, **(trust_region_settings or {}))
        self.trust_region = trust_region
        self.estimator = make_estimator(estimator, **(estimator_settings or {})) if estimator else None
        super().__init__(model, reward_funcs, args=args, **kwargs)
        for name, neutral in _UNSUPPORTED.items():
            if getattr(self.args, name, neutral) != neutral:
                raise ValueError(
                    f"GRPOConfig.{name} is not supported by TrustRegionTrainer; leave it at {neutral}"
                )
        if self.args.loss_type not in TRL_AGGREGATIONS and aggregation is None:
            raise ValueError(
                f"GRPOConfig.loss_type={self.args.loss_type!r} has no aggregation here; "
                f"valid: {', '.join(TRL_AGGREGATIONS)}, or pass aggregation="
            )
        self.aggregation = (
            self.trust_region.aggregation
            or aggregation
            or (self.estimator.aggregation if self.estimator else None)
            or TRL_AGGREGATIONS[self.args.loss_type]
        )
        self.keep, self.dropped_mass = keep, dropped_mass
        self.diagnostics = Diagnostics(self.accelerator)
        self.certificate = Certificate()
        self._old_distribution: list[SparseLogProbs] = []
        add_sparse_lm_head(
            self.model.get_base_model() if is_peft_model(self.model) else self.model, self.temperature
        )

    @property
    def rollout_batch(self) -> int:
        """Number of the rollout batch that the next optimiser step learns from, from 0."""
        return self.state.global_step * self.args.gradient_accumulation_steps // self._generate_every

    @property
    def _generate_every(self) -> int:
        return self.args.steps_per_generation * self.num_iterations

    # Rollouts

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        training = self.model.training
        fresh = training and (self._step % self._generate_every == 0 or self._buffered_inputs is None)
        if fresh or not training:
            stream = "rollout" if training else "validation"
            coordinates = {"seed": self.args.seed, "process": self.accelerator.process_index}
            torch.manual_seed(derive_seed(stream=stream, batch=self.rollout_batch, **coordinates) % 2**63)
        inputs = super()._prepare_inputs(generation_batch)
        if fresh:
            self._set_normalisers(self._buffered_inputs)
        elif not training:
            self._set_normalisers([inputs])
        return inputs

    def _set_normalisers(self, batches: list[dict[str, Any]]) -> None:
        """Adds to each micro-batch the tokens and non-empty sequences of its whole optimiser step.

        The counts cover all processes. Where an optimiser step spans several generation batches they are not
        known in advance, and this batch's share is scaled up to the step.
        """
        window = self.args.gradient_accumulation_steps if len(batches) > 1 else 1
        for start in range(0, len(batches), window):
            group = batches[start : start + window]
            masks = [_loss_mask(batch) for batch in group]
            counts = torch.stack(
                [
                    torch.stack([mask.sum(), (mask.sum(1) > 0).sum(), mask.new_tensor(mask.shape[0]).sum()])
                    for mask in masks
                ]
            ).sum(0)
            totals = self.accelerator.reduce(counts.double(), reduction="sum") * (window / len(group))
            for batch in group:
                batch["step_tokens"], batch["step_sequences"], batch["step_responses"] = totals.unbind()

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        # TRL calls this for the old policy, for the reference and for the loss; only the first is ours: there
        # the support of every old distribution is chosen, in the same forward pass that gives the log-probs.
        if model is not self.model or torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **kwargs
            )
        log_probs = []
        size = batch_size or len(input_ids)
        for start in range(0, len(input_ids), size):
            rows = slice(start, start + size)
            with self.accelerator.autocast():
                output = model(
                    input_ids=input_ids[rows],
                    attention_mask=attention_mask[rows],
                    mask=attention_mask[rows, -logits_to_keep:],
                    keep=self.keep,
                    dropped_mass=self.dropped_mass,
                    sparse_lm_head=True,
                )
            log_probs.append(output.log_probs)
            self._old_distribution.append(
                SparseLogProbs(output.token_ids, output.support_log_probs, output.tail_log_prob)
            )
        return torch.cat(log_probs), None, None

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        self._rewards_per_function = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._old_distribution = []
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self._old_distribution:
            parts = self._old_distribution
            for key, name in zip(_OLD_KEYS, ("token_ids", "log_probs", "tail_log_prob"), strict=True):
                output[key] = torch.cat([getattr(part, name) for part in parts])
            self._old_distribution = []
        if self.estimator is not None:
            output["advantages"] = self._estimate(output)
        return output

    def _estimate(self, output: dict[str, Any]) -> Tensor:
        """Advantages [B, T] of this process's responses, from the rewards of all processes."""
        assert self.estimator is not None
        rewards = (
            self._rewards_per_function * self.reward_weights.to(self._rewards_per_function.device)
        ).nansum(1)
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = torch.arange(len(rewards), device=rewards.device) // size
        mask = _loss_mask(output)
        padded = self.accelerator.pad_across_processes(mask, dim=1)
        estimate = self.estimator(rewards, groups, self.accelerator.gather(padded))
        rows = len(mask) * self.accelerator.process_index
        return estimate.advantages[rows : rows + len(mask), : mask.shape[1]]

    # Loss

    def _new_policy(self, model: Any, inputs: dict[str, Any], support: Tensor) -> TokenPolicy:
        """The policy being trained, at the response tokens, on the given support [B, T, K]."""
        mask = inputs["completion_mask"]
        with self.accelerator.autocast():
            output = model(
                input_ids=torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                attention_mask=torch.cat([inputs["prompt_mask"], mask], dim=1),
                mask=mask,
                support=support,
                sparse_lm_head=True,
            )
        distribution = SparseLogProbs(output.token_ids, output.support_log_probs, output.tail_log_prob)
        return TokenPolicy(output.log_probs, distribution, output.entropy, inputs["completion_ids"])

    def _old_policy(self, model: Any, inputs: dict[str, Any]) -> TokenPolicy:
        """The policy that sampled, from the rollout batch; on policy TRL stores none: it is the new one."""
        if "old_token_ids" not in inputs:
            with torch.no_grad():
                self._old_distribution = []
                log_probs, _, _ = self._get_per_token_logps_and_entropies(
                    self.model,
                    torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                    torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
                    inputs["completion_ids"].shape[1],
                )
            (distribution,), self._old_distribution = self._old_distribution, []
            return TokenPolicy(log_probs, distribution, None)
        distribution = SparseLogProbs(*(inputs[key] for key in _OLD_KEYS))
        return TokenPolicy(inputs["old_per_token_logps"], distribution, None)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        mask = _loss_mask(inputs).float()
        old = self._old_policy(model, inputs)
        assert old.distribution is not None
        new = self._new_policy(model, inputs, old.distribution.token_ids)
        advantages = inputs["advantages"]
        if advantages.dim() == 1:
            advantages = advantages.unsqueeze(1).expand_as(mask)
        context = None
        if self.trust_region.needs_context:
            context = GroupContext(inputs["rewards"], inputs["group_rewards"])
        losses = self.trust_region(new, old, advantages, mask, context)
        per_token = losses.per_token
        if "importance_sampling_ratio" in inputs:  # vLLM sampled: TRL's correction of sampler against trainer
            per_token = per_token * inputs["importance_sampling_ratio"]
        if self.beta != 0.0:  # k3, as in TRL
            log_ratio = inputs["ref_per_token_logps"] - new.log_probs
            per_token = per_token + self.beta * (torch.exp(log_ratio) - log_ratio - 1)
        loss = aggregate(
            per_token,
            mask,
            self.aggregation,
            tokens=inputs["step_tokens"],
            sequences=inputs["step_sequences"],
            responses=inputs["step_responses"],
            max_response_tokens=self.max_completion_length,
        )
        if not torch.isfinite(loss):
            raise UserError(
                f"loss is {loss.item()} at optimiser step {self.state.global_step + 1}; training stopped, the "
                "last checkpoint is intact. A smaller learning_rate may help"
            )
        if self.model.training:
            assert new.entropy is not None
            metrics = {"entropy": new.entropy.detach(), **losses.metrics}
            self.diagnostics.add(metrics, mask)
            if self.accelerator.sync_gradients:
                self._finish_step()
        # DDP averages gradients over processes, the normalisers already count all of them.
        return loss * self.accelerator.num_processes

    def _finish_step(self) -> None:
        """Reports the optimiser step, and lets adaptive trust regions and the certificate see it."""
        summary = self.diagnostics.summary()
        for name, value in summary.items():
            self._metrics["train"][name].append(value)
        self.trust_region.after_step(summary)
        self.certificate.update(summary)

    def method_state(self) -> dict[str, Any]:
        """What a resumed run needs beside model, optimiser and scheduler; plain data."""
        return {
            "trust_region": self.trust_region.state_dict(),
            "estimator": self.estimator.state_dict() if self.estimator else {},
            "certificate": self.certificate.state_dict(),
        }

    def load_method_state(self, state: Mapping[str, Any]) -> None:
        """Takes up what `method_state` gave."""
        self.trust_region.load_state_dict(state["trust_region"])
        if self.estimator:
            self.estimator.load_state_dict(state["estimator"])
        self.certificate.load_state_dict(state["certificate"])


def _loss_mask(inputs: Mapping[str, Any]) -> Tensor:
    """[B, T]: 1 at tokens that the policy produced and that are learnt from."""
    mask: Tensor = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
