"""TRL's entropy bonus, static and adaptive, for every trust region."""

import torch
from accelerate import Accelerator
from torch import Tensor
from trl import GRPOConfig

from troll.training.diagnostics import Report


class EntropyBonus:
    """The mean entropy of the trained tokens times a static or adaptive coefficient.

    Source: TRL 1.16, grpo_trainer.py (``_compute_loss``), after Skywork-OR1, arXiv 2505.22312: the
    coefficient grows by ``entropy_coef_delta`` after a step whose entropy is at or below ``entropy_target``,
    shrinks after all other steps, and only applies if the last step's entropy is at or below the target.

    Attributes:
        coefficient: coefficient of the next step; stored in TRL's checkpoints.
        last_entropy: mean entropy of the last step in nats; stored in TRL's checkpoints.
    """

    def __init__(self, args: GRPOConfig) -> None:
        self._args = args
        self.coefficient, self.last_entropy = args.entropy_coef, float("inf")
        self.enabled = args.entropy_coef != 0.0 or args.use_adaptive_entropy
        """Whether there is a bonus in this or possibly in a later step."""
        self._window: Tensor | None = None
        self._policy_loss: Tensor | None = None

    def __call__(self, entropy: Tensor, mask: Tensor, policy_loss: Tensor, *, training: bool) -> Tensor:
        """The bonus of a part of a micro-batch: the coefficient times the mean of entropy [B, T] over mask.

        The mask is 1 at trained tokens; the coefficient only adapts to batches with ``training`` set.
        """
        total, tokens = (entropy * mask).sum(), mask.sum()
        if training:
            self._policy_loss = policy_loss if self._policy_loss is None else self._policy_loss + policy_loss
            sums = torch.stack([total, tokens]).detach()
            self._window = sums if self._window is None else self._window + sums
        active = self.last_entropy <= self._args.entropy_target or not self._args.use_adaptive_entropy
        return (self.coefficient if active else 0.0) * total / tokens.clamp(min=1.0)

    def finish_step(self, accelerator: Accelerator, report: Report) -> None:
        """Reports policy loss and coefficient of an optimiser step, and adapts the coefficient."""
        window, policy_loss, self._window, self._policy_loss = self._window, self._policy_loss, None, None
        if window is None or policy_loss is None:
            return
        report("policy_loss", policy_loss)
        if self._args.use_adaptive_entropy:
            total, tokens = accelerator.reduce(window, reduction="sum").tolist()
            if tokens:  # without tokens there is no entropy to adapt to; TRL would use 0
                self._adapt(total / tokens)
        report("entropy_coef", self.coefficient)

    def _adapt(self, entropy: float) -> None:
        args = self._args
        if entropy <= args.entropy_target:
            self.coefficient = min(self.coefficient + args.entropy_coef_delta, args.entropy_coef_max)
        else:
            self.coefficient = max(self.coefficient - args.entropy_coef_delta, args.entropy_coef_min)
        self.last_entropy = entropy
