"""TRL's options on entropies, for every trust region: the bonus, and the tokens of highest entropy."""

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.training.diagnostics import Report
from troll.training.trl_parts import GRPOConfig

HIGH_ENTROPY = "step_high_entropy"
"""Key of a batch: the result of `high_entropy` for the whole optimiser step."""


def high_entropy(entropies: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The entropy from which on tokens belong to the ``share`` of highest entropy, and their number.

    Args:
        entropies: [N] of the trained tokens of an optimiser step, in nats.
        share: of the tokens, in (0, 1); the quantile is interpolated, as in TRL.
    """
    if not len(entropies):
        return entropies.new_tensor(torch.inf), entropies.new_zeros(())
    threshold = torch.quantile(entropies.float(), 1 - share)
    return threshold, (entropies >= threshold).sum()


class EntropyBonus:
    """The mean entropy of the trained tokens times a static or adaptive coefficient.

    Source: TRL 1.16, grpo_trainer.py (``_compute_loss``), after Skywork-OR1, arXiv 2505.22312: the
    coefficient grows by ``entropy_coef_delta`` after a step whose entropy is at or below ``entropy_target``,
    shrinks after all other steps, and only applies if the last step's entropy is at or below the target. Here
    the mean is over the whole step; TRL's is the mean of the means of its micro-batches.

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

    def __call__(
        self, entropy: Tensor, mask: Tensor, policy_loss: Tensor, *, tokens: Tensor, training: bool
    ) -> Tensor:
        """A part's share of the bonus: the coefficient times the sum of entropy [B, T] over mask / tokens.

        The mask is 1 at trained tokens; ``tokens`` is their number in the whole step. The coefficient only
        adapts to batches with ``training`` set.
        """
        total = (entropy * mask).sum()
        if training:
            self._policy_loss = policy_loss if self._policy_loss is None else self._policy_loss + policy_loss
            sums = torch.stack([total, mask.sum()]).detach()
            self._window = sums if self._window is None else self._window + sums
        active = self.last_entropy <= self._args.entropy_target or not self._args.use_adaptive_entropy
        return (self.coefficient if active else 0.0) * total / tokens.clamp(min=1.0)

    def begin_run(self) -> None:
        """Drops the part of an optimiser step that an earlier run was interrupted in."""
        self._window = self._policy_loss = None

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
