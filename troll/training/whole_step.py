"""What trust regions need that look beyond a micro-batch: all tokens of a step, and leaving a batch early."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from troll.algorithms.trust_regions import StepTokens, TrustRegion
from troll.common.seeding import derive_seed
from troll.training.old_policy import LOG_PROBS
from troll.training.policy_loss import STEP_SEED, STEP_TOKENS


class WholeStep:
    """Measures all tokens of an optimiser step before its parts are learnt from, for rules that need them.

    That is one more forward pass over the step, without gradient; none where the step is one part in one
    process, whose own pass tells as much.

    Args:
        trainer: a `troll.training.trainer.TrustRegionTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._step: list[dict[str, Any]] | None = None
        self._tokens: StepTokens | None = None
        self._starts: list[list[int]] = []

    def add(self, model: Any, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The parts of the micro-batch at hand, with what the rule needs to know of its optimiser step.

        Args:
            model: as it is before the step's update.
            parts: with passes of their own.
        """
        trainer = self._trainer
        if not (trainer.trust_region.needs_step and trainer.model.training):
            return parts
        seed = (
            derive_seed(stream="trust-region", seed=trainer.args.seed, step=trainer.state.global_step) % 2**63
        )
        if trainer.step_inputs is not self._step:
            self._step = trainer.step_inputs
            self._collect(model, trainer.step_inputs, seed)
        if self._tokens is None:
            return [part | {STEP_SEED: seed} for part in parts]
        starts = self._starts[trainer.place_in_step]
        return [
            part | {STEP_TOKENS: replace(self._tokens, start=first), STEP_SEED: seed}
            for part, first in zip(parts, starts, strict=True)
        ]

    @torch.no_grad()
    def _collect(self, model: Any, batches: list[dict[str, Any]], seed: int) -> None:
        trainer = self._trainer
        parts = [trainer._parts(batch) for batch in batches]
        self._tokens, self._starts = None, []
        if sum(map(len, parts)) == 1 and trainer.accelerator.num_processes == 1:
            return
        found = [[self._measure(model, part) for part in group] for group in parts]
        flat = [tokens for group in found for tokens in group]
        names = ("log_probs", "log_ratio", "advantages")
        columns = [torch.cat([getattr(tokens, name) for tokens in flat]) for name in names]
        everyone, start = self._everywhere(torch.stack(columns, dim=1))
        log_probs, log_ratio, advantages = everyone.unbind(1)
        self._tokens = StepTokens(log_probs, log_ratio, advantages, seed=seed)
        for group in found:
            self._starts.append([])
            for tokens in group:
                self._starts[-1].append(start)
                start += len(tokens.log_probs)

    def _measure(self, model: Any, part: dict[str, Any]) -> StepTokens:
        if LOG_PROBS not in part:  # on policy TRL has stored no old policy: it is the new one
            part = part | self._trainer._score(part)
        tokens: StepTokens = self._trainer.policy_loss.tokens(model, part)
        return tokens

    def _everywhere(self, rows: Tensor) -> tuple[Tensor, int]:
        """The rows of all processes, and the number of this one's first."""
        accelerator = self._trainer.accelerator
        if accelerator.num_processes == 1:
            return rows, 0
        lengths = accelerator.gather(torch.tensor([len(rows)], device=rows.device)).tolist()
        padded = rows.new_zeros(max(lengths), rows.shape[1])
        padded[: len(rows)] = rows
        gathered = accelerator.gather(padded).split(max(lengths))
        everyone = [part[:length] for part, length in zip(gathered, lengths, strict=True)]
        return torch.cat(everyone), sum(lengths[: accelerator.process_index])


class LeaveBatch(TrainerCallback):
    """Lets an optimiser step change nothing once its trust region has left the rollout batch.

    Without gradients optimisers leave weights and moments alone: momentum and weight decay do not act either.

    Args:
        trust_region: which tells.
    """

    def __init__(self, trust_region: TrustRegion) -> None:
        self._trust_region = trust_region

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **_: Any,
    ) -> None:
        """Drops the step's gradients."""
        if self._trust_region.stopped:
            model.zero_grad(set_to_none=True)
