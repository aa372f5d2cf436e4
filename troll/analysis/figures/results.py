"""Figures of results: functions from tidy tables to a matplotlib Figure for ``style.write_figure``."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from troll.analysis.data.summaries import (
    Cell,
    cell_order,
    cells,
    condition_order,
    estimator_order,
    interval,
    method_order,
    scores,
    trained_cells,
    variants,
)
from troll.analysis.data.tidy import BASE
from troll.analysis.metrics import METRICS, Metric
from troll.analysis.render.panels import (
    STEPS,
    Across,
    Share,
    blocks_of,
    bounds,
    by_processor,
    grid,
    limits,
    panel,
    rows_of,
    time_axis,
    wrapped,
)
from troll.analysis.render.style import MethodStyles, dose_families, empty, legend, legend_right_of, styled

SUCCESS = METRICS["success"]
_LEARNING = ("validation_success", "kl_to_old", "entropy", "response_length")
LEARNING = (SUCCESS, *(METRICS[name] for name in _LEARNING))
_PROJECTION = ("clip_fraction", "kl_to_old_max", "kl_projected_max", "step_size", "kept_mass")
PROJECTION = tuple(METRICS[name] for name in _PROJECTION)

_MOST_COLUMNS, _MOST_BASES = 6, 5
_PANEL = 2.15, 1.75
"""Width and height of a panel of the main figure, in inches."""
_LEAST_OF_CURVE = 4
"""Minimum number of points of a curve."""

_Condition = tuple[str, str]
"""Condition and estimator."""


@styled()
def main_figure(runs: pd.DataFrame, *, across: Across = STEPS) -> Figure:
    """Draws training success against steps: a row per model and task, a column per condition and estimator.

    More than six columns are wrapped into several rows per model and task, keeping the estimators of a
    condition together; many rows are arranged in blocks side by side. If some settings have no runs, the
    panels of those with runs are wrapped in reading order instead. Panels of a model and task share their
    vertical range. Variants of other trust regions are left out.
    """
    shown, bases = _methods(runs), _bases(runs)
    lines, complete = _lines(runs, bases)
    success = rows_of(runs, SUCCESS)
    together: dict[Cell, list[Axes]] = {}
    width = max(map(len, lines), default=0)
    blocks = blocks_of(len(lines), width, *_PANEL) if lines and complete else 1
    height = -(-len(lines) // blocks)
    figure, panels = grid(height, blocks * width, width=_PANEL[0], height=_PANEL[1])
    for axes in panels.flat:
        axes.set_axis_off()
    if not lines:
        empty(panels[0, 0], "no runs")
    styles = MethodStyles(shown)
    for index, line in enumerate(lines):
        block, row = divmod(index, height)
        below = lines[index + 1] if row < height - 1 and line is not lines[-1] else ()
        for column, (base, setting) in enumerate(line):
            axes = panels[row, block * width + column]
            axes.set_axis_on()
            panel(axes, success, base.with_condition(*setting), shown, styles, SUCCESS, across)
            together.setdefault(base, []).append(axes)
            if not complete:
                axes.set_title(f"{_label(base, bases)}\n{' · '.join(setting)}")
            elif row == 0 or len(lines) > len(bases):
                axes.set_title(" · ".join(setting))
            if column >= len(below):
                axes.set_xlabel(across.label)
            if column == 0:
                heading = f"{_label(base, bases)}\n" if complete else ""
                axes.set_ylabel(f"{heading}training success (%)")
            elif complete:
                axes.tick_params(labelleft=False)
    for same in together.values():
        limits(same, SUCCESS)
    legend(figure, styles, seeds=True)
    return figure


def _lines(
    runs: pd.DataFrame, bases: Sequence[Cell]
) -> tuple[Sequence[Sequence[tuple[Cell, _Condition]]], bool]:
    """Returns base model and setting of each panel by row, and whether all combinations have runs."""
    settings = _settings(runs)
    present = {(cell.base_model(), (cell.condition, cell.estimator)) for cell in cells(runs)}
    if len(settings) > _MOST_COLUMNS:
        conditions, names = ([*dict.fromkeys(part)] for part in zip(*settings, strict=True))
        together = wrapped(conditions, _conditions_in_a_row(len(conditions), len(names)))
        lines = [
            [(base, (name, other)) for name in line for other in names] for base in bases for line in together
        ]
    else:
        lines = [[(base, setting) for setting in settings] for base in bases]
    if all(index in present for line in lines for index in line):
        return lines, True
    places = [(base, setting) for base in bases for setting in settings if (base, setting) in present]
    return wrapped(places, math.ceil(math.sqrt(len(places)))), False


def _conditions_in_a_row(conditions: int, estimators: int) -> int:
    """Returns the conditions per row for equal rows of at most six panels in a block nearest to a square."""
    most = max(_MOST_COLUMNS // estimators, 1)
    fit = [count for count in range(1, most + 1) if conditions % count == 0]
    if fit == [1]:  # no other divisor: the last row may be shorter
        fit = list(range(1, most + 1))
    return min(fit, key=lambda count: abs(count * estimators - math.ceil(conditions / count)))


def time_figure(runs: pd.DataFrame) -> Figure:
    """Draws training success against time; panels as in ``main_figure``.

    Processor time if all runs recorded it and none used a GPU, else wall-clock time.
    """
    timed = by_processor(runs)
    clock, runs = ("wall-clock", runs) if timed is None else ("processor", timed)
    return main_figure(runs, across=time_axis(runs, clock))


def task_figure(runs: pd.DataFrame, task: str, *, metrics: Sequence[Metric] = LEARNING) -> Figure:
    """Draws the logged metrics of one task: a row per condition and estimator, a column per metric.

    Metrics that no run has are left out; panels of a column share their vertical axis.
    """
    rows = runs[runs["task"] == task]
    shown = _methods(rows)
    settings = sorted({cell.with_trust_region("") for cell in trained_cells(rows)}, key=cell_order)
    several = len({cell.model for cell in settings}) > 1
    places = [
        (cell, (f"{cell.model}\n" if several else "") + f"{cell.condition} · {cell.estimator}", shown)
        for cell in settings
    ]
    return _rows_figure(rows, places, metrics)


def projection_figure(runs: pd.DataFrame, task: str) -> Figure:
    """Draws what the trust regions did: clipped tokens, KL before and after (bound dotted), step, mass."""
    return task_figure(runs, task, metrics=PROJECTION)


def ablation_figure(runs: pd.DataFrame) -> Figure:
    """Draws the variants of each rule with its default: a row for each setting and each varied parameter.

    Shows means only, because bands would overlap; ``sensitivity_figure`` has the intervals.
    """
    places = []
    defaults = variants(runs)
    for default in sorted(set(defaults.values()), key=method_order):
        varied = [cell for cell in cells(runs) if defaults.get(cell.trust_region) == default]
        names = MethodStyles({cell.trust_region for cell in varied}).methods
        doses = dose_families(names)
        rest = [name for name in names if not any(name in members for members in doses.values())]
        for shown in (*doses.values(), *([rest] if rest else [])):
            varied_settings = {cell.with_trust_region("") for cell in varied if cell.trust_region in shown}
            for cell in sorted(varied_settings, key=cell_order):
                label = f"{cell.task}\n{cell.condition} · {cell.estimator}"
                places.append((cell, label, [default, *shown]))
    return _rows_figure(runs, places, LEARNING, means_only=True)


@styled()
def _rows_figure(
    runs: pd.DataFrame,
    places: Sequence[tuple[Cell, str, Sequence[str]]],
    metrics: Sequence[Metric],
    *,
    means_only: bool = False,
) -> Figure:
    """Draws one row per place (with its label and methods), one column per metric that any run has."""
    present = [metric for metric in metrics if _worth_drawing(runs, metric)]
    blocks = 1 if means_only else blocks_of(len(places), len(present), 2.05, 1.5)
    height = -(-len(places) // blocks)
    figure, panels = grid(height, blocks * len(present), width=2.05, height=1.5, sharex="row")
    if not places or not present:
        empty(panels[0, 0], "no runs")
        return figure
    styles = MethodStyles({name for _, _, shown in places for name in shown})
    for column, metric in enumerate(present):
        rows = rows_of(runs, metric)
        for index, (setting, label, shown) in enumerate(places):
            block, row = divmod(index, height)
            axes = panels[row, block * len(present) + column]
            drawn = panel(axes, rows, setting, shown, styles, metric, spread=not means_only)
            if drawn and metric.bound:
                bounds(axes, runs, setting, shown, styles)
            if row == 0:
                axes.set_title(metric.label)
            if row == height - 1 or index == len(places) - 1:
                axes.set_xlabel("optimiser steps")
            if column == 0:
                axes.set_ylabel(label)
            if means_only and column == len(present) - 1:
                legend_right_of(axes, styles, shown)
    for axes in panels[len(places) - (blocks - 1) * height :, (blocks - 1) * len(present) :].flat:
        axes.set_axis_off()
    for axis in {metric.axis or metric.name for metric in present}:
        same = [column for column, other in enumerate(present) if (other.axis or other.name) == axis]
        shared = [axes for column in same for axes in panels[:, column :: len(present)].flat]
        limits(shared, present[same[0]])
    if not means_only:
        legend(figure, styles, seeds=True)
    return figure


def _worth_drawing(runs: pd.DataFrame, metric: Metric) -> bool:
    """Returns whether any run logged the metric; validation metrics need `_LEAST_OF_CURVE` points."""
    rows = runs[runs["metric"] == metric.name]
    if rows.empty or (rows["source"] == "train").all():
        return not rows.empty
    return int(rows.groupby("run_id", observed=True)["step"].nunique().max()) >= _LEAST_OF_CURVE


@styled()
def final_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """Draws test pass@1 of every method: mean with 95 % interval, a tick per seed, the base as a line."""
    shown, bases = _methods(runs), _bases(runs)
    methods: dict[Cell, dict[_Condition, list[str]]] = {base: {} for base in bases}
    for cell in trained_cells(runs):
        if (name := cell.trust_region) in shown:
            methods[cell.base_model()].setdefault((cell.condition, cell.estimator), []).append(name)
    same_methods = all(names == methods[bases[0]] for names in methods.values())
    lines = wrapped(bases, _MOST_BASES)
    heights = [
        0.6 + 0.17 * max(len(methods[base]) + sum(map(len, methods[base].values())) for base in line)
        for line in lines
    ]
    width = max(map(len, lines), default=0)
    sharey: Share = "row" if same_methods else "none"
    figure, panels = grid(len(lines), width, width=3.4, height=heights or 1, sharey=sharey)
    styles = MethodStyles(shown)
    for (row, column), axes in np.ndenumerate(panels):
        if not lines or column >= len(lines[row]):
            axes.set_axis_off()
            continue
        base = lines[row][column]
        _points(axes, items, base, methods[base], styles)
        axes.set_title(_label(base, bases))
        if row == len(lines) - 1 or column >= len(lines[row + 1]):
            axes.set_xlabel("test pass@1 (%)")
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    legend(figure, styles, base=True, marked=True)
    return figure


def _points(
    axes: Axes,
    items: pd.DataFrame,
    base_cell: Cell,
    methods: Mapping[_Condition, Sequence[str]],
    styles: MethodStyles,
) -> None:
    """Draws a row for each method of each setting, with an empty row after each setting."""
    ticks, line = [], 0
    for (condition, estimator), names in methods.items():
        ticks.append(line + (len(names) - 1) / 2)
        for height, name in enumerate(names, start=line):
            cell = Cell(base_cell.model, base_cell.task, condition, estimator, name)
            success = interval(items, cell)
            if success is None:
                continue
            colour = styles.colour(name)
            each = scores(items, cell).mean(axis=1).to_numpy()
            axes.plot(each, np.full(each.size, height), "|", color=colour, markersize=5, alpha=0.6)
            width = 0.8 if each.size < 3 else 1.8
            axes.plot([success.low, success.high], [height] * 2, linewidth=width, color=colour)
            fill = "white" if each.size == 1 else colour  # one seed: the interval is over problems only
            style: dict[str, Any] = {"color": colour, "markersize": 4.5, "markerfacecolor": fill}
            axes.plot(success.estimate, height, styles.marker(name), **style)
        line += len(names) + 1
    base = interval(items, base_cell)
    if base is not None:
        axes.axvline(base.estimate, linewidth=1.2, zorder=1, **styles.line(BASE))
    axes.set_yticks(ticks, [f"{condition} · {estimator}" for condition, estimator in methods])
    axes.set_ylim(line - 1, -1)
    axes.grid(axis="y", visible=False)


def _bases(runs: pd.DataFrame) -> list[Cell]:
    """Returns the base models of all runs, graded or not."""
    return sorted({cell.base_model() for cell in trained_cells(runs)}, key=cell_order)


def _label(base: Cell, bases: Sequence[Cell]) -> str:
    return f"{base.model} · {base.task}" if len({cell.model for cell in bases}) > 1 else base.task


def _settings(runs: pd.DataFrame) -> list[_Condition]:
    trained = {(cell.condition, cell.estimator) for cell in trained_cells(runs)}
    return sorted(trained, key=lambda setting: (condition_order(setting[0]), estimator_order(setting[1])))


def _methods(runs: pd.DataFrame) -> list[str]:
    present = {cell.trust_region for cell in trained_cells(runs)}
    return MethodStyles(present - set(variants(runs))).methods
