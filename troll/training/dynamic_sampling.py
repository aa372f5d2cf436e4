"""DAPO's dynamic sampling: fills rollout batches with groups whose rewards differ."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator

from troll.common.errors import UserError
from troll.common.seeding import derive_seed
from troll.training.batches import join_rows, mixed_groups, take_rows
from troll.training.diagnostics import Report


class BatchNotFilledError(UserError):
    """The maximum number of sampled batches did not fill a rollout batch."""


@dataclass(frozen=True)
class DynamicSampler:
    """Samples until a batch is full of groups whose rewards differ; drops surplus groups, as in verl.

    Dropped groups are scored as well, because TRL samples and scores in one call.
    """

    max_batches: int  # maximum number of batches sampled to fill a rollout batch
    dataset: Any
    group_size: int  # G, responses to a prompt
    accelerator: Accelerator
    pad_token_id: int
    seed: int
    report: Report

    def fill(
        self,
        inputs: list[dict[str, Any]],
        sample: Callable[[list[dict[str, Any]]], dict[str, Any]],
        *,
        batch: int,
        step: int,
    ) -> dict[str, Any]:
        """Samples rollout batch number ``batch`` (from 0), with as many responses as ``inputs`` has rows.

        The rows are prompts, each repeated for every response of its group; ``sample`` generates and scores
        the responses to such rows.
        """
        wanted = len(inputs)
        kept: list[dict[str, Any]] = []
        successes: list[float] = []
        for attempt in range(self.max_batches):
            output = sample(inputs if attempt == 0 else self.other_prompts(attempt, wanted, batch))
            successes.append(float(self.accelerator.gather(output["rewards"]).mean()))
            rows = mixed_groups(output["rewards"], self.group_size).repeat_interleave(self.group_size)
            kept.append(take_rows(output, rows))
            # Every process fills its part; full processes continue sampling until all are full.
            kept_here = torch.tensor([sum(len(part["rewards"]) for part in kept)], device=rows.device)
            fewest = int(self.accelerator.gather(kept_here).min())
            if fewest >= wanted:
                self.report("dynamic_sampling_batches", torch.tensor(attempt + 1.0))
                return take_rows(join_rows(kept, self.pad_token_id), torch.arange(wanted, device=rows.device))
        raise BatchNotFilledError(
            f"dynamic sampling: {self.max_batches} rollout batches gave {fewest // self.group_size} of "
            f"{wanted // self.group_size} prompts whose responses are neither all right nor all wrong (mean "
            f"success {sum(successes) / self.max_batches:.2f}); training stopped after step {step}, its "
            "state is saved. Choose easier or harder problems, more responses_per_prompt, or more "
            "dynamic_sampling.max_batches"
        )

    def other_prompts(self, attempt: int, rows: int, batch: int) -> list[dict[str, Any]]:
        """Rows of prompts for another attempt, from a separate random stream that resumed runs reproduce."""
        seed = derive_seed(stream="dynamic-sampling", seed=self.seed, batch=batch)
        order = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(seed)).tolist()
        count = rows // self.group_size
        first = count * (self.accelerator.num_processes * (attempt - 1) + self.accelerator.process_index)
        chosen = [order[i % len(order)] for i in range(first, first + count)]
        return [dict(self.dataset[i]) for i in chosen for _ in range(self.group_size)]
