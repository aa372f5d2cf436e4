"""The KL to the frozen reference: measured, weighted by a coefficient that may adapt, learnt from."""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.regularisers import ReferenceKLController, kl_estimate
from troll.experiment.settings import Regulariser
from troll.training.diagnostics import Report
from troll.training.policies import LOG_PROBS

COEFFICIENT = "reference_kl_coefficient"
"""Name of the coefficient in a rollout batch whose KL it weighs: a scalar in main memory."""


class ReferenceKL:
    """The regulariser of a run, which adds to the rewards or to the loss."""

    def __init__(self, settings: Regulariser, accelerator: Accelerator, report: Report) -> None:
        self._settings, self._accelerator, self._report = settings, accelerator, report
        self.controller = ReferenceKLController(
            coefficient=settings.coefficient,
            horizon=settings.horizon,
            target=settings.target or 1.0,  # not looked at where nothing adapts
            adaptive=settings.target is not None,
        )
        # Of the rollout batch that was measured last; validation has it, too.
        self._coefficient = self.controller.coefficient

    def measure(self, batch: dict[str, Any], mask: Tensor) -> Tensor | None:
        """Reports the KL of a rollout batch, adapts the coefficient, and gives the KL as rewards [B, T].

        None where it belongs into the loss. The batch has the log-probs [B, T] of the policy that sampled and
        of the reference; it gets `COEFFICIENT`, so that its loss has the coefficient that its rewards have.
        """
        estimate = kl_estimate(batch[LOG_PROBS], batch["ref_per_token_logps"], mask, self._settings.estimate)
        coefficient = self._coefficient = self.controller.coefficient
        batch[COEFFICIENT] = torch.tensor(coefficient, dtype=torch.float64)
        tokens = mask.sum(1).to(estimate)
        found = torch.stack([estimate.sum(1) / tokens.clamp(min=1), tokens], dim=1)
        # In a row: the mean of a column would be rounded otherwise.
        measured, tokens = self._accelerator.gather(found).T.contiguous()
        if tokens.any():  # else there is nothing that a KL could be measured at
            self._report("kl_to_reference", measured.mean())
            self.controller.after_step(float(measured.mean()), len(measured))
        self._report("kl_coefficient", coefficient)
        return -coefficient * estimate if self._settings.applied_to == "reward" else None

    def loss(
        self,
        new_log_probs: Tensor,
        old_log_probs: Tensor,
        reference: Tensor,
        mask: Tensor,
        coefficient: Tensor | None = None,
    ) -> Tensor:
        """The weighted KL [B, T] of the policy being trained; 0 where it belongs into the rewards.

        All log-probs are [B, T]. Without the `COEFFICIENT` of the batch it is the last one.
        """
        if self._settings.applied_to == "reward":
            return torch.zeros_like(mask)
        kl = kl_estimate(new_log_probs, reference, mask, self._settings.estimate)
        if self._settings.importance_weighted:
            kl = kl * torch.exp(new_log_probs - old_log_probs)
        return (self._coefficient if coefficient is None else float(coefficient)) * kl

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return self.controller.state_dict() | {"batch_coefficient": self._coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state; of one without the batch's coefficient no batch has begun."""
        self.controller.load_state_dict(state)
        self._coefficient = float(state.get("batch_coefficient", self.controller.coefficient))


def trl_reference_kl(
    new_log_probs: Tensor,
    old_log_probs: Tensor,
    reference: Tensor,
    mask: Tensor,
    *,
    weighted: bool,
    sequences: bool,
) -> Tensor:
    """The KL [B, T] of TRL's ``beta``: k3 without limits, times the importance weight if asked for.

    ``sequences`` asks for weights of whole responses, not of tokens. Source: TRL 1.16, grpo_trainer.py
    (``_compute_loss``).
    """
    log_ratio = reference - new_log_probs
    kl = torch.exp(log_ratio) - log_ratio - 1
    if not weighted:
        return kl
    weight = new_log_probs - old_log_probs
    if sequences:
        weight = ((weight * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    return kl * torch.exp(weight)
