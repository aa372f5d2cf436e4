"""DAPO's dynamic sampling: rollout batches that are full of groups with a signal."""

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
    """The most batches allowed have not filled a rollout batch."""


@dataclass(frozen=True)
class DynamicSampler:
    """Samples until a batch is full of groups whose rewards differ; surplus groups are dropped, as in verl.

    Log-probs of the groups that are dropped are computed too: TRL samples and scores in one call.
    """

    max_batches: int  # rollout batches sampled to fill one, at most
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
        """Rollout batch number ``batch`` (from 0), of as many responses as ``inputs`` has rows.

        These are prompts, each repeated for every response of its group; ``sample`` responds to such rows and
        scores them.
        """
        wanted = len(inputs)
        kept: list[dict[str, Any]] = []
        successes: list[float] = []
        for attempt in range(self.max_batches):
            output = sample(inputs if attempt == 0 else self.other_prompts(attempt, wanted, batch))
            successes.append(float(self.accelerator.gather(output["rewards"]).mean()))
            rows = mixed_groups(output["rewards"], self.group_size).repeat_interleave(self.group_size)
            kept.append(take_rows(output, rows))
            # Every process fills its own part; those that are full go on sampling with the others.
            mine = torch.tensor([sum(len(part["rewards"]) for part in kept)], device=rows.device)
            found = int(self.accelerator.gather(mine).min())
            if found >= wanted:
                self.report("dynamic_sampling_batches", torch.tensor(attempt + 1.0))
                return take_rows(join_rows(kept, self.pad_token_id), torch.arange(wanted, device=rows.device))
        raise BatchNotFilledError(
            f"dynamic sampling: {self.max_batches} rollout batches gave {found // self.group_size} of "
            f"{wanted // self.group_size} prompts whose responses are neither all right nor all wrong (mean "
            f"success {sum(successes) / self.max_batches:.2f}); training stopped after step {step}, its "
            "state is saved. Choose easier or harder problems, more responses_per_prompt, or more "
            "dynamic_sampling.max_batches"
        )

    def other_prompts(self, attempt: int, rows: int, batch: int) -> list[dict[str, Any]]:
        """Rows of prompts for another try, from a stream of its own: the same whenever a run goes on here."""
        seed = derive_seed(stream="dynamic-sampling", seed=self.seed, batch=batch)
        order = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(seed)).tolist()
        count = rows // self.group_size
        first = count * (self.accelerator.num_processes * (attempt - 1) + self.accelerator.process_index)
        chosen = [order[i % len(order)] for i in range(first, first + count)]
        return [dict(self.dataset[i]) for i in chosen for _ in range(self.group_size)]
