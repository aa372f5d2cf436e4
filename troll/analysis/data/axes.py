"""Settings along which runs were varied, such as learning rate, staleness and bounds.

Settings are read from the runs (column ``settings`` of the tidy table), never from names. Two runs belong to
one line if they differ only in the setting and in those that always change with it.
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
"""Settings that do not change results beyond rounding."""


@dataclass(frozen=True)
class Axis:
    """A setting along which lines are drawn."""

    name: str
    label: str  # of the axis, with the unit
    parts: tuple[str, ...]  # the value is the product of these recorded settings
    along: tuple[str, ...] = ()  # settings that change with it and may therefore differ within a line

    def value(self, settings: Mapping[str, Any]) -> float | None:
        """Returns the setting's value in one cell; None if the runs do not record it as a number."""
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
    """The cells of one method that differ in one setting, ordered by its values."""

    family: str
    label: str
    points: tuple[tuple[float, Cell], ...]


def recorded(runs: pd.DataFrame, cell: Cell) -> dict[str, Any]:
    """Returns the training and rule settings that a cell's runs record."""
    return dict(_settings(runs).get(cell, {}))


@cached_per_frame
def _settings(runs: pd.DataFrame) -> dict[Cell, dict[str, Any]]:
    """Returns the recorded settings of every cell, from its first run."""
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
    """Groups of two or more cells that differ only in the axis, by its value, each with its method's name."""
    groups: dict[tuple[Any, ...], dict[float, Cell]] = {}
    free = {*axis.parts, *axis.along}
    for cell in trained_cells(runs):
        settings = recorded(runs, cell)
        x = axis.value(settings)
        if x is not None:
            rest = tuple(sorted((name, value) for name, value in settings.items() if name not in free))
            key = (method(cell.trust_region), cell.model, cell.task, cell.estimator, rest)
            # The condition is not part of the key: it only names settings, which are compared individually.
            groups.setdefault(key, {}).setdefault(x, cell)
    return [(key[0], dict(sorted(group.items()))) for key, group in groups.items() if len(group) > 1]


def lines(runs: pd.DataFrame, axis: Axis) -> dict[tuple[str, str, str], list[Line]]:
    """Returns the lines along a setting with two or more values, by model, task and estimator."""
    by_setting: dict[tuple[str, str, str], list[Line]] = {}
    defaults = variants(runs)
    for family, by_value in _grouped(runs, axis, lambda name: defaults.get(name, name)):
        cell = next(iter(by_value.values()))
        same_condition = all(other.condition == cell.condition for other in by_value.values())
        line = Line(family, cell.condition if same_condition else "", tuple(by_value.items()))
        by_setting.setdefault((cell.model, cell.task, cell.estimator), []).append(line)
    return by_setting


def by_condition(runs: pd.DataFrame, axis: Axis) -> list[dict[float, Cell]]:
    """Cells of one method whose conditions differ in one setting, by its value; two or more values."""
    return [by_value for _, by_value in _grouped(runs, axis, str)]
