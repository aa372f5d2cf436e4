"""How much a setting matters: test success and training behaviour against a setting's value, as lines.

Settings are read from the runs themselves (``setting/...`` rows of the tidy table), never from names. Two
runs belong to one line when nothing else about them differs but what always goes with the setting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from troll.analysis.data.summaries import (
    Cell,
    cells,
    estimator_order,
    interval,
    per_run,
    require_one,
    variants,
)
from troll.analysis.data.tidy import BASE
from troll.analysis.render.panels import Quantity, grid, limits
from troll.analysis.render.style import Look, empty, legend, styled
from troll.analysis.statistics import seed_interval

_PREFIX = "setting/"
_TRAINING, _RULE = "training/", "trust_region/settings/"
_LEAST_LOG = 1e-12
_NEVER = ("checkpoint_every", "validate_every", "micro_batches")
"""Settings that cannot change a result."""


@dataclass(frozen=True)
class Axis:
    """A setting along which lines are drawn.

    Attributes:
        name: of the setting.
        label: of the axis, with the unit.
        parts: recorded settings whose product it is.
        along: settings that change with it, and so may differ within a line.
    """

    name: str
    label: str
    parts: tuple[str, ...]
    along: tuple[str, ...] = ()

    def value(self, settings: Mapping[str, float]) -> float | None:
        """The setting's value in one cell; None where the runs do not record it."""
        if any(part not in settings for part in self.parts):
            return None
        return float(np.prod([settings[part] for part in self.parts]))


AXES = (
    Axis("kl_bound", "KL bound (nats)", (f"{_RULE}kl_bound",)),
    Axis("epsilon", "clipping range", (f"{_RULE}epsilon_low",), (f"{_RULE}epsilon_high",)),
    Axis("keep", "kept tokens", (f"{_TRAINING}keep",), (f"{_TRAINING}dropped_mass",)),
    Axis(
        "staleness",
        "optimiser steps per batch of rollouts",
        (f"{_TRAINING}mini_batches", f"{_TRAINING}num_iterations"),
        (f"{_TRAINING}rollout_batches",),
    ),
    Axis("learning_rate", "learning rate", (f"{_TRAINING}learning_rate",)),
)
MEASURES = (
    Quantity("pass@1", "test pass@1 (%)", "share"),
    Quantity("drop", "largest drop (points)", "share"),
    Quantity("kl", "late KL to old policy (nats)", "log"),
    Quantity("entropy", "final entropy (nats)"),
)


@dataclass(frozen=True)
class Line:
    """The cells of one method that differ in one setting, in the order of its values."""

    family: str
    label: str
    points: tuple[tuple[float, Cell], ...]


def recorded(runs: pd.DataFrame, cell: Cell) -> dict[str, float]:
    """The settings of a cell as its runs record them: those of training and of the rule that are numbers."""
    rows = cell.of(runs[runs["source"] == "manifest"])
    rows = rows[rows["metric"].str.startswith((_PREFIX + _TRAINING, _PREFIX + _RULE))]
    first = rows.drop_duplicates("metric")
    names = (str(name).removeprefix(_PREFIX) for name in first["metric"])
    settings = dict(zip(names, map(float, first["value"]), strict=True))
    return {name: value for name, value in settings.items() if name.rsplit("/", 1)[-1] not in _NEVER}


def lines(runs: pd.DataFrame, axis: Axis) -> dict[tuple[str, str, str], list[Line]]:
    """The lines along a setting, by model, task and estimator; only those with two values or more."""
    groups: dict[tuple[str, str, str, str, tuple[tuple[str, float], ...]], dict[float, Cell]] = {}
    defaults = variants(runs)
    for cell in cells(runs):
        if cell.trust_region == BASE:
            continue
        settings = recorded(runs, cell)
        x = axis.value(settings)
        if x is None:
            continue
        free = {*axis.parts, *axis.along}
        rest = tuple(sorted((name, value) for name, value in settings.items() if name not in free))
        family = defaults.get(cell.trust_region, cell.trust_region)
        # The condition is a name for settings that are compared here one by one.
        groups.setdefault((cell.model, cell.task, cell.estimator, family, rest), {}).setdefault(x, cell)
    by_setting: dict[tuple[str, str, str], list[Line]] = {}
    for (model, task, estimator, family, _), by_value in groups.items():
        if len(by_value) < 2:
            continue
        conditions = sorted({cell.condition for cell in by_value.values()})
        label = conditions[0] if len(conditions) == 1 else ""
        setting = (model, task, estimator)
        by_setting.setdefault(setting, []).append(
            Line(family, label, tuple(sorted(by_value.items(), key=lambda point: point[0])))
        )
    return by_setting


def sensitivity_figure(
    runs: pd.DataFrame, items: pd.DataFrame, *, measures: Sequence[Quantity] = MEASURES
) -> Figure:
    """Every setting that was varied: a row per model, task, estimator and setting, a column per measure.

    Markers are means over seeds, bars Student's 95 % intervals over seeds. The dotted line is the base model.
    """
    require_one(runs)
    rows = [
        (setting, axis, members)
        for axis in AXES
        for setting, members in sorted(
            lines(runs, axis).items(), key=lambda entry: (*entry[0][:2], estimator_order(entry[0][2]))
        )
    ]
    summary = per_run(runs)
    with styled():
        figure, panels = grid(len(rows), len(measures) if rows else 1, width=2.25, height=1.75)
        if not rows:
            empty(panels[0, 0], "no setting was varied")
            return figure
        look = Look({line.family for _, _, members in rows for line in members})
        several = len({setting for setting, _, _ in rows}) > 1
        for row, (setting, axis, members) in enumerate(rows):
            for column, measure in enumerate(measures):
                axes = panels[row, column]
                for line in members:
                    _draw(axes, line, measure, summary, items, look, name_it=len(members) > 1)
                _finish(axes, axis, members, measure)
                if measure.metric == "pass@1":
                    _base(axes, items, members, look)
                if row == 0:
                    axes.set_title(measure.label)
                if column == 0 and several:
                    axes.set_ylabel(" · ".join(setting[1:]))
        for column, measure in enumerate(measures):
            limits(list(panels[:, column]), measure)
        legend(figure, look, base=True, marked=True)
    return figure


def _draw(
    axes: Axes,
    line: Line,
    measure: Quantity,
    summary: pd.DataFrame,
    items: pd.DataFrame,
    look: Look,
    *,
    name_it: bool,
) -> None:
    x = [value for value, _ in line.points]
    triples = [_measured(cell, measure, summary, items) for _, cell in line.points]
    mean, low, high = (np.array(part) for part in zip(*triples, strict=True))
    if np.isnan(mean).all():
        return
    style = look.line(line.family)
    axes.plot(x, mean, linewidth=1.6, marker=look.marker(line.family), markersize=4, zorder=3, **style)
    axes.vlines(x, mean, high, linewidth=1.2, color=style["color"], zorder=2)
    for position, least, middle in zip(x, low, mean, strict=True):
        # As an artist of its own it does not widen the axis: a bar that reaches zero ends at the edge.
        axes.add_artist(
            Line2D([position] * 2, [least, middle], linewidth=1.2, color=style["color"], zorder=2)
        )
    if name_it and line.label:
        where = (float(x[-1]), float(mean[-1]))
        axes.annotate(line.label, where, (4, 0), textcoords="offset points", fontsize=6, va="center")


def _measured(
    cell: Cell, measure: Quantity, summary: pd.DataFrame, items: pd.DataFrame
) -> tuple[float, float, float]:
    if measure.metric == "pass@1":
        success = interval(items, cell)
        return (success.estimate, success.low, success.high) if success else (np.nan, np.nan, np.nan)
    values = np.asarray(cell.of(summary).get(measure.metric, ()), dtype=float)
    values = values[~np.isnan(values)]
    if not values.size:
        return np.nan, np.nan, np.nan
    over = seed_interval(values)
    least = _LEAST_LOG if measure.scale == "log" else -np.inf  # a logarithmic axis has no zero
    return over.estimate, max(over.low, least), over.high


def _finish(axes: Axes, axis: Axis, members: Sequence[Line], measure: Quantity) -> None:
    values = sorted({value for line in members for value, _ in line.points})
    axes.set_xscale("log")
    axes.set_xlim(values[0] / 1.6, values[-1] * 1.6)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.set_xlabel(axis.label)
    if measure.scale == "log":
        axes.set_yscale("log")
    if measure.scale == "share":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))


def _base(axes: Axes, items: pd.DataFrame, members: Sequence[Line], look: Look) -> None:
    base = interval(items, members[0].points[0][1].base())
    if base is not None:
        axes.axhline(base.estimate, linewidth=1.2, zorder=1, **look.line(BASE))
