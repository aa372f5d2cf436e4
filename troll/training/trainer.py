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

import copy
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import is_peft_model
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig

from troll.algorithms.advantages import make_estimator
from troll.algorithms.aggregation import aggregate
from troll.algorithms.distributions import SparseLogProbs, align, constant_tail
from troll.algorithms.regularisers import ReferenceKLController, kl_estimate
from troll.algorithms.trust_regions import (
    Certificate,
    GroupContext,
    TokenPolicy,
    TrustRegion,
    make_trust_region,
)
from troll.errors import UserError
from troll.settings import Critic as CriticSettings
from troll.settings import DynamicSampling, Overlong, Pretraining, Regulariser
from troll.training.batches import cut_by_tokens, split_to, take_rows, trim
from troll.training.critic import Critic
from troll.training.diagnostics import Diagnostics
from troll.training.head import add_sparse_lm_head
from troll.training.pretraining import PretrainingLoss
from troll.training.rollouts import OLD_KEYS, TrustRegionRollouts, loss_mask

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


class TrustRegionTrainer(TrustRegionRollouts):
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
        tail: ``pooled`` gives the tokens that are not kept their exact mass, as one atom. ``constant`` is the
            paper's treatment: old and new policy each keep their own tokens, and where one of them has
            dropped a token it has 1e-12 there. It takes one more pass of the head.
        critic: settings of the value model; needed by estimators that use values, refused by others.
        regulariser: KL to the frozen reference, which TRL loads from the model's own name; takes the place of
            ``args.beta``.
        dynamic_sampling: DAPO's, none for off.
        overlong: DAPO's soft punishment, none for off.
        micro_batch_tokens: cuts ``per_device_train_batch_size`` responses into parts of at most so many
            tokens, padding included, each with passes of its own; the update stays the same. None: whole.
        pretraining: PPO-ptx, none for off.
        pretraining_rows: ``input_ids`` and ``labels`` of its demonstrations.
        **kwargs: as for `trl.GRPOTrainer`.

    Raises:
        troll.errors.UserError: unknown trust region, estimator or setting; parts that do not go together.
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
        tail: Literal["pooled", "constant"] = "pooled",
        critic: CriticSettings | None = None,
        regulariser: Regulariser | None = None,
        dynamic_sampling: DynamicSampling | None = None,
        overlong: Overlong | None = None,
        micro_batch_tokens: int | None = None,
        pretraining: Pretraining | None = None,
        pretraining_rows: Sequence[Mapping[str, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(trust_region, str):
            trust_region = make_trust_region(trust_region, **(trust_region_settings or {}))
        self.trust_region = trust_region
        self.estimator = make_estimator(estimator, **(estimator_settings or {})) if estimator else None
        self._check_critic(critic)
        if regulariser is not None:
            args = copy.copy(args or GRPOConfig("tmp_trainer"))
            args.beta = regulariser.coefficient  # not 0: TRL then loads the reference and scores with it
        super().__init__(model, reward_funcs, args=args, **kwargs)
        if self.beta != 0.0 and is_peft_model(self.model):
            raise ValueError("a KL to the reference is not supported with PEFT; set beta to 0")
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
        self.keep, self.dropped_mass, self.tail = keep, dropped_mass, tail
        self.micro_batch_tokens = micro_batch_tokens
        self.diagnostics = Diagnostics(self.accelerator)
        self.certificate = Certificate()
        self._old_distribution = []
        self.generated_samples = 0
        self.regulariser, self.dynamic_sampling, self.overlong = regulariser, dynamic_sampling, overlong
        self.controller = _controller(regulariser)
        self.critic = None
        if critic is not None:
            policy = self.accelerator.unwrap_model(self.model)
            chunk = self.args.per_device_train_batch_size
            self.critic = Critic(policy, critic, self.accelerator, chunk, micro_batch_tokens)
        self._check_rollouts()
        self._pretraining = None
        if pretraining is not None:
            padding = self.processing_class.pad_token_id
            self._pretraining = PretrainingLoss(pretraining, pretraining_rows, padding, self.args.seed)
        self._learnt: list[dict[str, Any]] = []
        add_sparse_lm_head(
            self.model.get_base_model() if is_peft_model(self.model) else self.model, self.temperature
        )

    def _check_critic(self, critic: CriticSettings | None) -> None:
        needed = self.estimator is not None and self.estimator.info.needs_values
        if needed and critic is None:
            assert self.estimator is not None
            raise UserError(
                f"estimator {self.estimator.name!r} needs a critic; pass critic=troll.settings.Critic()"
            )
        if critic is not None and not needed:
            name = self.estimator.name if self.estimator else None
            raise UserError(f"estimator {name!r} has no use for a critic; leave it out")

    # Loss

    def _new_policy(self, model: Any, inputs: dict[str, Any], support: Tensor) -> TokenPolicy:
        """The policy being trained, at the response tokens; its tail decides on which tokens.

        They are those of the given support [B, T, K] with a pooled tail, else the policy's own.
        """
        mask = inputs["completion_mask"]
        own = {"keep": self.keep, "dropped_mass": self.dropped_mass}
        with self.accelerator.autocast():
            output = model(
                input_ids=torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                attention_mask=torch.cat([inputs["prompt_mask"], mask], dim=1),
                mask=mask,
                sparse_lm_head=True,
                **({"support": support} if self.tail == "pooled" else own),
            )
        distribution = SparseLogProbs(output.token_ids, output.support_log_probs, output.tail_log_prob)
        return TokenPolicy(output.log_probs, distribution, output.entropy, inputs["completion_ids"])

    def _old_policy(self, inputs: dict[str, Any]) -> TokenPolicy:
        """The policy that sampled, from the rollout batch; on policy TRL stores none: it is the new one."""
        if "old_token_ids" not in inputs:
            inputs = inputs | self._score_old(inputs)
        device = inputs["completion_ids"].device
        token_ids, support, tail = (inputs[key].to(device) for key in OLD_KEYS)
        distribution = SparseLogProbs(token_ids.long(), support, tail)
        return TokenPolicy(inputs["old_per_token_logps"], distribution, None)

    def _constant_tails(self, new: TokenPolicy, old: TokenPolicy) -> tuple[TokenPolicy, TokenPolicy]:
        """Both policies on the tokens that one of them keeps, the others with the paper's constant."""
        assert new.distribution is not None and old.distribution is not None
        vocabulary = self.accelerator.unwrap_model(self.model).get_output_embeddings().weight.shape[0]
        ours, theirs = align(
            constant_tail(new.distribution, vocabulary),
            constant_tail(old.distribution, vocabulary),
            missing="default",
        )
        return replace(new, distribution=ours), replace(old, distribution=theirs)

    def _parts(self, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """A micro-batch in parts of at most ``micro_batch_tokens``, as many in every process."""
        if self.micro_batch_tokens is None or not self.model.training:
            return [inputs]
        lengths = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
        groups = cut_by_tokens(lengths, self.micro_batch_tokens)
        most = int(self.accelerator.gather(lengths.new_tensor([len(groups)])).max())
        return [trim(take_rows(inputs, rows)) for rows in split_to(groups, most)]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss of a micro-batch; TRL takes the gradient of its last part, the others have theirs here."""
        *first, last = self._parts(inputs)
        before = torch.zeros((), device=self.accelerator.device)
        # Sharded gradients are added up part by part: keeping them whole until the last would take memory.
        sharded = self.accelerator.is_fsdp2
        for part in first:
            with nullcontext() if sharded else self.accelerator.no_sync(model):
                loss = self._part_loss(model, part)
                self.accelerator.backward(loss)
            before += loss.detach()
        loss = before + self._part_loss(model, last)
        if self.model.training:
            if self.accelerator.sync_gradients:
                self._finish_step()
            self._learnt = [*first, last]
            if self._pretraining is not None:
                loss = loss + self._pretraining_loss(model)
        return loss

    def _part_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        mask = loss_mask(inputs).float()
        old = self._old_policy(inputs)
        assert old.distribution is not None
        new = self._new_policy(model, inputs, old.distribution.token_ids)
        advantages = inputs["advantages"]
        if advantages.dim() == 1:
            advantages = advantages.unsqueeze(1).expand_as(mask)
        context = None
        if self.trust_region.needs_context:
            context = GroupContext(inputs["rewards"], inputs["group_rewards"])
        compared = (new, old) if self.tail == "pooled" else self._constant_tails(new, old)
        losses = self.trust_region(*compared, advantages, mask, context)
        per_token = losses.per_token
        if "importance_sampling_ratio" in inputs:  # vLLM sampled: TRL's correction of sampler against trainer
            per_token = per_token * inputs["importance_sampling_ratio"]
        if "ref_per_token_logps" in inputs:
            per_token = per_token + self._reference_loss(new, old, inputs["ref_per_token_logps"], mask)
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
                f"loss is {loss.item()} at optimiser step {self.state.global_step + 1}; training stopped, "
                "the last checkpoint is intact. A smaller learning_rate may help"
            )
        if self.model.training:
            assert new.entropy is not None
            kept = (old.distribution.token_ids >= 0).sum(-1)
            metrics = {"entropy": new.entropy.detach(), "kept_tokens": kept, **losses.metrics}
            self.diagnostics.add(metrics, mask)
        # DDP averages gradients over processes, the normalisers already count all of them.
        return loss * self.accelerator.num_processes

    def _reference_loss(self, new: TokenPolicy, old: TokenPolicy, reference: Tensor, mask: Tensor) -> Tensor:
        """The weighted KL to the reference [B, T]: the regulariser's, else TRL's ``beta``."""
        if self.regulariser is None:  # k3 without limits, as in TRL
            log_ratio = reference - new.log_probs
            kl, weight = torch.exp(log_ratio) - log_ratio - 1, self.beta
            weighted = self.args.use_bias_correction_kl
        elif self.regulariser.place == "loss":
            kl = kl_estimate(new.log_probs, reference, mask, self.regulariser.estimate)
            weight, weighted = self.kl_coefficient, self.regulariser.importance_weighted
        else:
            return torch.zeros_like(mask)
        return weight * (kl * torch.exp(new.log_probs - old.log_probs) if weighted else kl)

    def _pretraining_loss(self, model: Any) -> Tensor:
        """The weighted loss of this micro-batch's demonstrations."""
        assert self._pretraining is not None
        parts = self.args.gradient_accumulation_steps
        place = {"micro_batch": self._step % parts, "process": self.accelerator.process_index}
        device = self.accelerator.device
        loss = self._pretraining(model, device, step=self.state.global_step, **place)
        self._report("pretraining_loss", loss.detach())
        return self._pretraining.coefficient * loss / parts

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
            "controller": self.controller.state_dict() if self.controller else {},
            "generated_samples": self.generated_samples,
        }

    def load_method_state(self, state: Mapping[str, Any]) -> None:
        """Takes up what `method_state` gave."""
        self.trust_region.load_state_dict(state["trust_region"])
        if self.estimator:
            self.estimator.load_state_dict(state["estimator"])
        self.certificate.load_state_dict(state["certificate"])
        if self.controller:
            self.controller.load_state_dict(state["controller"])
        self.generated_samples = state["generated_samples"]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        directory = Path(self._get_output_dir(trial=trial)) / name
        try:
            super()._save_checkpoint(model, trial)
            if self.critic is not None:
                self.critic.save(directory)
        except Exception:
            if self.accelerator.is_main_process:
                shutil.rmtree(directory, ignore_errors=True)  # gives the space back that may have run out
            raise
        self.accelerator.wait_for_everyone()  # whoever marks it complete must see all files

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, checkpoint)
        if self.critic is not None:
            self.critic.prepare()
            if checkpoint is not None:
                self.critic.load(Path(checkpoint))
        return prepared


def _controller(regulariser: Regulariser | None) -> ReferenceKLController | None:
    if regulariser is None:
        return None
    settings: dict[str, Any] = {"horizon": regulariser.horizon, "coefficient": regulariser.coefficient}
    if regulariser.target is not None:
        settings |= {"target": regulariser.target, "adaptive": True}
    return ReferenceKLController(**settings)
