"""`TrustRegionTrainer`: TRL's GRPO trainer with the policy update of your choice.

Rollouts, rewards, sharding, logging and checkpoints are TRL's. What the TROLL paper changes happens here: the
old policy's sparse distribution travels in the rollout batch, advantages come from a named estimator, and the
loss from a named trust region. PPO-clip runs through the same code and differs in the registry entry alone.

Deviations from TRL 1.16, on purpose:

* means over tokens or responses are those of the whole optimiser step, however it is cut. TRL's ``dapo``
  divides by the average number of tokens in the generation batch, its ``bnpo`` and ``grpo`` by those of each
  micro-batch; where these are equal, so are the losses.
* random streams of rollouts are seeded at every rollout batch from (seed, batch, process), so that a resumed
  run repeats an uninterrupted one whatever ran before.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor
from transformers import ProcessorMixin

from troll.algorithms.trust_regions import ConstraintCheck
from troll.common.errors import UserError
from troll.training.batches import loss_mask, parts_within
from troll.training.config import TrustRegionConfig
from troll.training.critic import Critic
from troll.training.diagnostics import Diagnostics
from troll.training.dynamic_sampling import DynamicSampler
from troll.training.entropy_bonus import EntropyBonus
from troll.training.greedy import check_greedy, greedy_rewards
from troll.training.head import add_sparse_lm_head, tell_positions
from troll.training.learning_signal import LearningSignal
from troll.training.old_policy import LOG_PROBS, OldPolicy
from troll.training.policy_lag import PolicyLag
from troll.training.policy_loss import PolicyLoss
from troll.training.pretraining import PretrainingLoss
from troll.training.prompts import end_rollouts
from troll.training.reference_kl import ReferenceKL
from troll.training.resumable import ResumableTrainer
from troll.training.trl_options import check_model
from troll.training.whole_step import LeaveBatch, WholeStep


class TrustRegionTrainer(ResumableTrainer):
    """A drop-in for `trl.GRPOTrainer` whose policy update is a named trust region.

    Args:
        model: as for `trl.GRPOTrainer`, a language model.
        reward_funcs: as for `trl.GRPOTrainer`.
        args: a `troll.TrustRegionConfig`: all of `trl.GRPOConfig`, the trust region, and what belongs to it.
        pretraining_rows: with ``args.pretraining``: ``input_ids`` and ``labels`` of its demonstrations.
        **kwargs: as for `trl.GRPOTrainer`.

    Raises:
        troll.common.errors.UserError: ``args`` of another kind, or what cannot work with them.
    """

    _tag_names = ["trl", "troll"]  # noqa: RUF012 - TRL's own declaration

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: TrustRegionConfig | None = None,
        *,
        pretraining_rows: Sequence[Mapping[str, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else model.config.name_or_path
            args = TrustRegionConfig(f"{Path(name).name}-TrustRegion")
        if not isinstance(args, TrustRegionConfig):
            raise UserError(
                f"args is a {type(args).__name__}; TrustRegionTrainer needs a troll.TrustRegionConfig, which "
                "takes the same options and those of the trust region"
            )
        args.check()  # again: its fields may have been changed
        parts = args.parts()
        if parts.regulariser is not None:
            args = copy.copy(args)
            args.beta = (
                parts.regulariser.coefficient
            )  # not 0: TRL then loads the reference and scores with it
        super().__init__(model, reward_funcs, args=args, **kwargs)
        if isinstance(self.processing_class, ProcessorMixin):
            raise UserError(
                f"processing_class is a {type(self.processing_class).__name__}, and this trainer trains on "
                "text alone; give the model's tokenizer: processing_class=AutoTokenizer.from_pretrained(...)"
            )
        whole = self.model.get_base_model() if is_peft_model(self.model) else self.model
        check_model(args, whole, None if self.use_vllm else self.generation_config)
        end_rollouts(self, whole)
        tell_positions(whole)
        if self.ref_model is not None:
            tell_positions(self.accelerator.unwrap_model(self.ref_model))
        self.trust_region, self.estimator = args.make_trust_region(), args.make_estimator()
        self.aggregation = args.aggregation_for(self.trust_region, self.estimator)
        args.check_rollouts(self.train_dataset)
        if self.estimator is not None and self.estimator.info.needs_greedy:
            check_greedy(self)
        self.diagnostics = Diagnostics(self.accelerator)
        self.constraint_check = ConstraintCheck()
        self.entropy_bonus = EntropyBonus(self)
        self.old_policy = OldPolicy(self.accelerator, args.keep, args.dropped_mass)
        self.policy_lag = PolicyLag(self, args.policy_lag, args.trust_region_anchor)
        self.whole_step = WholeStep(self)
        self.add_callback(LeaveBatch(self.trust_region))
        self.critic = None
        if parts.critic is not None:
            policy = self.accelerator.unwrap_model(self.model)
            chunk = args.per_device_train_batch_size
            self.critic = Critic(policy, parts.critic, self.accelerator, chunk, args.micro_batch_tokens)
        self.reference_kl = None
        if parts.regulariser is not None:
            self.reference_kl = ReferenceKL(parts.regulariser, self.accelerator, self._report)
        self.dynamic_sampler = None
        padding = self.processing_class.pad_token_id
        if parts.dynamic_sampling is not None:
            self.dynamic_sampler = DynamicSampler(
                parts.dynamic_sampling.max_batches,
                self.train_dataset,
                self.num_generations,
                self.accelerator,
                padding,
                args.seed,
                self._report,
            )
        self.signal = LearningSignal(
            self.estimator,
            self.critic,
            self.reference_kl,
            parts.overlong,
            self.max_completion_length,
            self.trust_region.needs_context,
            self.accelerator,
            self._report,
        )
        self.pretraining = None
        if parts.pretraining is not None:
            self.pretraining = PretrainingLoss(parts.pretraining, pretraining_rows, padding, args.seed)
        self.policy_loss = PolicyLoss(
            self.args,
            self.trust_region,
            self.aggregation,
            self.old_policy,
            self.reference_kl,
            self.entropy_bonus,
            self.router_aux_loss_coef if self.aux_loss_enabled else 0.0,
            whole.config.get_text_config().vocab_size,
            self.get_high_entropy_mask,
            self.diagnostics,
            self.accelerator,
            self._report,
        )
        # TRL leaves responses that nothing scores out of its own advantages; these know no such thing.
        self._needs_every_reward = (
            self.estimator is not None or self.trust_region.needs_context or self.dynamic_sampler is not None
        )
        self.generated_samples = 0
        self._learnt: list[dict[str, Any]] = []
        add_sparse_lm_head(whole, self.temperature, fp32=args.cast_lm_head_to_fp32)

    def _report(self, name: str, value: Tensor | float) -> None:
        """Puts a number into the log of the next optimiser step; means over processes."""
        value = torch.as_tensor(value, dtype=torch.float64, device=self.accelerator.device)
        self._metrics["train"][name].append(float(self.accelerator.reduce(value, "mean")))

    # Rollouts

    @property
    def _micro_batches(self) -> int:
        """Micro-batches of this optimiser step, as transformers counts them: the last may have fewer."""
        return getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if not self.model.training:
            output = self._sample_now(inputs)
            self.signal.add_groups(output, self.num_generations_eval)
            return output
        if self.dynamic_sampler is None:
            output = self._sample(inputs)
        else:
            batch, step = self.rollout_batch, self.state.global_step
            output = self.dynamic_sampler.fill(inputs, self._sample, batch=batch, step=step)
        if self.reference_kl is not None and LOG_PROBS not in output:
            output |= self._score(output)
        self.signal.add(output, self.num_generations)
        self._metrics["train"]["generated_samples"] = [float(self.generated_samples)]
        return output

    def _sample(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch to learn from, sampled by the policy as it is or as it was."""
        return self.policy_lag.sample(self._sample_now, inputs)

    def _sample_now(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's sampling and scoring; adds ``rewards`` [B] and, where needed, ``greedy_rewards`` [B]."""
        corrected = self.use_vllm and self.vllm_importance_sampling_correction
        # TRL's own condition (grpo_trainer.py): else the policy that sampled is the one that the step trains.
        scored = self.args.gradient_accumulation_steps % self._generate_every != 0 or corrected
        self.old_policy.expect(scored)
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        output |= self.old_policy.collect()
        if "pixel_values" in output:
            raise UserError("TrustRegionTrainer trains on text alone; leave images out of the data set")
        output["rewards"] = self.total_rewards(len(inputs))
        if self.model.training:
            if "sampling_per_token_logps" in output and not corrected:  # where TRL corrects, it reports it
                output |= {} if LOG_PROBS in output else self._score(output)
                for name, value in self.old_policy.mismatch(output).items():
                    self._metrics["train"][name].append(value)
            self.generated_samples += len(inputs) * self.accelerator.num_processes
            if self.estimator is not None and self.estimator.info.needs_greedy:
                output["greedy_rewards"] = greedy_rewards(self, inputs)
        return output

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        # TRL calls this for the old policy and for the reference, which with PEFT is the same model.
        if not (self.model.training or self.args.eval_loss or self.use_vllm):
            return torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device), None, None
        batch_size = self._rows_at_once(input_ids.shape[1], batch_size)
        if model is self.model and self.old_policy.awaited:
            scores = self.old_policy.score(model, input_ids, attention_mask, logits_to_keep, batch_size)
            return scores, None, None
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **kwargs
        )

    def _rows_at_once(self, width: int, default: int | None) -> int | None:
        budget = self.args.micro_batch_tokens
        return default if budget is None else max(1, budget // width)

    def _score(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """The policy as it is now, in the place of the old one: TRL scores only where they may differ."""
        rows = self.args.per_device_train_batch_size
        width = inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1]
        return self.old_policy.score_batch(self.model, inputs, self._rows_at_once(width, rows))

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        self._rewards_per_function = rewards
        return rewards

    def total_rewards(self, rows: int) -> Tensor:
        """Weighted rewards [B] of this process's ``rows`` responses that were scored last."""
        per_function = self._rewards_per_function
        if self.model.training and self._needs_every_reward and per_function.isnan().all(1).any():
            raise UserError(
                "no reward function gave a number for some response (each returned None); advantages by an "
                "estimator's name need one for every response: return 0, or leave estimator out"
            )
        rewards: Tensor = (per_function * self.reward_weights.to(per_function.device)).nansum(1)
        start = rows * self.accelerator.process_index
        return rewards[start : start + rows]

    # Loss

    def _parts(self, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        budget = self.args.micro_batch_tokens if self.model.training else None
        return [inputs] if budget is None else parts_within(inputs, budget, self.accelerator)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss of a micro-batch; TRL takes the gradient of its last part, the others have theirs here."""
        *first, last = self.whole_step.add(model, self._parts(inputs))
        before = torch.zeros((), device=self.accelerator.device)
        micro_batches = self._micro_batches if self.model.training else 1
        tokens = loss_mask(inputs).sum().clamp(min=1) * micro_batches

        def share(part: dict[str, Any]) -> Tensor | float:
            return loss_mask(part).sum() / tokens if first else 1.0 / micro_batches

        # Sharded gradients are added up part by part: keeping them whole until the last would take memory.
        sharded = self.accelerator.is_fsdp2
        for part in first:
            with nullcontext() if sharded else self.accelerator.no_sync(model):
                loss = self._part_loss(model, part, share(part))
                self.accelerator.backward(loss)
            before += loss.detach()
        loss = before + self._part_loss(model, last, share(last))
        if self.model.training:
            if self.accelerator.sync_gradients:
                self._finish_step()
            self._learnt = [*first, last]
            if self.pretraining is not None:
                loss = loss + self._pretraining_loss(model)
        return loss

    def _part_loss(self, model: Any, inputs: dict[str, Any], share: Tensor | float) -> Tensor:
        """The loss of a part; on policy TRL has stored no old policy: it is the new one."""
        if LOG_PROBS not in inputs:
            inputs = inputs | self._score(inputs)
        return self.policy_loss(model, inputs, share, step=self.state.global_step + 1)

    def _pretraining_loss(self, model: Any) -> Tensor:
        """The weighted loss of this micro-batch's demonstrations."""
        assert self.pretraining is not None
        device, number = self.accelerator.device, self._step % self.args.gradient_accumulation_steps
        where = {"micro_batch": number, "process": self.accelerator.process_index}
        loss = self.pretraining(model, device, step=self.state.global_step, **where)
        self._report("pretraining_loss", loss.detach())
        return self.pretraining.coefficient * loss / self._micro_batches

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of a validation batch, unless only its rewards are wanted."""
        if self.args.eval_loss:
            return super().prediction_step(model, inputs, *args, **kwargs)
        self._prepare_inputs(inputs)
        return None, None, None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """A micro-batch of the policy and of the critic; of the critic alone while it warms up."""
        if self.critic is None:
            return super().training_step(model, inputs, num_items_in_batch)
        if self.state.global_step < self.critic.settings.warmup_steps:
            model.train()
            parts = self._parts(self._prepare_inputs(inputs))
            loss = torch.zeros((), device=self.accelerator.device)
            self._step += 1
        else:
            loss = super().training_step(model, inputs, num_items_in_batch)
            parts = self._learnt
        self._learnt = []
        for number, part in enumerate(parts, start=1):
            last = number == len(parts) and self.accelerator.sync_gradients
            for name, value in self.critic.update(part, loss_mask(part), last=last).items():
                self._metrics["train"][name].append(value)
        return loss

    def _finish_step(self) -> None:
        """Reports the optimiser step, and lets what adapts and the constraint check see it."""
        self.policy_loss.check_finite(self.state.global_step + 1)
        summary = self.diagnostics.summary()
        for name, value in summary.items():
            self._metrics["train"][name].append(value)
        self.entropy_bonus.finish_step()
        if summary:  # a step without a token tells nothing
            self.trust_region.after_step(summary)
            self.constraint_check.update(summary)
        if self.trust_region.may_stop:
            self._metrics["train"]["update_skipped"].append(float(self.trust_region.stopped))
