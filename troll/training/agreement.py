"""Says so where policies differ that should be equal before the first update on a rollout batch."""

from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.common.progress import say
from troll.training.head import COARSE_ROUNDING, ROUNDING


class Agreement:
    """Compares the policy with the old policy and with the KL reference, and warns once about each.

    Args:
        accelerator: of the trainer.
        noise: names what makes passes in training random, see `troll.training.dropout.sources_of_noise`.
        precise: whether log-probs are computed in float32.
    """

    def __init__(
        self, accelerator: Accelerator, noise: Callable[[], str], precise: Callable[[], bool]
    ) -> None:
        self._accelerator, self._noise, self._precise = accelerator, noise, precise
        self._warned: set[str] = set()
        self._reference: Tensor | None = None
        self._runs = 0

    def begin_run(self) -> None:
        """To be called when training starts: a second run begins with weights that the first has trained."""
        self._runs, self._reference = self._runs + 1, None

    def _allowed(self) -> float:
        return ROUNDING if self._noise() or self._precise() else COARSE_ROUNDING

    def _warn(self, other: str, difference: float, cause: str) -> None:
        if difference <= self._allowed() or other in self._warned:
            return
        self._warned.add(other)
        if self._accelerator.is_main_process:
            say(
                f"warning: before the first update the policy differs from {other} by {difference:.2g} nats "
                f"per token on average, instead of by rounding: {cause}"
            )

    def check_old(self, difference: float) -> None:
        """Compares with the old policy at the first step on a batch; ``difference`` is mean |log ratio|."""
        noise = self._noise()
        cause = (
            f"the model has {noise}, and rollouts of several optimiser steps are scored without. The trust "
            "region acts on this difference; disable_dropout=True switches modules of dropout off"
            if noise
            else "its log-probs in training are not those in scoring, or its weights have changed since"
        )
        self._warn("the old policy", difference, cause)

    def add_reference(self, log_probs: Tensor, reference: Tensor, mask: Tensor) -> None:
        """Adds a part of a run's first step; all are [B, T]. Only the first run is compared."""
        if self._runs > 1:
            return
        differences = (log_probs.detach() - reference).abs().where(mask.bool(), 0.0)
        sums = torch.stack([differences.sum(), mask.sum()]).double()
        self._reference = sums if self._reference is None else self._reference + sums

    def check_reference(self, name: str) -> None:
        """Compares with the KL reference at a run's first step; ``name`` is the model it was loaded from."""
        if self._reference is None:
            return
        total, tokens = self._accelerator.reduce(self._reference, "sum").tolist()
        self._reference = None
        noise = self._noise()
        cause = (
            f"the model has {noise}"
            if noise
            else f"the reference is {name or 'the model without adapters'}, and the model that is trained "
            "began with other weights"
        )
        self._warn("the KL reference", total / max(tokens, 1), cause)
