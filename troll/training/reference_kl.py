"""The KL to the frozen reference: measured, weighted by a coefficient that may adapt, learnt from."""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.regularisers import ReferenceKLController, kl_estimate
from troll.experiment.settings import Regulariser
from troll.training.diagnostics import Report


class ReferenceKL:
    """The regulariser of a run, which adds to the rewards or to the loss.

    Args:
        settings: see `troll.experiment.settings.Regulariser`.
        accelerator: the trainer's.
        report: puts a number into the log of the next optimiser step.
    """

    def __init__(self, settings: Regulariser, accelerator: Accelerator, report: Report) -> None:
        self._settings, self._accelerator, self._report = settings, accelerator, report
        self.controller = ReferenceKLController(
            coefficient=settings.coefficient,
            horizon=settings.horizon,
            target=settings.target or 1.0,  # not looked at where nothing adapts
            adaptive=settings.target is not None,
        )
        # Of the current rollout batch: its loss has the coefficient that its rewards have.
        self._coefficient = self.controller.coefficient

    def measure(self, old_log_probs: Tensor, reference: Tensor, mask: Tensor) -> Tensor | None:
        """Reports the KL of a rollout batch, adapts the coefficient, and gives the KL as rewards.

        Args:
            old_log_probs: [B, T] of the policy that sampled.
            reference: [B, T] of the reference.
            mask: [B, T].

        Returns:
            Rewards [B, T], or none where the KL belongs into the loss.
        """
        estimate = kl_estimate(old_log_probs, reference, mask, self._settings.estimate)
        coefficient = self._coefficient = self.controller.coefficient
        per_response = estimate.sum(1) / mask.sum(1).clamp(min=1)
        measured = self._accelerator.gather(per_response)
        self._report("kl_to_reference", measured.mean())
        self._report("kl_coefficient", coefficient)
        self.controller.after_step(float(measured.mean()), len(measured))
        return -coefficient * estimate if self._settings.applied_to == "reward" else None

    def loss(self, new_log_probs: Tensor, old_log_probs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        """The weighted KL [B, T] of the policy being trained; 0 where it belongs into the rewards."""
        if self._settings.applied_to == "reward":
            return torch.zeros_like(mask)
        kl = kl_estimate(new_log_probs, reference, mask, self._settings.estimate)
        if self._settings.importance_weighted:
            kl = kl * torch.exp(new_log_probs - old_log_probs)
        return self._coefficient * kl

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return self.controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state."""
        self.controller.load_state_dict(state)
        self._coefficient = self.controller.coefficient


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

    Source: TRL 1.16, grpo_trainer.py (``_compute_loss``).

    Args:
        new_log_probs: [B, T]; differentiable.
        old_log_probs: [B, T].
        reference: [B, T].
        mask: [B, T].
        weighted: ``use_bias_correction_kl``.
        sequences: weights of whole responses (``importance_sampling_level="sequence"``) instead of tokens.
    """
    log_ratio = reference - new_log_probs
    kl = torch.exp(log_ratio) - log_ratio - 1
    if not weighted:
        return kl
    weight = new_log_probs - old_log_probs
    if sequences:
        weight = ((weight * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    return kl * torch.exp(weight)
