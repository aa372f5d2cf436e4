"""Policy lag: rollouts from a policy that is some rollout batches old, as with an asynchronous sampler.

The responses of rollout batch b are sampled with the weights from before batch b - lag (the initial weights
if there is no such batch), and trained on in batch b. The old policy of the trust region is then either

* old: the policy before the batch's updates, which rescores the responses, as in TRL and verl by default. The
  ratio at a batch's first step is 1, and the sampling policy is not corrected for.
* sampler: the policy that sampled, as in DPPO and prime-rl; the first ratios differ from 1.

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
from troll.experiment.settings import Anchor
from troll.training.diagnostics import Report
from troll.training.policies import LOG_PROBS, OldPolicy

FILE = "policy_lag.pt"
Batch = dict[str, Any]
Sample = Callable[[list[dict[str, Any]]], Batch]

_WHOLE = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


class PolicyLag:
    """Keeps the weights from before the last ``lag`` rollout batches in main memory; samples with the oldest.

    Rejects a lag if the weights are sharded.
    """

    def __init__(
        self, lag: int, anchor: Anchor, old_policy: OldPolicy, accelerator: Accelerator, report: Report
    ) -> None:
        self._old_policy, self._accelerator, self._report = old_policy, accelerator, report
        if lag and self._accelerator.distributed_type not in _WHOLE:
            raise UserError(
                f"policy_lag is {lag}, which needs all weights in each process; with sharded weights "
                "(FSDP, DeepSpeed) it must be 0"
            )
        self._lag, self._anchor = lag, anchor
        self._weights: dict[int, dict[str, Tensor]] = {}

    def begin_run(self) -> None:
        """Forgets the weights of an earlier run, whose rollout batches were numbered from 0 as well."""
        self._weights = {}

    def start_batch(self, model: Any, number: int) -> None:
        """Stores the model's weights before rollout batch ``number`` (from 0) is sampled."""
        if not self._lag:
            return
        if number not in self._weights:  # already stored if a run resumes inside a batch
            self._weights[number] = _copies(model, torch.device("cpu"))
        self._weights = {key: kept for key, kept in self._weights.items() if key >= number - self._lag}

    def sample(
        self,
        model: Any,
        now: Sample,
        score: Callable[[Batch], dict[str, Tensor]],
        inputs: list[dict[str, Any]],
    ) -> Batch:
        """Samples a rollout batch with the lagged policy and scores it with the anchor's old policy.

        With the anchor "old", ``sampling_per_token_logps`` are those of the sampling policy, as in TRL for
        other engines, and their difference from the old policy's is reported. ``now`` samples and scores rows
        of prompts with the model's weights; ``score`` scores a batch with the model as the old policy.
        """
        if not self._lag:
            return now(inputs)
        current = _copies(model, None)
        _set(model, self._weights[min(self._weights)])
        try:
            output = now(inputs)
            output |= {} if LOG_PROBS in output else score(output)
        finally:
            _set(model, current)
        if self._anchor == "old":
            output["sampling_per_token_logps"] = output[LOG_PROBS]
            output |= score(output)
            for name, value in self._old_policy.mismatch(output).items():
                self._report(name, value)
        return output

    def save(self, directory: Path) -> None:
        """Writes the stored weights, on the main process."""
        if self._lag and self._accelerator.is_main_process:
            with atomic_path(directory / FILE) as temporary:
                torch.save(self._weights, temporary)

    def load(self, directory: Path) -> None:
        """Restores what `save` wrote; rejects a checkpoint of a run without lag."""
        if not self._lag:
            return
        path = directory / FILE
        if not path.exists():
            raise UserError(f"{path}: no such file; the checkpoint is not from a run with policy_lag")
        self._weights = torch.load(path, map_location="cpu", weights_only=True)


def _copies(model: Any, device: torch.device | None) -> dict[str, Tensor]:
    """Copies of the trainable weights by name; all others never change."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return {name: p.to(device or p.device, copy=True) for name, p in trained.items()}


@torch.no_grad()
def _set(model: Any, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(weights[name])
