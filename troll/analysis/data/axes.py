"""Settings along which runs were varied: learning rate, staleness, bounds, as the runs record them.

Settings are read from the runs themselves (column ``settings`` of the tidy table), never from names. Two
runs belong to one line when nothing else about them differs but what always goes with the setting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.frame_cache import cached_per_frame
from troll.analysis.data.identity import WATCHING
from troll.analysis.data.settings import settings_by
from troll.analysis.data.summaries import Cell, cells, variants
from troll.analysis.data.tidy import BASE, GROUP

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
_Key = tuple[str, ...]
_Rest = tuple[tuple[str, Any], ...]


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
    runs: pd.DataFrame, axis: Axis, name: Callable[[Cell], str]
) -> dict[tuple[_Key, _Rest], dict[float, Cell]]:
    """Cells by model, task, estimator and a name, and by all settings that the axis leaves alone."""
    groups: dict[tuple[_Key, _Rest], dict[float, Cell]] = {}
    free = {*axis.parts, *axis.along}
    for cell in cells(runs):
        if cell.trust_region == BASE:
            continue
        settings = recorded(runs, cell)
        x = axis.value(settings)
        if x is not None:
            rest = tuple(sorted((name, value) for name, value in settings.items() if name not in free))
            key = (cell.model, cell.task, cell.estimator, name(cell))
            # The condition is a name for settings that are compared here one by one.
            groups.setdefault((key, rest), {}).setdefault(x, cell)
    return {key: dict(sorted(by_value.items())) for key, by_value in groups.items() if len(by_value) > 1}


def lines(runs: pd.DataFrame, axis: Axis) -> dict[tuple[str, str, str], list[Line]]:
    """The lines along a setting, by model, task and estimator; only those with two values or more."""
    by_setting: dict[tuple[str, str, str], list[Line]] = {}
    defaults = variants(runs)
    grouped = _grouped(runs, axis, lambda cell: defaults.get(cell.trust_region, cell.trust_region))
    for (key, _), by_value in grouped.items():
        model, task, estimator, family = key
        conditions = sorted({cell.condition for cell in by_value.values()})
        label = conditions[0] if len(conditions) == 1 else ""
        by_setting.setdefault((model, task, estimator), []).append(
            Line(family, label, tuple(by_value.items()))
        )
    return by_setting


def by_condition(runs: pd.DataFrame, axis: Axis) -> list[dict[float, Cell]]:
    """Cells of one method whose conditions differ in one setting, by its value; two values or more."""
    return list(_grouped(runs, axis, lambda cell: cell.trust_region).values())
