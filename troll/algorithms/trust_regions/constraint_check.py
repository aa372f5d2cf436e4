"""The constraint check: records a run's worst constraint violations and stops runs above a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from troll.common.errors import UserError


class ConstraintBreach(UserError):  # noqa: N818 - a verdict on the run, not an error of the program
    """A run violated a constraint of its trust region; the message names it, the step and both values."""


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the constraint check.

    Attributes:
        kl_violation: nats by which KL(pi || p) may exceed the bound. Rounding of float32 results is 1e-7.
        solver_residual: relative distance of a tight constraint from its bound; the solver aims at 2e-5.
        kept_mass: smallest mass of the kept tokens at any position; 0 accepts all. With less kept mass, the
            KL on kept tokens and tail may be far below the KL on the vocabulary.
        fraction_projected: largest fraction of tokens outside the trust region in one optimiser step; 1
            accepts all.
    """

    kl_violation: float = 1e-5
    solver_residual: float = 1e-3
    kept_mass: float = 0.0
    fraction_projected: float = 1.0


@dataclass
class ConstraintCheck:
    """Worst values over a run, updated once per optimiser step.

    Reads these diagnostics of a step, where present: `kl_violation_max`, `solver_residual_max`,
    `kept_mass_min` (extremes over tokens) and `clip_fraction` (mean over tokens).
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    steps: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    _clip_fraction_sum: float = 0.0

    # Name in the constraint check, name in the diagnostics, whether small values are the worse ones.
    _ENTRIES = (
        ("kl_violation", "kl_violation_max", False),
        ("solver_residual", "solver_residual_max", False),
        ("kept_mass", "kept_mass_min", True),
        ("fraction_projected", "clip_fraction", False),
    )

    def update(self, metrics: Mapping[str, float]) -> None:
        """Record one optimiser step.

        Raises:
            ConstraintBreach: a value is beyond its threshold, or NaN. The step is recorded first.
        """
        self.steps += 1
        breaches = []
        for name, source, low_is_bad in self._ENTRIES:
            if source not in metrics:
                continue
            value, limit = float(metrics[source]), getattr(self.thresholds, name)
            previous = self.worst.get(name, value)
            worse = min(previous, value) if low_is_bad else max(previous, value)
            self.worst[name] = value if math.isnan(value) else worse
            if math.isnan(value) or (value < limit if low_is_bad else value > limit):
                side = "below" if low_is_bad else "above"
                breaches.append(f"{name} = {value:.6g} ({side} its threshold {limit:g})")
        self._clip_fraction_sum += float(metrics.get("clip_fraction", 0.0))
        if breaches:
            raise ConstraintBreach(
                f"constraint check breached at optimiser step {self.steps}: {'; '.join(breaches)}"
            )

    def summary(self) -> dict[str, Any]:
        """Entry of the manifest: worst values, mean fraction projected, thresholds, number of steps."""
        return {
            "steps": self.steps,
            **{f"worst_{name}": value for name, value in self.worst.items()},
            "mean_fraction_projected": self._clip_fraction_sum / self.steps if self.steps else 0.0,
            "thresholds": vars(self.thresholds).copy(),
        }

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume the run."""
        return {"steps": self.steps, "worst": dict(self.worst), "clip_fraction_sum": self._clip_fraction_sum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.steps, self.worst = int(state["steps"]), dict(state["worst"])
        self._clip_fraction_sum = float(state["clip_fraction_sum"])
