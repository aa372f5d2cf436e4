"""The learning signal of a rollout batch: advantages, and values and returns of a critic."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.advantages import Estimator
from troll.algorithms.trust_regions import GroupRewards
from troll.experiment.settings import Overlong
from troll.training.batches import loss_mask, overlong_penalty
from troll.training.critic import Critic, explained_variance
from troll.training.diagnostics import Report
from troll.training.reference_kl import ReferenceKL


@dataclass(frozen=True)
class LearningSignal:
    """Computes advantages [B, T] from rewards [B], and the further inputs of trust region and critic."""

    estimator: Estimator | None  # None: TRL's advantages
    critic: Critic | None
    reference_kl: ReferenceKL | None
    overlong: Overlong | None
    limit: Callable[[], int]  # maximum response length in tokens, which scripts may change
    needs_group_rewards: bool  # whether the trust region needs the rewards of a group
    accelerator: Accelerator  # groups span all processes
    report: Report

    def penalty(self, lengths: Tensor) -> Tensor:
        """Penalty on the lengths of responses, [B]; 0 without ``overlong``."""
        if self.overlong is None:
            return torch.zeros_like(lengths)
        return overlong_penalty(lengths, self.limit(), self.overlong.buffer, self.overlong.factor)

    def add_groups(self, output: dict[str, Any], group_size: int) -> tuple[Tensor, Tensor]:
        """Rewards of all processes and their group indices; adds ``group_rewards`` to the batch if needed."""
        all_rewards = self.accelerator.gather(output["rewards"])
        groups = torch.arange(len(all_rewards), device=all_rewards.device) // group_size
        if self.needs_group_rewards:
            of_group = GroupRewards.from_groups(all_rewards, groups).of_group
            output["group_rewards"] = self._local_rows(of_group, len(output["rewards"]))
        return all_rewards, groups

    def add(self, output: dict[str, Any], group_size: int) -> None:
        """Adds ``advantages``, and with a critic ``values`` and ``returns``, to a training batch.

        Adds the length penalty to ``rewards`` [B]. A reference model requires the old policy's log-probs.
        """
        mask = loss_mask(output)
        if self.overlong is not None:
            penalty = self.penalty(output["response_lengths"].to(output["rewards"]))
            self.report("overlong_penalty", penalty.mean())
            output["rewards"] = output["rewards"] + penalty
        all_rewards, groups = self.add_groups(output, group_size)
        kl_rewards = None
        if self.reference_kl is not None:
            kl_rewards = self.reference_kl.measure(output, mask)
        if self.estimator is None:
            return
        values = self.critic.values(output, mask) if self.critic else None
        all_masks = self._gather(mask)
        estimate = self.estimator(
            all_rewards,
            groups,
            all_masks,
            None if values is None else self._gather(values),
            None if kl_rewards is None else self._gather(kl_rewards),
            self._gather(output["greedy_rewards"]) if "greedy_rewards" in output else None,
        )
        length = mask.shape[1]
        output["advantages"] = self._local_rows(estimate.advantages, len(mask))[:, :length]
        if values is not None and estimate.returns is not None:
            output["values"] = values
            output["returns"] = self._local_rows(estimate.returns, len(mask))[:, :length]
            explained = explained_variance(self._gather(values), estimate.returns, all_masks)
            self.report("critic/explained_variance", explained)

    def _gather(self, value: Tensor) -> Tensor:
        """Gathers the rows of all processes; [B, T] is padded to the longest."""
        padded = self.accelerator.pad_across_processes(value, dim=1) if value.dim() > 1 else value
        return self.accelerator.gather(padded)

    def _local_rows(self, gathered: Tensor, rows: int) -> Tensor:
        """This process's part of a gathered tensor with ``rows`` rows of each process."""
        start = rows * self.accelerator.process_index
        return gathered[start : start + rows]
