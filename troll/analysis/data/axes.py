"""Settings along which runs were varied: learning rate, staleness, bounds, as the runs record them.

Settings are read from the runs themselves (column ``settings`` of the tidy table), never from names. Two
runs belong to one line when nothing else about them differs but what always goes with the setting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.settings import WATCHING, settings_by
from troll.analysis.data.summaries import Cell, cached_per_frame, trained_cells, variants
from troll.analysis.data.tidy import GROUP

_TRAINING, _RULE = "training/", "trust_region/settings/"
_NEVER = (*WATCHING, "micro_batches")
"""Settings that change no result, or only how it is rounded."""


@dataclass(frozen=True)
class Axis:
    """A setting along which lines are drawn."""

    name: str
    label: str  # of the axis, with the unit
    parts: tuple[str, ...]  # recorded settings whose product it is
    along: tuple[str, ...] = ()  # settings that change with it, and so may differ within a line

    def value(self, settings: Mapping[str, Any]) -> float | None:
        """The setting's value in one cell; None where the runs do not record it as a number."""
        if any(not isinstance(settings.get(part), int | float) for part in self.parts):
            return None
        return float(np.prod([settings[part] for part in self.parts]))


AXES = (
    Axis("kl_bound", "KL bound (nats)", (f"{_RULE}kl_bound",)),
    Axis("epsilon", "clipping range", (f"{_RULE}epsilon_low",), (f"{_RULE}epsilon_high",)),
    Axis("coefficient", "weight of the penalty", (f"{_RULE}coefficient",)),
    Axis("keep", "kept tokens", (f"{_TRAINING}keep",), (f"{_TRAINING}dropped_mass",)),
    Axis(
        "staleness",
        "optimiser steps per batch of rollouts",
        (f"{_TRAINING}mini_batches", f"{_TRAINING}num_iterations"),
        (f"{_TRAINING}rollout_batches",),
    ),
    Axis("learning_rate", "learning rate", (f"{_TRAINING}learning_rate",)),
    Axis("policy_lag", "policy lag (batches of rollouts)", (f"{_TRAINING}policy_lag",)),
)


@dataclass(frozen=True)
class Line:
    """The cells of one method that differ in one setting, in the order of its values."""

    family: str
    label: str
    points: tuple[tuple[float, Cell], ...]


def recorded(runs: pd.DataFrame, cell: Cell) -> dict[str, Any]:
    """The settings of a cell as its runs record them: those of training and of the rule."""
    return dict(_settings(runs).get(cell, {}))


@cached_per_frame
def _settings(runs: pd.DataFrame) -> dict[Cell, dict[str, Any]]:
    """What is recorded of every cell, by its first run."""
    return {
        Cell(*map(str, group)): {
            name: value
            for name, value in settings.items()
            if name.startswith((_TRAINING, _RULE)) and name.rsplit("/", 1)[-1] not in _NEVER
        }
        for group, settings in settings_by(runs, list(GROUP))
    }


def _grouped(
    runs: pd.DataFrame, axis: Axis, method: Callable[[str], str]
) -> list[tuple[str, dict[float, Cell]]]:
    """Cells that differ in the axis alone, by its value; two or more, with what their methods are called."""
    groups: dict[tuple[Any, ...], dict[float, Cell]] = {}
    free = {*axis.parts, *axis.along}
    for cell in trained_cells(runs):
        settings = recorded(runs, cell)
        x = axis.value(settings)
        if x is not None:
            rest = tuple(sorted((name, value) for name, value in settings.items() if name not in free))
            key = (method(cell.trust_region), cell.model, cell.task, cell.estimator, rest)
            # The condition is a name for settings that are compared here one by one.
            groups.setdefault(key, {}).setdefault(x, cell)
    return [(key[0], dict(sorted(group.items()))) for key, group in groups.items() if len(group) > 1]


def lines(runs: pd.DataFrame, axis: Axis) -> dict[tuple[str, str, str], list[Line]]:
    """The lines along a setting, by model, task and estimator; only those with two values or more."""
    by_setting: dict[tuple[str, str, str], list[Line]] = {}
    defaults = variants(runs)
    for family, by_value in _grouped(runs, axis, lambda name: defaults.get(name, name)):
        cell = next(iter(by_value.values()))
        alike = all(other.condition == cell.condition for other in by_value.values())
        line = Line(family, cell.condition if alike else "", tuple(by_value.items()))
        by_setting.setdefault((cell.model, cell.task, cell.estimator), []).append(line)
    return by_setting


def by_condition(runs: pd.DataFrame, axis: Axis) -> list[dict[float, Cell]]:
    """Cells of one method whose conditions differ in one setting, by its value; two values or more."""
    return [by_value for _, by_value in _grouped(runs, axis, str)]
