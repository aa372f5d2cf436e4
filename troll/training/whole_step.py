"""Support for rules and options beyond micro-batches: all tokens of a step, and early stopping in a batch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from troll.algorithms.trust_regions import StepTokens, TrustRegion
from troll.training.entropy_bonus import HIGH_ENTROPY, high_entropy
from troll.training.policy_loss import STEP_SEED, STEP_TOKENS

Batch = dict[str, Any]


class WholeStep:
    """Computes what depends on all tokens of an optimiser step before training on its parts.

    These are the `StepTokens`, for rules that need them, and the entropy above which tokens are trained
    (``top_entropy_quantile``). This takes an additional forward pass over the step, without gradient, unless
    the step is a single part on one process: then the training pass provides the tokens.

    Args:
        cut: splits a micro-batch into parts with separate passes.
        measure: computes the tokens of a part and their entropies [N] with the model.
    """

    def __init__(
        self,
        cut: Callable[[Batch], list[Batch]],
        measure: Callable[[Any, Batch], tuple[StepTokens, Tensor]],
        accelerator: Accelerator,
    ) -> None:
        self._cut, self._measure, self._accelerator = cut, measure, accelerator
        self._step: list[Batch] | None = None
        self._tokens: StepTokens | None = None
        self._entropies: Tensor | None = None
        self._starts: list[list[int]] = []

    def add(
        self,
        model: Any,
        parts: list[Batch],
        step_inputs: list[Batch],
        place: int,
        seed: int,
        quantile: float,
    ) -> list[Batch]:
        """Adds the tokens of the optimiser step and the seed to the parts of a micro-batch.

        The model must be in its state before the step's update. ``step_inputs`` is the list of all
        micro-batches of the step, the same object for each of them; ``place`` is the index of this one;
        ``quantile`` is the share of tokens of highest entropy that are trained.
        """
        if step_inputs is not self._step:
            self._step = step_inputs
            self._collect(model, step_inputs, seed)
        if self._tokens is None:
            return [part | {STEP_SEED: seed} for part in parts]
        assert self._entropies is not None
        chosen = {HIGH_ENTROPY: high_entropy(self._entropies, quantile)} if quantile < 1.0 else {}
        return [
            part | {STEP_TOKENS: replace(self._tokens, start=first), STEP_SEED: seed} | chosen
            for part, first in zip(parts, self._starts[place], strict=True)
        ]

    @torch.no_grad()
    def _collect(self, model: Any, batches: list[Batch], seed: int) -> None:
        parts = [self._cut(batch) for batch in batches]
        self._tokens, self._starts = None, []
        if sum(map(len, parts)) == 1 and self._accelerator.num_processes == 1:
            return
        measured = [[self._measure(model, part) for part in group] for group in parts]
        flat = [part for group in measured for part in group]
        names = ("log_probs", "log_ratio", "advantages")
        columns = [torch.cat([getattr(tokens, name) for tokens, _ in flat]) for name in names]
        columns.append(torch.cat([entropies.to(columns[0]) for _, entropies in flat]))
        rows, start = self._gather(torch.stack(columns, dim=1))
        log_probs, log_ratio, advantages, self._entropies = rows.unbind(1)
        self._tokens = StepTokens(log_probs, log_ratio, advantages, seed=seed)
        for group in measured:
            self._starts.append([])
            for tokens, _ in group:
                self._starts[-1].append(start)
                start += len(tokens.log_probs)

    def begin_run(self) -> None:
        """Forgets the last step of an earlier run."""
        self._step = self._tokens = self._entropies = None

    def _gather(self, rows: Tensor) -> tuple[Tensor, int]:
        """The rows of all processes, and the index of this process's first row."""
        accelerator = self._accelerator
        if accelerator.num_processes == 1:
            return rows, 0
        lengths = accelerator.gather(torch.tensor([len(rows)], device=rows.device)).tolist()
        padded = rows.new_zeros(max(lengths), rows.shape[1])
        padded[: len(rows)] = rows
        gathered = accelerator.gather(padded).split(max(lengths))
        trimmed = [part[:length] for part, length in zip(gathered, lengths, strict=True)]
        return torch.cat(trimmed), sum(lengths[: accelerator.process_index])


class SkipRemainingUpdates(TrainerCallback):
    """Makes optimiser steps have no effect once the trust region has stopped updates on the rollout batch.

    Without gradients, optimisers skip weights and moments, so momentum and weight decay have no effect
    either.
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
