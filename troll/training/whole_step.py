"""What trust regions need that look beyond a micro-batch: all tokens of a step, and leaving a batch early."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from troll.algorithms.trust_regions import StepTokens, TrustRegion
from troll.training.policy_loss import STEP_SEED, STEP_TOKENS

Batch = dict[str, Any]


class WholeStep:
    """Measures all tokens of an optimiser step before its parts are learnt from, for rules that need them.

    That is one more forward pass over the step, without gradient; none where the step is one part in one
    process, whose own pass tells as much.

    Args:
        cut: a micro-batch to the parts with passes of their own.
        measure: the model and a part to the part's tokens.
    """

    def __init__(
        self,
        cut: Callable[[Batch], list[Batch]],
        measure: Callable[[Any, Batch], StepTokens],
        accelerator: Accelerator,
    ) -> None:
        self._cut, self._measure, self._accelerator = cut, measure, accelerator
        self._step: list[Batch] | None = None
        self._tokens: StepTokens | None = None
        self._starts: list[list[int]] = []

    def add(
        self, model: Any, parts: list[Batch], step_inputs: list[Batch], place: int, seed: int
    ) -> list[Batch]:
        """The parts of a micro-batch, with what the rule needs to know of their optimiser step.

        The model is as it was before the step's update. ``step_inputs`` are all micro-batches of the step,
        the same list for each of them, of which this is number ``place``.
        """
        if step_inputs is not self._step:
            self._step = step_inputs
            self._collect(model, step_inputs, seed)
        if self._tokens is None:
            return [part | {STEP_SEED: seed} for part in parts]
        return [
            part | {STEP_TOKENS: replace(self._tokens, start=first), STEP_SEED: seed}
            for part, first in zip(parts, self._starts[place], strict=True)
        ]

    @torch.no_grad()
    def _collect(self, model: Any, batches: list[Batch], seed: int) -> None:
        parts = [self._cut(batch) for batch in batches]
        self._tokens, self._starts = None, []
        if sum(map(len, parts)) == 1 and self._accelerator.num_processes == 1:
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

    def _everywhere(self, rows: Tensor) -> tuple[Tensor, int]:
        """The rows of all processes, and the number of this one's first."""
        accelerator = self._accelerator
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
