"""The rollout half of `TrustRegionTrainer`: what is sampled, scored, and turned into a learning signal.

Sampling, rewards and the reference's log-probabilities are TRL's. Added to each rollout batch are the old
policy's sparse distribution, per-token advantages of a named estimator, and the values, returns and counts
that the update needs. Everything is computed once per rollout batch.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from trl import GRPOTrainer
from trl.data_utils import is_conversational

from troll.algorithms.advantages import Estimator
from troll.algorithms.regularisers import ReferenceKLController, kl_estimate
from troll.algorithms.trust_regions import GroupContext, TrustRegion
from troll.errors import UserError
from troll.seeding import derive_seed
from troll.settings import DynamicSampling, Overlong, Regulariser
from troll.training.batches import join_rows, mixed_groups, overlong_penalty, take_rows
from troll.training.critic import Critic, explained_variance
from troll.training.order import ResumableSampler

OLD_KEYS = ("old_token_ids", "old_support_log_probs", "old_tail_log_prob")


class TrustRegionRollouts(GRPOTrainer):
    """Rollouts with old distributions, advantages and values; not to be used by itself."""

    trust_region: TrustRegion
    estimator: Estimator | None
    critic: Critic | None
    regulariser: Regulariser | None
    controller: ReferenceKLController | None
    dynamic_sampling: DynamicSampling | None
    overlong: Overlong | None
    keep: int
    dropped_mass: float
    micro_batch_tokens: int | None
    generated_samples: int
    generation_config: Any  # TRL's
    control: Any  # transformers'
    _old_distribution: list[tuple[Tensor, ...]]

    @property
    def rollout_batch(self) -> int:
        """Number of the rollout batch that the next optimiser step learns from, from 0."""
        return self.state.global_step * self.args.gradient_accumulation_steps // self._generate_every

    @property
    def _generate_every(self) -> int:
        return self.args.steps_per_generation * self.num_iterations

    def _check_rollouts(self) -> None:
        """Refuses combinations that cannot work, before anything is sampled."""
        if self.args.top_p != 1.0 or self.args.top_k not in (0, -1, None):
            raise UserError(
                f"top_p is {self.args.top_p} and top_k is {self.args.top_k}: training needs samples of the "
                "whole distribution; set top_p to 1 and top_k to 0"
            )
        rows = self.args.per_device_train_batch_size * self.args.steps_per_generation
        greedy = self.estimator is not None and self.estimator.info.needs_greedy
        if (greedy or self.dynamic_sampling) and rows % self.num_generations:
            raise UserError(
                f"{rows} responses of a process do not divide into groups of {self.num_generations}; remax "
                "and dynamic sampling need whole groups in each process"
            )
        if greedy and (self.use_vllm or self.use_transformers_continuous_batching):
            raise UserError(
                "estimator 'remax' needs a greedy response to every prompt, which only sampling through "
                "transformers gives here; set use_vllm and use_transformers_continuous_batching to false"
            )
        if self.dynamic_sampling and isinstance(self.train_dataset, IterableDataset):
            raise UserError("dynamic sampling draws other prompts, so that it needs a dataset with a length")
        in_reward = self.regulariser is not None and self.regulariser.place == "reward"
        given = {"overlong": self.overlong, "critic": self.critic, "a KL in the reward": in_reward or None}
        for name, value in given.items():
            if value is not None and self.estimator is None:
                raise UserError(f"{name} has no effect on TRL's own advantages; name an estimator")

    # Sampling

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        return ResumableSampler(sampler, lambda: int(self.state.epoch or 0))

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
            masks = [loss_mask(batch) for batch in group]
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
        if self.micro_batch_tokens is not None:
            batch_size = max(1, self.micro_batch_tokens // input_ids.shape[1])
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
            found = output.token_ids.int(), output.support_log_probs, output.tail_log_prob
            # They wait in main memory: K numbers for each token of a large rollout batch would fill a GPU.
            self._old_distribution.append(tuple(part.cpu() for part in found))
        return torch.cat(log_probs), None, None

    def _take_distribution(self) -> dict[str, Tensor]:
        """The old distributions that were collected since the last call, by key of the rollout batch."""
        parts, self._old_distribution = self._old_distribution, []
        if not parts:
            return {}
        return {key: torch.cat(found) for key, found in zip(OLD_KEYS, zip(*parts, strict=True), strict=True)}

    @torch.no_grad()
    def _score_old(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Log-probs and distributions of the policy as it is now, where TRL has not asked for them."""
        self._old_distribution = []
        log_probs, _, _ = self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].shape[1],
            batch_size=self.args.per_device_train_batch_size,
        )
        return {"old_per_token_logps": log_probs, **self._take_distribution()}

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        self._rewards_per_function = rewards
        return rewards

    def _total_rewards(self, rows: int) -> Tensor:
        """Weighted rewards [B] of this process's ``rows`` responses that were scored last."""
        per_function = self._rewards_per_function
        rewards: Tensor = (per_function * self.reward_weights.to(per_function.device)).nansum(1)
        return self._own(rewards, rows)

    def _own(self, everywhere: Tensor, rows: int) -> Tensor:
        """This process's part of a tensor that all processes gathered, ``rows`` from each."""
        start = rows * self.accelerator.process_index
        return everywhere[start : start + rows]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        training = self.model.training
        filled = training and self.dynamic_sampling is not None
        output = self._fill_batch(inputs) if filled else self._sample(inputs)
        self._add_signal(output, training=training)
        if training:
            self._metrics["train"]["generated_samples"] = [float(self.generated_samples)]
        return output

    def _sample(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's sampling and scoring; adds ``rewards`` [B] and, where needed, ``greedy_rewards`` [B]."""
        self._old_distribution = []
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        output |= self._take_distribution()
        output["rewards"] = self._total_rewards(len(inputs))
        if self.model.training:
            self._report_mismatch(output)
            self.generated_samples += len(inputs) * self.accelerator.num_processes
            if self.estimator is not None and self.estimator.info.needs_greedy:
                output["greedy_rewards"] = self._greedy_rewards(inputs)
        return output

    def _report_mismatch(self, output: dict[str, Any]) -> None:
        """How far an engine's log-probs are from the trainer's; TRL reports it only where it corrects."""
        if "sampling_per_token_logps" not in output or "importance_sampling_ratio" in output:
            return
        if "old_per_token_logps" not in output:
            output |= self._score_old(output)
        apart = (output["old_per_token_logps"] - output["sampling_per_token_logps"]).abs()
        apart = apart.where(loss_mask(output).bool(), 0.0)
        totals = torch.stack([apart.sum(), loss_mask(output).sum().to(apart)])
        total, tokens = self.accelerator.reduce(totals, "sum").tolist()
        largest = float(self.accelerator.gather(apart.max().unsqueeze(0)).max())
        self._metrics["train"]["sampling/sampling_logp_difference/mean"].append(total / max(tokens, 1))
        self._metrics["train"]["sampling/sampling_logp_difference/max"].append(largest)

    def _greedy_rewards(self, inputs: list[dict[str, Any]]) -> Tensor:
        """Reward [B] of the greedy response to each response's prompt; one decode per prompt."""
        prompts = inputs[:: self.num_generations]
        texts = [item["prompt"] for item in prompts]
        prompt_ids, images, fields = self._tokenize_prompts(copy.deepcopy(texts))
        with self._greedy():
            ids, _ = self._generate_single_turn(prompt_ids, images, fields, 1)
        found: list[Any] = self.processing_class.batch_decode(ids, skip_special_tokens=True)
        if is_conversational(prompts[0]):
            found = [[{"role": "assistant", "content": text}] for text in found]
        self._calculate_rewards(prompts, texts, found, ids)
        rewards = self._total_rewards(len(prompts))
        self._report("greedy_success", rewards.mean())
        if self.overlong is not None:
            lengths = rewards.new_tensor([len(response) for response in ids])
            rewards = rewards + self._penalty(self.overlong, lengths)
        self.generated_samples += len(prompts) * self.accelerator.num_processes
        return rewards.repeat_interleave(self.num_generations)

    @contextmanager
    def _greedy(self) -> Iterator[None]:
        sampling = self.generation_config
        self.generation_config = copy.deepcopy(sampling)
        # The other values are transformers' own: they mean nothing in a greedy decode.
        self.generation_config.update(do_sample=False, temperature=1.0, top_p=1.0, top_k=50, min_p=None)
        try:
            yield
        finally:
            self.generation_config = sampling

    # DAPO

    def _penalty(self, overlong: Overlong, lengths: Tensor) -> Tensor:
        return overlong_penalty(lengths, self.max_completion_length, overlong.buffer, overlong.factor)

    def _fill_batch(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Samples until the batch is full of groups with a signal; surplus groups are dropped, as in verl.

        Log-probs of the groups that are dropped are computed too: TRL samples and scores in one call.

        Raises:
            UserError: the most batches allowed have not filled it. The state is saved.
        """
        assert self.dynamic_sampling is not None
        size, wanted, most = self.num_generations, len(inputs), self.dynamic_sampling.max_batches
        kept: list[dict[str, Any]] = []
        successes: list[float] = []
        for attempt in range(most):
            output = self._sample(inputs if attempt == 0 else self._other_prompts(attempt, wanted))
            successes.append(float(self.accelerator.gather(output["rewards"]).mean()))
            rows = mixed_groups(output["rewards"], size).repeat_interleave(size)
            kept.append(take_rows(output, rows))
            # Every process fills its own part; those that are full go on sampling with the others.
            mine = torch.tensor([sum(len(part["rewards"]) for part in kept)], device=rows.device)
            found = int(self.accelerator.gather(mine).min())
            if found >= wanted:
                self._report("dynamic_sampling_batches", torch.tensor(attempt + 1.0))
                joined = join_rows(kept, self.processing_class.pad_token_id)
                return take_rows(joined, torch.arange(wanted, device=rows.device))
        self._save_state()
        raise UserError(
            f"dynamic sampling: {most} rollout batches gave {found // size} of {wanted // size} prompts "
            "whose responses are neither all right nor all wrong (mean success "
            f"{sum(successes) / most:.2f}); training stopped after step {self.state.global_step}, its state "
            "is saved. Choose easier or harder problems, more responses_per_prompt, or more "
            "dynamic_sampling.max_batches"
        )

    def _other_prompts(self, attempt: int, rows: int) -> list[dict[str, Any]]:
        """Rows of prompts for another try, from a stream of its own: the same whenever a run goes on here."""
        seed = derive_seed(stream="dynamic-sampling", seed=self.args.seed, batch=self.rollout_batch)
        order = torch.randperm(
            len(self.train_dataset), generator=torch.Generator().manual_seed(seed)
        ).tolist()
        count = rows // self.num_generations
        first = count * (self.accelerator.num_processes * (attempt - 1) + self.accelerator.process_index)
        chosen = [order[i % len(order)] for i in range(first, first + count)]
        return [dict(self.train_dataset[i]) for i in chosen for _ in range(self.num_generations)]

    def _save_state(self) -> None:
        """A checkpoint here and now; before the first step there is nothing to save."""
        if self.state.global_step:
            self._save_checkpoint(self.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    # Learning signal

    def _report(self, name: str, value: Tensor | float) -> None:
        """Puts a number into the log of the next optimiser step; means over processes."""
        value = torch.as_tensor(value, dtype=torch.float64, device=self.accelerator.device)
        self._metrics["train"][name].append(float(self.accelerator.reduce(value, "mean")))

    def _everywhere(self, value: Tensor | None) -> Tensor | None:
        """Rows of all processes; [B, T] padded to the longest."""
        if value is None:
            return None
        padded = self.accelerator.pad_across_processes(value, dim=1) if value.dim() > 1 else value
        return self.accelerator.gather(padded)

    def _add_signal(self, output: dict[str, Any], *, training: bool) -> None:
        """Adds advantages [B, T] and, with a critic, values and returns; groups span all processes."""
        mask, rewards = loss_mask(output), output["rewards"]
        if training and self.overlong is not None:
            penalty = self._penalty(self.overlong, output["completion_mask"].sum(1).to(rewards))
            self._report("overlong_penalty", penalty.mean())
            rewards = output["rewards"] = rewards + penalty
        everyone = self.accelerator.gather(rewards)
        size = self.num_generations if training else self.num_generations_eval
        groups = torch.arange(len(everyone), device=everyone.device) // size
        if self.trust_region.needs_context:
            context = GroupContext.from_groups(everyone, groups)
            output["group_rewards"] = self._own(context.group_rewards, len(mask))
        if not training:
            return
        kl_rewards = self._reference_kl(output, mask)
        if self.estimator is None:
            return
        values = self.critic.values(output, mask) if self.critic else None
        everyones_mask = self._everywhere(mask)
        assert everyones_mask is not None
        estimate = self.estimator(
            everyone,
            groups,
            everyones_mask,
            self._everywhere(values),
            self._everywhere(kl_rewards),
            self._everywhere(output.get("greedy_rewards")),
        )
        length = mask.shape[1]
        output["advantages"] = self._own(estimate.advantages, len(mask))[:, :length]
        if values is not None and estimate.returns is not None:
            output["values"] = values
            output["returns"] = self._own(estimate.returns, len(mask))[:, :length]
            everyones_values = self._everywhere(values)
            assert everyones_values is not None
            found = explained_variance(everyones_values, estimate.returns, everyones_mask)
            self._metrics["train"]["critic/explained_variance"].append(found)

    def _reference_kl(self, output: dict[str, Any], mask: Tensor) -> Tensor | None:
        """Measures the KL to the reference, adapts its coefficient, and gives it as rewards if it is one."""
        if self.regulariser is None or self.controller is None:
            return None
        if "old_per_token_logps" not in output:
            output |= self._score_old(output)
        estimate = kl_estimate(
            output["old_per_token_logps"], output["ref_per_token_logps"], mask, self.regulariser.estimate
        )
        coefficient = self.controller.coefficient
        per_response = estimate.sum(1) / mask.sum(1).clamp(min=1)
        measured = self.accelerator.gather(per_response)
        self._report("kl_to_reference", measured.mean())
        self._report("kl_coefficient", coefficient)
        # The loss of this rollout batch has the coefficient that was measured before, as its rewards have.
        self.kl_coefficient = coefficient
        self.controller.after_step(float(measured.mean()), len(measured))
        return -coefficient * estimate if self.regulariser.place == "reward" else None


def loss_mask(inputs: dict[str, Any]) -> Tensor:
    """[B, T]: 1 at tokens that the policy produced and that are learnt from."""
    mask: Tensor = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
