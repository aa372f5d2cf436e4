"""Policy lag: rollouts of a policy that is some rollout batches old, as an asynchronous sampler gives them.

The responses of rollout batch b are sampled with the weights from before batch b - lag (the first ones, where
there was none yet), and learnt from in batch b. What a trust region calls the old policy is then one of two:

* old: the policy before the batch's updates, which scores the responses again; so do TRL and verl by default.
  The ratio at a batch's first step is 1, and nothing corrects for who sampled.
* sampler: the policy that sampled, as DPPO and prime-rl have it; ratios begin away from 1.

Without lag both are the same.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

from troll.common.errors import UserError
from troll.common.files import atomic_path
from troll.training.diagnostics import Report
from troll.training.method import Anchor
from troll.training.policies import LOG_PROBS, OldPolicy

FILE = "policy_lag.pt"
Batch = dict[str, Any]
Sample = Callable[[list[dict[str, Any]]], Batch]

_WHOLE = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


class PolicyLag:
    """Keeps the weights from before the last ``lag`` rollout batches in main memory; samples with the oldest.

    Refuses a lag where each process has a part of the weights alone.
    """

    def __init__(
        self, lag: int, anchor: Anchor, old_policy: OldPolicy, accelerator: Accelerator, report: Report
    ) -> None:
        self._old_policy, self._accelerator, self._report = old_policy, accelerator, report
        if lag and self._accelerator.distributed_type not in _WHOLE:
            raise UserError(
                f"policy_lag is {lag}, which needs the whole weights in each process; with sharded weights "
                "(FSDP, DeepSpeed) only 0 is possible"
            )
        self._lag, self._anchor = lag, anchor
        self._weights: dict[int, dict[str, Tensor]] = {}

    def start_batch(self, model: Any, number: int) -> None:
        """Before rollout batch ``number`` (from 0) is sampled: keeps the model's weights as they are now."""
        if not self._lag:
            return
        if number not in self._weights:  # it is, where a run goes on inside of a batch
            self._weights[number] = _copies(model, torch.device("cpu"))
        self._weights = {key: kept for key, kept in self._weights.items() if key >= number - self._lag}

    def sample(
        self,
        model: Any,
        now: Sample,
        score: Callable[[Batch], dict[str, Tensor]],
        inputs: list[dict[str, Any]],
    ) -> Batch:
        """A rollout batch of the policy that lags behind, scored by what the anchor calls the old policy.

        With the anchor old, ``sampling_per_token_logps`` are those of the policy that sampled, as TRL has
        them of other engines, and the distance between the two is reported. ``now`` samples and scores rows
        of prompts with the model's weights; ``score`` puts the model as it is in the place of the old policy.
        """
        if not self._lag:
            return now(inputs)
        present = _copies(model, None)
        _set(model, self._weights[min(self._weights)])
        try:
            output = now(inputs)
            output |= {} if LOG_PROBS in output else score(output)
        finally:
            _set(model, present)
        if self._anchor == "old":
            output["sampling_per_token_logps"] = output[LOG_PROBS]
            output |= score(output)
            for name, value in self._old_policy.mismatch(output).items():
                self._report(name, value)
        return output

    def save(self, directory: Path) -> None:
        """Writes the weights that the next batches are sampled with; the main process does."""
        if self._lag and self._accelerator.is_main_process:
            with atomic_path(directory / FILE) as temporary:
                torch.save(self._weights, temporary)

    def load(self, directory: Path) -> None:
        """Takes up what `save` wrote; refuses a checkpoint of a run without lag."""
        if not self._lag:
            return
        path = directory / FILE
        if not path.exists():
            raise UserError(f"{path}: no such file; the checkpoint is not one of a run with policy_lag")
        self._weights = torch.load(path, map_location="cpu", weights_only=True)


def _copies(model: Any, device: torch.device | None) -> dict[str, Tensor]:
    """The weights that are trained, by name; the others are the same at any time."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return {name: p.to(device or p.device, copy=True) for name, p in trained.items()}


@torch.no_grad()
def _set(model: Any, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(weights[name])
