"""The KL to the frozen reference model, as a metric and as a penalty with a static or adaptive weight."""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.regularisers import ReferenceKLController, kl_estimate
from troll.common.errors import UserError
from troll.experiment.settings import Regulariser
from troll.training.diagnostics import Report
from troll.training.policies import LOG_PROBS

COEFFICIENT = "reference_kl_coefficient"
"""Key of the coefficient in a rollout batch: a scalar in main memory."""


def match_reference(model: Any, reference: Any) -> None:
    """Copies the weights of a model to its KL reference, which TRL loads by the model's name.

    A model that was changed after loading (fine-tuned, merged, resized) would differ from its reference
    before the first step.

    Raises:
        UserError: weights of the two have other names or shapes.
    """
    weights, kept = model.state_dict(), reference.state_dict()
    other = [
        name
        for name in weights.keys() | kept.keys()
        if name not in weights or name not in kept or weights[name].shape != kept[name].shape
    ]
    if other:
        raise UserError(
            f"the KL reference, {model.config.name_or_path}, lacks weights of the model or has them in other "
            f"shapes ({min(other)}); save the model with save_pretrained and load it from there"
        )
    reference.load_state_dict(weights)


class ReferenceKL:
    """The KL regulariser of a run, applied to the rewards or to the loss."""

    def __init__(self, settings: Regulariser, accelerator: Accelerator, report: Report) -> None:
        self._settings, self._accelerator, self._report = settings, accelerator, report
        self.controller = ReferenceKLController(
            coefficient=settings.coefficient,
            horizon=settings.horizon,
            target=settings.target or 1.0,  # unused if the coefficient is not adaptive
            adaptive=settings.target is not None,
        )
        # That of the last measured rollout batch; validation uses it, too.
        self._coefficient = self.controller.coefficient

    def measure(self, batch: dict[str, Any], mask: Tensor) -> Tensor | None:
        """Reports the KL of a rollout batch and adapts the coefficient; returns the KL as rewards [B, T].

        Returns None if the KL is applied to the loss. The batch must have the log-probs [B, T] of the
        sampling policy and of the reference. Stores `COEFFICIENT` in the batch, so its loss uses the same
        coefficient.
        """
        estimate = kl_estimate(batch[LOG_PROBS], batch["ref_per_token_logps"], mask, self._settings.estimate)
        coefficient = self._coefficient = self.controller.coefficient
        batch[COEFFICIENT] = torch.tensor(coefficient, dtype=torch.float64)
        tokens = mask.sum(1).to(estimate)
        rows = torch.stack([estimate.sum(1) / tokens, tokens], dim=1)
        gathered = self._accelerator.gather(rows)
        # Without tokens, the KL of a response is undefined. Contiguous, because the mean of a column would be
        # rounded differently.
        measured = gathered[gathered[:, 1] > 0].T.contiguous()[0]
        if len(measured):
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
        """The weighted KL [B, T] of the policy being trained; 0 if it is applied to the rewards.

        All log-probs are [B, T]. ``coefficient`` is the batch's `COEFFICIENT`; by default the last one.
        """
        if self._settings.applied_to == "reward":
            return torch.zeros_like(mask)
        kl = kl_estimate(new_log_probs, reference, mask, self._settings.estimate)
        if self._settings.importance_weighted:
            kl = kl * torch.exp(new_log_probs - old_log_probs)
        return (self._coefficient if coefficient is None else float(coefficient)) * kl

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume the run."""
        return self.controller.state_dict() | {"batch_coefficient": self._coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state; a missing coefficient of the batch defaults to the controller's."""
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
    """The KL [B, T] of TRL's ``beta``: k3 without limits, times the importance weight if ``weighted``.

    With ``sequences`` the weights are those of whole responses instead of tokens. Source: TRL 1.16,
    grpo_trainer.py (``_compute_loss``).
    """
    log_ratio = reference - new_log_probs
    kl = torch.exp(log_ratio) - log_ratio - 1
    if not weighted:
        return kl
    weight = new_log_probs - old_log_probs
    if sequences:
        weight = ((weight * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    return kl * torch.exp(weight)
