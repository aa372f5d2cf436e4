"""Rules with adaptive settings, kl-penalty and troll-adaptive, and their controllers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from troll.algorithms.divergences import kl_divergence
from troll.algorithms.ranges import Count, Limit, NotNegative, Positive
from troll.algorithms.trust_regions.projected import DEFAULT_KL_BOUND, troll
from troll.algorithms.trust_regions.types import (
    TokenLosses,
    TokenPolicy,
    compared_rows,
    log_ratio,
    scatter_rows,
)
from troll.common.errors import UserError


def kl_penalty(
    new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor, *, coefficient: NotNegative = 1.0
) -> TokenLosses:
    """PPO with a KL penalty: -A r + coefficient KL(old || new), the coefficient adapted between batches.

    Source: PPO, arXiv 1707.06347, eq. 8. The KL is exact on the kept tokens and the tail if the distributions
    are given, else the unbiased sample estimate r - 1 - log r. Metrics: penalty_kl (that KL).

    Settings:
        coefficient: weight of KL(old || new).
    """
    difference = log_ratio(new, old)
    ratio = difference.exp()
    if new.distribution is not None and old.distribution is not None:
        rows = kl_divergence(compared_rows(old, mask).atoms(), compared_rows(new, mask).atoms())
        divergence = scatter_rows(rows, mask)
    else:
        divergence = ratio - 1.0 - difference
    per_token = -advantages * ratio + coefficient * divergence
    return TokenLosses(per_token, {"penalty_kl": divergence})


def _metric(metrics: Mapping[str, float], name: str, rule: str) -> float:
    if name not in metrics or not math.isfinite(metrics[name]):
        raise UserError(
            f"trust region {rule!r}: after_step needs a finite metric {name!r}, got {metrics.get(name)}"
        )
    return metrics[name]


class PenaltyController:
    """Halves or doubles the coefficient when KL(old || new) leaves a band around its target.

    Source: PPO, arXiv 1707.06347, section 4: KL < target / 1.5 halves, KL > 1.5 target doubles, once after
    all updates on a batch. The KL is that of the batch's last optimiser step, measured before its update;
    after a batch of a single step, whose KL is uninformative, the coefficient stays the same.

    Args:
        coefficient: initial weight of the KL, 1 in the paper.
        target_kl: target of KL(old || new), nats per token.
        adaptive: whether the coefficient adapts.
    """

    # Keep the coefficient of a long run from reaching 0 or infinity, from which it could not recover.
    LIMITS = (1e-6, 1e6)

    def __init__(
        self, *, coefficient: NotNegative = 1.0, target_kl: Positive = 0.01, adaptive: bool = True
    ) -> None:
        self.coefficient, self.target_kl, self.adaptive = float(coefficient), float(target_kl), adaptive
        self._steps, self._measured = 0, 0.0

    def values(self) -> dict[str, float]:
        """The current coefficient."""
        return {"coefficient": self.coefficient}

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Record the step's mean `penalty_kl`; `start_batch` uses that of the batch's last step."""
        if self.adaptive:
            self._steps, self._measured = self._steps + 1, _metric(metrics, "penalty_kl", "kl-penalty")

    def start_batch(self) -> None:
        """Adapt the coefficient to the KL of the previous batch's last step."""
        if self._steps > 1 and self._measured < self.target_kl / 1.5:
            self.coefficient = max(self.coefficient / 2.0, self.LIMITS[0])
        elif self._steps > 1 and self._measured > self.target_kl * 1.5:
            self.coefficient = min(self.coefficient * 2.0, self.LIMITS[1])
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The coefficient, and the steps and the latest KL of the current batch."""
        return {"coefficient": self.coefficient, "steps": self._steps, "measured": self._measured}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.coefficient = float(state["coefficient"])
        self._steps, self._measured = int(state["steps"]), float(state["measured"])


def troll_adaptive(
    new: TokenPolicy,
    old: TokenPolicy,
    advantages: Tensor,
    mask: Tensor,
    *,
    kl_bound: Limit = DEFAULT_KL_BOUND,
    regression_weight: NotNegative = 1.0,
) -> TokenLosses:
    """TROLL with a kl_bound that follows a schedule or a controller (future work in the paper).

    The loss is that of `troll`. Metrics: those of `troll` and kl_bound.

    Settings:
        kl_bound: current largest KL(pi || p) of a token, nats.
        regression_weight: alpha, weight of the regression of the network towards pi.
    """
    losses = troll(new, old, advantages, mask, kl_bound=kl_bound, regression_weight=regression_weight)
    return losses.with_metrics(kl_bound=torch.full_like(losses.metrics["step_size"], kl_bound))


class BoundController:
    """Adapts TROLL's kl_bound between optimiser steps.

    * follow="projected": multiplies the bound by (fraction projected / target), which drives the fraction of
      projected tokens to the target; the paper reports about 1e-3.
    * follow="kl": multiplies it by (target / mean KL(new || old)), which keeps the mean step size constant.
    * follow="schedule": from kl_bound to kl_bound_final in schedule_steps, linear or cosine, then constant.

    One step changes the bound by at most the factor `rate`, and it stays in [kl_bound_min, kl_bound_max].

    Args:
        kl_bound: initial bound in nats.
        follow: what the bound adapts to: the fraction of projected tokens, the mean KL, or a schedule.
        target: target fraction of tokens ("projected"; none: 1e-3) or mean KL in nats ("kl"; none: 5e-4).
        rate: largest factor by which one step changes the bound.
        kl_bound_min: smallest bound in nats.
        kl_bound_max: largest bound in nats.
        schedule: shape of the schedule.
        kl_bound_final: final bound of the schedule in nats.
        schedule_steps: length of the schedule in optimiser steps.
    """

    _TARGETS: Mapping[str, float] = {"projected": 1e-3, "kl": 5e-4, "schedule": 1.0}

    def __init__(
        self,
        *,
        kl_bound: Positive = DEFAULT_KL_BOUND,
        follow: Literal["projected", "kl", "schedule"] = "projected",
        target: Positive | None = None,
        rate: Annotated[float, Field(gt=1)] = 1.1,
        kl_bound_min: Positive = 1e-3,
        kl_bound_max: Positive = 1.0,
        schedule: Literal["linear", "cosine"] = "linear",
        kl_bound_final: Positive = 0.01,
        schedule_steps: Count = 1000,
    ) -> None:
        for name, bound in (("kl_bound", kl_bound), ("kl_bound_final", kl_bound_final)):
            if not kl_bound_min <= bound <= kl_bound_max:
                raise UserError(
                    f"trust region 'troll-adaptive': {name} (between kl_bound_min and kl_bound_max) is "
                    f"{bound}, must be a number in [{kl_bound_min:g}, {kl_bound_max:g}]"
                )
        self.start, self.final = float(kl_bound), float(kl_bound_final)
        self.kl_bound_min, self.kl_bound_max = float(kl_bound_min), float(kl_bound_max)
        self.rate, self.steps = float(rate), float(schedule_steps)
        self.target = float(self._TARGETS[follow] if target is None else target)
        self.follow, self.schedule = follow, schedule
        self.kl_bound, self.step = self.start, 0

    def values(self) -> dict[str, float]:
        """The current bound."""
        return {"kl_bound": self.kl_bound}

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Adapt the bound to the step's mean `clip_fraction` or `kl_to_old`."""
        self.step += 1
        if self.follow == "schedule":
            done = min(self.step / self.steps, 1.0)
            share = done if self.schedule == "linear" else 0.5 * (1.0 - math.cos(math.pi * done))
            self.kl_bound = self.start + share * (self.final - self.start)
            return
        if self.follow == "projected":
            factor = _metric(metrics, "clip_fraction", "troll-adaptive") / self.target
        else:
            factor = self.target / max(_metric(metrics, "kl_to_old", "troll-adaptive"), 1e-12)
        bound = self.kl_bound * min(max(factor, 1.0 / self.rate), self.rate)
        self.kl_bound = min(max(bound, self.kl_bound_min), self.kl_bound_max)

    def state_dict(self) -> dict[str, Any]:
        """The bound and the number of steps so far."""
        return {"kl_bound": self.kl_bound, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.kl_bound, self.step = float(state["kl_bound"]), int(state["step"])
