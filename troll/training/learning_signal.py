"""What a rollout batch teaches: advantages of a named estimator, values and returns of a critic."""

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
    """Turns rewards [B] into advantages [B, T], and adds what rules and critic learn from."""

    estimator: Estimator | None  # none keeps TRL's advantages
    critic: Critic | None
    reference_kl: ReferenceKL | None
    overlong: Overlong | None
    limit: int  # longest response in tokens
    needs_group_rewards: bool  # whether the trust region compares the rewards of a group
    accelerator: Accelerator  # groups span all processes
    report: Report

    def penalty(self, lengths: Tensor) -> Tensor:
        """What the lengths of responses cost, [B]; 0 where no settings ask for it."""
        if self.overlong is None:
            return torch.zeros_like(lengths)
        return overlong_penalty(lengths, self.limit, self.overlong.buffer, self.overlong.factor)

    def add_groups(self, output: dict[str, Any], group_size: int) -> tuple[Tensor, Tensor]:
        """Rewards of all processes, and the number of each one's group; adds ``group_rewards`` if needed."""
        everyone = self.accelerator.gather(output["rewards"])
        groups = torch.arange(len(everyone), device=everyone.device) // group_size
        if self.needs_group_rewards:
            of_group = GroupRewards.from_groups(everyone, groups).of_group
            output["group_rewards"] = self._own(of_group, len(output["rewards"]))
        return everyone, groups

    def add(self, output: dict[str, Any], group_size: int) -> None:
        """Adds ``advantages``, and ``values`` and ``returns`` of a critic, to a batch that is learnt from.

        ``rewards`` [B] get the penalty on long responses; a reference needs the old policy's log-probs.
        """
        mask = loss_mask(output)
        if self.overlong is not None:
            penalty = self.penalty(output["completion_mask"].sum(1).to(output["rewards"]))
            self.report("overlong_penalty", penalty.mean())
            output["rewards"] = output["rewards"] + penalty
        everyone, groups = self.add_groups(output, group_size)
        kl_rewards = None
        if self.reference_kl is not None:
            kl_rewards = self.reference_kl.measure(output, mask)
        if self.estimator is None:
            return
        values = self.critic.values(output, mask) if self.critic else None
        everyones_mask = self._everywhere(mask)
        estimate = self.estimator(
            everyone,
            groups,
            everyones_mask,
            None if values is None else self._everywhere(values),
            None if kl_rewards is None else self._everywhere(kl_rewards),
            self._everywhere(output["greedy_rewards"]) if "greedy_rewards" in output else None,
        )
        length = mask.shape[1]
        output["advantages"] = self._own(estimate.advantages, len(mask))[:, :length]
        if values is not None and estimate.returns is not None:
            output["values"] = values
            output["returns"] = self._own(estimate.returns, len(mask))[:, :length]
            explained = explained_variance(self._everywhere(values), estimate.returns, everyones_mask)
            self.report("critic/explained_variance", explained)

    def _everywhere(self, value: Tensor) -> Tensor:
        """Rows of all processes; [B, T] padded to the longest."""
        padded = self.accelerator.pad_across_processes(value, dim=1) if value.dim() > 1 else value
        return self.accelerator.gather(padded)

    def _own(self, everywhere: Tensor, rows: int) -> Tensor:
        """This process's part of a tensor that all processes gathered, ``rows`` from each."""
        start = rows * self.accelerator.process_index
        return everywhere[start : start + rows]
