"""TRL's entropy bonus, static and adaptive, for every trust region."""

from typing import Any

import torch
from torch import Tensor


class EntropyBonus:
    """The mean entropy of the tokens that are learnt from, times a coefficient that may adapt.

    Source: TRL 1.16, grpo_trainer.py (``_compute_loss``), after Skywork-OR1, arXiv 2505.22312: the
    coefficient grows by ``entropy_coef_delta`` after a step whose entropy is at or below ``entropy_target``,
    shrinks after others, and acts only while the last step's entropy was at or below the target.

    Args:
        trainer: TRL's; coefficient and last entropy stay its attributes, which it writes into checkpoints.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._policy_loss: Tensor | None = None

    @property
    def enabled(self) -> bool:
        """Whether there is a bonus, or may be one in a later step."""
        return bool(self._trainer._entropy_bonus_enabled)

    def __call__(self, entropy: Tensor, mask: Tensor, policy_loss: Tensor, *, training: bool) -> Tensor:
        """The bonus of a part of a micro-batch: the coefficient times the mean entropy of its tokens.

        Args:
            entropy: [B, T]; differentiable.
            mask: [B, T], 1 at the tokens that are learnt from.
            policy_loss: of the part; reported beside the bonus.
            training: whether the adaptive coefficient sees it.
        """
        trainer = self._trainer
        total, tokens = (entropy * mask).sum(), mask.sum()
        if training:
            self._policy_loss = policy_loss if self._policy_loss is None else self._policy_loss + policy_loss
            seen = torch.stack([total, tokens]).detach()
            window = trainer._entropy_window_stats
            trainer._entropy_window_stats = seen if window is None else window + seen
        low = trainer._last_world_entropy <= trainer.args.entropy_target
        coefficient = trainer.entropy_coef if low or not trainer.use_adaptive_entropy else 0.0
        return coefficient * total / tokens.clamp(min=1.0)

    def finish_step(self) -> None:
        """Reports policy loss and coefficient of an optimiser step, and adapts the coefficient to it."""
        trainer = self._trainer
        window, trainer._entropy_window_stats = trainer._entropy_window_stats, None
        if not self.enabled or window is None or self._policy_loss is None:
            return
        trainer._report("policy_loss", self._policy_loss)
        self._policy_loss = None
        if trainer.use_adaptive_entropy:
            total, tokens = trainer.accelerator.reduce(window, reduction="sum").tolist()
            if tokens:  # else there is no entropy to follow; TRL takes it for 0
                self._adapt(total / tokens)
        trainer._metrics["train"]["entropy_coef"].append(trainer.entropy_coef)

    def _adapt(self, entropy: float) -> None:
        trainer, args = self._trainer, self._trainer.args
        if entropy <= args.entropy_target:
            coefficient = min(trainer.entropy_coef + args.entropy_coef_delta, args.entropy_coef_max)
        else:
            coefficient = max(trainer.entropy_coef - args.entropy_coef_delta, args.entropy_coef_min)
        trainer.entropy_coef, trainer._last_world_entropy = coefficient, entropy
