"""kl-stop: no per-token bound, but early stopping of the updates on a rollout batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from troll.algorithms.ranges import Limit
from troll.algorithms.trust_regions.ratio import importance_weighted
from troll.algorithms.trust_regions.types import TokenLosses, TokenPolicy
from troll.common.errors import UserError


def kl_stop(new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor) -> TokenLosses:
    """KL stop: -A r; updates on a rollout batch stop once the mean KL(new || old) exceeds kl_bound."""
    return importance_weighted(new, old, advantages, mask)


class StopController:
    """Ends the updates on a rollout batch at the first optimiser step whose mean KL is above a bound.

    The KL is measured before the step's update; that update and all later ones of the batch are skipped. It
    is the exact KL(new || old) on kept tokens and tail if distributions are given, else its sample estimate.

    Source: early stopping of PPO in Spinning Up (target 0.01, stops above 1.5 times that).

    Args:
        kl_bound: mean KL above which the updates on a rollout batch stop, nats per token.
    """

    def __init__(self, *, kl_bound: Limit = 0.015) -> None:
        self.kl_bound, self._stopped = float(kl_bound), False

    @property
    def stopped(self) -> bool:
        """Whether the current and all later updates on this rollout batch are skipped."""
        return self._stopped

    def start_batch(self) -> None:
        """Allow updates again at the start of a rollout batch."""
        self._stopped = False

    def values(self) -> dict[str, float]:
        """Empty: the rule has no adaptive settings."""
        return {}

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Compare the step's mean `kl_to_old` (or `kl_to_old_sampled`) with the bound."""
        measured = metrics.get("kl_to_old", metrics.get("kl_to_old_sampled", math.nan))
        if math.isnan(measured):
            raise UserError(
                f"trust region 'kl-stop': after_step needs a number kl_to_old, got {dict(metrics).keys()}"
            )
        self._stopped = self._stopped or measured > self.kl_bound

    def state_dict(self) -> dict[str, Any]:
        """Whether the updates on the current batch have stopped."""
        return {"stopped": self._stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._stopped = bool(state["stopped"])
