"""`TrustRegionTrainer`: TRL's GRPO trainer with a configurable policy update.

Rollouts, rewards, sharding, logging and checkpoints are TRL's. This module adds what the TROLL paper changes:
the rollout batch carries the old policy's sparse distribution, advantages come from a registered estimator,
and the loss from a registered trust region. PPO-clip only differs in the registry entry.

Deliberate deviations from TRL 1.16:

* Means over tokens or responses, and quantiles of entropies, are taken over the whole optimiser step,
  regardless of how it is split into micro-batches. TRL's ``dapo`` divides by the average number of tokens in
  the generation batch, its ``bnpo`` and ``grpo`` by the counts of each micro-batch. The losses are
  equal where these counts are.
* Old policies of more than one optimiser step, and the KL reference, are scored without dropout. Where the
  old policy equals the new one it is that of the training pass, with its dropout, as in TRL.
* With a model that is passed as an object, the KL reference has its weights; TRL loads the reference by name.
* The random streams of rollouts are seeded at every rollout batch from (seed, batch, process), so a resumed
  run reproduces an uninterrupted one.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor

from troll.algorithms.advantages import Estimator
from troll.algorithms.trust_regions import ConstraintCheck, TrustRegion
from troll.common.models import text_config
from troll.common.seeding import derive_seed
from troll.training.agreement import Agreement
from troll.training.batches import loss_mask, parts_within
from troll.training.config import TrustRegionConfig, checked_arguments
from troll.training.critic import Critic
from troll.training.diagnostics import Diagnostics
from troll.training.dynamic_sampling import DynamicSampler
from troll.training.entropy_bonus import EntropyBonus
from troll.training.head import add_position_ids, add_sparse_lm_head
from troll.training.learning_signal import LearningSignal
from troll.training.live_options import LiveOptions
from troll.training.method import check_deepspeed, check_rollouts
from troll.training.policies import LOG_PROBS, NewPolicy, OldPolicy, without_old_policy
from troll.training.policy_lag import PolicyLag
from troll.training.policy_loss import PolicyLoss
from troll.training.pretraining import PretrainingLoss
from troll.training.prompts import prepare_rollouts
from troll.training.reference_kl import ReferenceKL, match_reference
from troll.training.rewards import check_greedy
from troll.training.scoring import ScoringTrainer
from troll.training.shared_prompts import (
    GROUP,
    check_shared_prompts,
    share_in_sampling,
    shared_parts_within,
)
from troll.training.text_only import as_text_model, check_text
from troll.training.trl_metrics import TrlMetrics
from troll.training.trl_options import check_model
from troll.training.trl_parts import GRPOTrainer
from troll.training.whole_step import SkipRemainingUpdates, WholeStep


class TrustRegionTrainer(LiveOptions, ScoringTrainer):
    """A drop-in replacement for `trl.GRPOTrainer` whose policy update is a registered trust region.

    Args:
        model: as for `trl.GRPOTrainer`; must be a language model.
        reward_funcs: as for `trl.GRPOTrainer`.
        args: a `troll.TrustRegionConfig`: `trl.GRPOConfig` plus the trust region and its options.
        *more: as for `trl.GRPOTrainer`, in its order: ``train_dataset``, ``eval_dataset``, ...
        pretraining_rows: ``input_ids`` and ``labels`` of demonstrations; required by ``args.pretraining``.
        **kwargs: as for `trl.GRPOTrainer`.

    Raises:
        troll.common.errors.UserError: ``args`` is not a `TrustRegionConfig`, or the model, the data set or
            the rollouts are incompatible with it.
    """

    _tag_names = ["trl", "troll"]  # noqa: RUF012 - TRL's own declaration

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: TrustRegionConfig | None = None,
        *more: Any,
        pretraining_rows: Sequence[Mapping[str, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> None:
        args = checked_arguments(args, model)
        self.method = args.resolve()  # again, because attributes of args may have been changed since
        args = self.method.with_reference(args)
        self.entropy_bonus = EntropyBonus(args)
        kwargs = as_text_model(model, args, _by_name(more, kwargs))
        super().__init__(model, reward_funcs, args, **kwargs)
        self.record_rewards()
        base = self._prepare_model()
        self.trust_region = TrustRegion(self.method.rule, self.method.rule_settings)
        if self.is_deepspeed_enabled:
            check_deepspeed(self.args, self.method, stops=self.trust_region.may_stop)
        self.estimator = self._make_estimator()
        self.diagnostics, self.constraint_check = Diagnostics(self.accelerator), ConstraintCheck()
        self.trl_metrics = TrlMetrics(self.trust_region, self.accelerator)
        self.agreement = Agreement(self.accelerator, lambda: self.noise, self._is_precise)
        self.old_policy = OldPolicy(self.args, text_config(base.config).vocab_size, self.accelerator)
        self.policy_lag = self._make_policy_lag()
        self.critic = self._make_critic()
        self.reference_kl = self._make_reference_kl()
        self.dynamic_sampler = self._make_dynamic_sampler()
        self.signal = self._make_signal()
        self.pretraining = self._make_pretraining(pretraining_rows)
        self.policy_loss = self._make_policy_loss()
        self.whole_step = WholeStep(self._within_budget, self.policy_loss.tokens, self.accelerator)
        self.add_callback(SkipRemainingUpdates(self.trust_region))
        self.generated_samples = 0
        self._learnt_parts: list[dict[str, Any]] = []
        shared = args.share_prompts
        add_sparse_lm_head(base, self.temperature, fp32=args.cast_lm_head_to_fp32, share_prompts=shared)
        self.options_are_live()

    # Components

    def _prepare_model(self) -> Any:
        """Checks the model and its sampling settings; returns the base model, without PEFT adapters."""
        base = self.model.get_base_model() if is_peft_model(self.model) else self.model
        check_model(self.args, self.model, None if self.use_vllm else self.generation_config)
        prepare_rollouts(self, base)
        add_position_ids(base)
        if self.ref_model is not None:
            reference = self.accelerator.unwrap_model(self.ref_model)
            add_position_ids(reference)
            if self.args.share_prompts:
                add_sparse_lm_head(reference, self.temperature, share_prompts=True)
            if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
                match_reference(base, reference)
        check_rollouts(self.args, self.method, self.train_dataset)
        if self.args.share_prompts:
            experts = self.aux_loss_enabled
            check_shared_prompts(self.args, self.model, self.accelerator, self.noise, experts=experts)
            share_in_sampling(base, self.num_generations)
        if self.method.needs_greedy:
            check_greedy(self)
        return base

    def _make_estimator(self) -> Estimator | None:
        info = self.method.estimator
        return None if info is None else Estimator(info, self.method.estimator_settings)

    def _make_policy_lag(self) -> PolicyLag:
        lag, anchor = self.args.policy_lag, self.args.trust_region_anchor
        return PolicyLag(lag, anchor, self.old_policy, self.accelerator, self._report)

    def _make_critic(self) -> Critic | None:
        args, settings, policy = self.args, self.method.critic, self.accelerator.unwrap_model(self.model)
        rest = (args.per_device_train_batch_size, args.micro_batch_tokens, bool(args.gradient_checkpointing))
        return None if settings is None else Critic(policy, settings, self.accelerator, *rest)

    def _make_reference_kl(self) -> ReferenceKL | None:
        settings = self.method.regulariser
        return None if settings is None else ReferenceKL(settings, self.accelerator, self._report)

    def _make_dynamic_sampler(self) -> DynamicSampler | None:
        if self.method.dynamic_sampling is None:
            return None
        return DynamicSampler(
            max_batches=self.method.dynamic_sampling.max_batches,
            dataset=self.train_dataset,
            group_size=self.num_generations,
            accelerator=self.accelerator,
            pad_token_id=self.processing_class.pad_token_id,
            seed=self.args.seed,
            report=self._report,
        )

    def _make_signal(self) -> LearningSignal:
        return LearningSignal(
            estimator=self.estimator,
            critic=self.critic,
            reference_kl=self.reference_kl,
            overlong=self.method.overlong,
            limit=lambda: self.max_completion_length,
            needs_group_rewards=self.trust_region.info.needs_group_rewards,
            accelerator=self.accelerator,
            report=self._report,
        )

    def _make_pretraining(self, rows: Sequence[Mapping[str, Sequence[int]]] | None) -> PretrainingLoss | None:
        settings, padding = self.method.pretraining, self.processing_class.pad_token_id
        return None if settings is None else PretrainingLoss(settings, rows, padding, self.args.seed)

    def _make_policy_loss(self) -> PolicyLoss:
        return PolicyLoss(
            args=self.args,
            options=self,
            trust_region=self.trust_region,
            aggregation=self.method.aggregation,
            old_policy=self.old_policy,
            new_policy=NewPolicy(self.args, self.accelerator, experts=self.aux_loss_enabled),
            reference_kl=self.reference_kl,
            entropy_bonus=self.entropy_bonus,
            agreement=self.agreement,
            diagnostics=self.diagnostics,
            trl_metrics=self.trl_metrics,
            accelerator=self.accelerator,
            report=self._report,
        )

    def begin_run(self) -> None:
        """Resets what belongs to one call of `train`."""
        super().begin_run()
        self.whole_step.begin_run()
        self.policy_loss.begin_run()
        if self.critic is not None:
            self.critic.begin_run()
        self.trust_region.start_batch()
        self.diagnostics.summary()
        self._metrics["train"].clear()
        self._learnt_parts = []

    # Rollouts

    @property
    def _micro_batches(self) -> int:
        """Number of micro-batches of this optimiser step; the last step of an epoch may have fewer."""
        return getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if not self.model.training:
            output = self._sample_now(inputs)
            self._rows_validated = [*self._rows_validated, len(inputs)]
            self.signal.add_groups(output, self.num_generations_eval)
            return output
        if self.dynamic_sampler is None:
            output = self._sample(inputs)
        else:
            batch, step = self.rollout_batch, self.state.global_step
            output = self.dynamic_sampler.fill(inputs, self._sample, batch=batch, step=step)
            self._report("trained_reward", output["rewards"].mean())  # "reward" is that of all samples
        on_policy = LOG_PROBS not in output
        if self.reference_kl is not None:
            output = self._with_old_policy(output)
        self.signal.add(output, self.num_generations)
        self._metrics["train"]["generated_samples"] = [float(self.generated_samples)]
        if self.args.share_prompts:
            output[GROUP] = torch.arange(len(output["rewards"])) // self.num_generations
        # The training pass yields the old policy with the same dropout.
        return without_old_policy(output) if on_policy and self.noise else output

    def _sample(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Samples a training batch with the current policy, or with a lagged one (``policy_lag``)."""
        return self.policy_lag.sample(self.model, self._sample_now, self._score, inputs)

    def _sample_now(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Runs TRL's sampling and scoring.

        Adds ``rewards`` and ``response_lengths`` [B], and ``greedy_rewards`` [B] if needed.
        """
        corrected = self.use_vllm and self.vllm_importance_sampling_correction
        # TRL's condition (grpo_trainer.py) for scoring the old policy: otherwise it equals the new policy.
        scored = self.args.gradient_accumulation_steps % self._generate_every != 0 or corrected
        check_text("the data set", inputs)
        # In bfloat16 on a CPU, weights are cast once for a rollout, not for each token.
        casts = self.accelerator.autocast() if self.args.bf16 and self.args.use_cpu else nullcontext()
        with self.old_policy.recording(scored) as recorded, casts:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        output |= recorded
        output["rewards"], output["response_lengths"] = (
            self.total_rewards(len(inputs)),
            self.response_lengths(),
        )
        if self.model.training:
            if "sampling_per_token_logps" in output and not corrected:  # TRL reports it if it corrects
                rescored = self._with_old_policy(output)
                for name, value in self.old_policy.mismatch(rescored).items():
                    self._metrics["train"][name].append(value)
                output = output if self.noise else rescored
            self.generated_samples += len(inputs) * self.accelerator.num_processes
            if self.method.needs_greedy:
                output["greedy_rewards"] = self.greedy_rewards(inputs)
        return output

    # Loss

    def _within_budget(self, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        budget = self.args.micro_batch_tokens if self.model.training else None
        if budget is None:
            return [inputs]
        cut = shared_parts_within if self.args.share_prompts else parts_within
        return cut(inputs, budget, self.accelerator)

    def _parts(self, model: Any, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """The parts of a micro-batch, with what the rule or an option needs of their whole step."""
        parts, quantile = self._within_budget(inputs), self.top_entropy_quantile
        if not ((self.trust_region.info.needs_step_tokens or quantile < 1.0) and self.model.training):
            return parts
        seed = derive_seed(stream="trust-region", seed=self.args.seed, step=self.state.global_step) % 2**63
        return self.whole_step.add(model, parts, self.step_inputs, self.place_in_step, seed, quantile)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss of a micro-batch; only its last part is left for TRL to run backward through."""
        self.follow_args()
        *first, last = self._parts(model, inputs)
        before = torch.zeros((), device=self.accelerator.device)
        micro_batches = self._micro_batches if self.model.training else 1
        tokens = loss_mask(inputs).sum().clamp(min=1) * micro_batches

        def weight(part: dict[str, Any]) -> Tensor | float:
            return loss_mask(part).sum() / tokens if first else 1.0 / micro_batches

        # Sharded gradients are reduced after each part: accumulating them unsharded would take memory.
        sharded = self.accelerator.is_fsdp2
        for part in first:
            with nullcontext() if sharded else self.accelerator.no_sync(model):
                loss = self._part_loss(model, part, weight(part))
                self.accelerator.backward(loss)
            before += loss.detach()
        loss = before + self._part_loss(model, last, weight(last))
        if self.model.training:
            if self.accelerator.sync_gradients:
                self._finish_step()
            self._learnt_parts = [*first, last]
            if self.pretraining is not None:
                loss = loss + self._pretraining_loss(model)
        return loss

    def _part_loss(self, model: Any, inputs: dict[str, Any], part_weight: Tensor | float) -> Tensor:
        step = self.state.global_step + 1
        return self.policy_loss(model, inputs, part_weight, step=step)

    def _pretraining_loss(self, model: Any) -> Tensor:
        """The weighted loss of this micro-batch's demonstrations."""
        assert self.pretraining is not None
        device, number = self.accelerator.device, self._step % self.args.gradient_accumulation_steps
        where = {"micro_batch": number, "process": self.accelerator.process_index}
        loss = self.pretraining(model, device, step=self.state.global_step, **where)
        self._report("pretraining_loss", loss.detach())
        return self.pretraining.coefficient * loss / self._micro_batches

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the loss of a validation batch if ``eval_loss`` is set, else only its rewards."""
        if self.args.eval_loss:
            result = super().prediction_step(model, inputs, *args, **kwargs)
            for name, value in self.trl_metrics.summary().items():
                self._metrics["eval"][name].append(value)
            return result
        self._prepare_inputs(inputs)
        return None, None, None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Trains policy and critic on a micro-batch; only the critic during its warm-up."""
        if self.critic is None:
            return super().training_step(model, inputs, num_items_in_batch)
        if self.state.global_step < self.critic.settings.warmup_steps:
            model.train()
            parts = self._within_budget(self._prepare_inputs(inputs))
            loss = torch.zeros((), device=self.accelerator.device)
            self._step += 1
        else:
            loss = super().training_step(model, inputs, num_items_in_batch)
            parts = self._learnt_parts
        self._learnt_parts = []
        for number, part in enumerate(parts, start=1):
            last = number == len(parts) and self.accelerator.sync_gradients
            for name, value in self.critic.update(part, loss_mask(part), last=last).items():
                self._metrics["train"][name].append(value)
        return loss

    def _finish_step(self) -> None:
        """Logs the step's diagnostics and passes them to adaptive coefficients and the constraint check."""
        self.policy_loss.check_finite(self.state.global_step + 1)
        summary = self.diagnostics.summary()
        for name, value in (summary | self.trl_metrics.summary()).items():
            self._metrics["train"][name].append(value)
        self.entropy_bonus.finish_step(self.accelerator, self._report)
        if self.state.global_step == 0:
            self.agreement.check_reference(self._reference_name)
        if summary:  # empty if all tokens of the step are masked
            if self.begins_batch and (not self.args.policy_lag or self.args.trust_region_anchor == "old"):
                self.agreement.check_old(summary["log_ratio_abs"])
            self.trust_region.after_step(summary)
            self.constraint_check.update(summary)
        if self.trust_region.may_stop:
            self._metrics["train"]["update_skipped"].append(float(self.trust_region.stopped))


def _by_name(positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of TRL's trainer after ``args`` by their names."""
    bound = inspect.signature(GRPOTrainer).bind_partial(None, None, None, *positional, **named)
    return dict(list(bound.arguments.items())[3:])
