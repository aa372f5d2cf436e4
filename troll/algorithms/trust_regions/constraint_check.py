"""A run's constraint check: the worst of all that the method promises; it ends runs that break it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from troll.common.errors import UserError


class ConstraintBreach(UserError):  # noqa: N818 - a verdict on the run, not a fault of the program
    """A run did not keep a promise of its trust region; the message says which, where and by how much."""


@dataclass(frozen=True)
class Thresholds:
    """What a run may not exceed.

    Attributes:
        kl_violation: nats by which KL(pi || p) may exceed the bound. Rounding of float32 results is 1e-7.
        solver_residual: relative distance of a tight constraint from its bound; the solver aims at 2e-5.
        kept_mass: least mass of the kept tokens, at any token; 0 accepts all. Below it the KL on kept tokens
            and tail may say little about the KL on the vocabulary.
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

    Reads from a step's diagnostics, where present: `kl_violation_max`, `solver_residual_max`,
    `kept_mass_min` (extremes over tokens) and `clip_fraction` (mean over tokens).
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    steps: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    _clip_fraction_sum: float = 0.0

    # Name in the constraint check, name in the diagnostics, whether small values are the bad ones.
    _ENTRIES = (
        ("kl_violation", "kl_violation_max", False),
        ("solver_residual", "solver_residual_max", False),
        ("kept_mass", "kept_mass_min", True),
        ("fraction_projected", "clip_fraction", False),
    )

    def update(self, metrics: Mapping[str, float]) -> None:
        """Take in one optimiser step.

        Raises:
            ConstraintBreach: a value is beyond its threshold, or NaN. The step is recorded first.
        """
        self.steps += 1
        breaches = []
        for name, source, low_is_bad in self._ENTRIES:
            if source not in metrics:
                continue
            value, limit = float(metrics[source]), getattr(self.thresholds, name)
            known = self.worst.get(name, value)
            worse = min(known, value) if low_is_bad else max(known, value)
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
        """What goes into the manifest: worst values, mean fraction projected, thresholds, number of steps."""
        return {
            "steps": self.steps,
            **{f"worst_{name}": value for name, value in self.worst.items()},
            "mean_fraction_projected": self._clip_fraction_sum / self.steps if self.steps else 0.0,
            "thresholds": vars(self.thresholds).copy(),
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"steps": self.steps, "worst": dict(self.worst), "clip_fraction_sum": self._clip_fraction_sum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        self.steps, self.worst = int(state["steps"]), dict(state["worst"])
        self._clip_fraction_sum = float(state["clip_fraction_sum"])
