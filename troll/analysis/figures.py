"""The figures: tidy tables in, a matplotlib Figure out, which ``style.write_figure`` writes.

Curves: a thin line per seed, a thick line for their mean and a band from the smallest to the largest seed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter

from troll.analysis.runs import BASE
from troll.analysis.style import Look, empty, legend, styled
from troll.analysis.summaries import (
    Cell,
    cell_order,
    cells,
    curve,
    estimator_order,
    interval,
    require_one,
    scores,
    variant_of,
)


@dataclass(frozen=True)
class Quantity:
    """What a panel shows.

    Attributes:
        metric: name in the tidy table.
        label: of the axis, with the unit.
        scale: "linear", "share" (0 to 1 shown in percent) or "log".
        by_batch: "mean" or "max" over the optimiser steps of each rollout batch; None for every step.
        complement: show one minus the value (kept mass as the mass left out).
        axis: quantities of one axis share their limits.
        bound: draw the rule's own KL bound, where the run's settings have one.
    """

    metric: str
    label: str
    scale: str = "linear"
    by_batch: str | None = None
    complement: bool = False
    axis: str = ""
    bound: bool = False


SUCCESS = Quantity("success", "training success (%)", "share")
LEARNING = (
    SUCCESS,
    Quantity("validation_success", "validation success (%)", "share"),
    Quantity("kl_to_old", "KL to old policy (nats)", "log", by_batch="mean"),
    Quantity("entropy", "entropy (nats)", by_batch="mean"),
    Quantity("response_length", "response length (tokens)"),
)
PROJECTION = (
    Quantity("outside", "tokens outside the region (%)", "share", by_batch="mean"),
    Quantity("kl_to_old_max", "largest KL before (nats)", "log", by_batch="max", axis="kl", bound=True),
    Quantity("kl_projected_max", "largest KL after (nats)", "log", by_batch="max", axis="kl", bound=True),
    Quantity("step_size", "mean step β", by_batch="mean"),
    Quantity("kept_mass", "mass left out", "log", by_batch="mean", complement=True),
)
_FLOOR = 1e-8
"""Below this, differences of float32 probabilities are rounding, and would fill a logarithmic axis."""
Share = Literal["none", "row", "col"]
Setting = tuple[str, str]
"""Condition and estimator."""


def main_figure(
    runs: pd.DataFrame, *, estimators: Sequence[str] | None = None, trust_regions: Sequence[str] | None = None
) -> Figure:
    """Training success against steps: a row per model and task, a column per condition and estimator.

    Args:
        runs: the tidy table of one experiment.
        estimators: which; by default the two that have most runs.
        trust_regions: which; by default all that are no variants named by a setting.
    """
    require_one(runs)
    shown, bases = _methods(runs, trust_regions), _bases(runs)
    chosen = estimators or _commonest_estimators(runs, 2)
    settings = [setting for setting in _settings(runs) if setting[1] in chosen]
    success = _rows(runs, SUCCESS)
    with styled():
        figure, grid = _grid(len(bases), len(settings), width=2.15, height=1.75, sharey="row")
        look = Look(shown)
        for row, base in enumerate(bases):
            before = _base_score(runs, base)
            for column, (condition, estimator) in enumerate(settings):
                axes, place = grid[row, column], Cell(base.model, base.task, condition, estimator, "")
                if _panel(axes, success, place, shown, look, SUCCESS) and before is not None:
                    axes.axhline(before, linewidth=1.2, zorder=1.5, **look.line(BASE))
                if row == 0:
                    axes.set_title(f"{condition} · {estimator}")
                if row == len(bases) - 1:
                    axes.set_xlabel("optimiser steps")
                if column == 0:
                    axes.set_ylabel(f"{_label(base, bases)}\ntraining success (%)")
            _limits(list(grid[row]), SUCCESS)
        legend(figure, look, base=True)
    return figure


def task_figure(
    runs: pd.DataFrame,
    task: str,
    *,
    quantities: Sequence[Quantity] = LEARNING,
    trust_regions: Sequence[str] | None = None,
) -> Figure:
    """Everything that was logged about learning one task: a row per condition and estimator.

    Columns are the ``quantities`` that any run has; a column's panels share their vertical axis.
    """
    rows = runs[runs["task"] == task]
    models, settings = sorted({base.model for base in _bases(rows)}), _settings(rows)
    places = [
        (Cell(model, task, *setting, ""), (f"{model}\n" if len(models) > 1 else "") + " · ".join(setting))
        for model in models
        for setting in settings
    ]
    return _rows_figure(rows, places, _methods(rows, trust_regions), quantities)


def projection_figure(runs: pd.DataFrame, task: str, *, trust_regions: Sequence[str] | None = None) -> Figure:
    """How the trust regions acted: tokens outside, KL before and after (bound dotted), step, kept mass."""
    return task_figure(runs, task, quantities=PROJECTION, trust_regions=trust_regions)


def ablation_figure(
    runs: pd.DataFrame, *, family: str = "troll", quantities: Sequence[Quantity] = LEARNING
) -> Figure:
    """The variants of one rule beside its default: a row per task and setting in which a variant was run."""
    variants = [cell for cell in cells(runs) if variant_of(cell.trust_region) == family]
    chosen = sorted({cell.method("") for cell in variants}, key=cell_order)
    places = [(cell, f"{cell.task}\n{cell.condition} · {cell.estimator}") for cell in chosen]
    shown = Look({cell.trust_region for cell in variants} | {family}).methods
    return _rows_figure(runs, places, shown, quantities)


def _rows_figure(
    runs: pd.DataFrame,
    places: Sequence[tuple[Cell, str]],
    shown: Sequence[str],
    quantities: Sequence[Quantity],
) -> Figure:
    """One row per place (with its label), one column per quantity that any run has."""
    require_one(runs)
    logged = set(runs["metric"])
    present = [quantity for quantity in quantities if quantity.metric in logged]
    with styled():
        figure, grid = _grid(len(places), len(present), width=2.05, height=1.5, sharex="row")
        if not places or not present:
            empty(grid[0, 0], "no runs")
            return figure
        look = Look(shown)
        for column, quantity in enumerate(present):
            rows = _rows(runs, quantity)
            for row, (place, label) in enumerate(places):
                axes = grid[row, column]
                if _panel(axes, rows, place, shown, look, quantity) and quantity.bound:
                    _bounds(axes, runs, place, shown, look)
                if row == 0:
                    axes.set_title(quantity.label)
                if row == len(places) - 1:
                    axes.set_xlabel("optimiser steps")
                if column == 0:
                    axes.set_ylabel(label)
        for axis in {quantity.axis or quantity.metric for quantity in present}:
            same = [column for column, q in enumerate(present) if (q.axis or q.metric) == axis]
            _limits([axes for column in same for axes in grid[:, column]], present[same[0]])
        legend(figure, look)
    return figure


def final_figure(
    runs: pd.DataFrame, items: pd.DataFrame, *, trust_regions: Sequence[str] | None = None
) -> Figure:
    """Test pass@1 of every method: mean with its 95 % interval, a tick per seed, the base as a line."""
    require_one(runs)
    shown = _methods(runs, trust_regions)
    bases, settings = _bases(runs), _settings(runs)
    with styled():
        lines = max(1, len(settings) * len(shown))
        figure, grid = _grid(1, len(bases), width=3.4, height=0.7 + 0.21 * lines, sharey="row")
        look = Look(shown)
        for column, base in enumerate(bases):
            axes = grid[0, column]
            _points(axes, items, base, settings, shown, look)
            axes.set_title(_label(base, bases))
            axes.set_xlabel("test pass@1 (%)")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}"))
        legend(figure, look, base=True)
    return figure


def _points(
    axes: Axes,
    items: pd.DataFrame,
    place: Cell,
    settings: Sequence[Setting],
    shown: Sequence[str],
    look: Look,
) -> None:
    for index, (condition, estimator) in enumerate(settings):
        offsets = np.linspace(-0.22, 0.22, len(shown)) if len(shown) > 1 else [0.0]
        for offset, name in zip(offsets, shown, strict=True):
            cell = Cell(place.model, place.task, condition, estimator, name)
            found, height = interval(items, cell), index + offset
            if found is None:
                continue
            colour = look.colour(name)
            each = scores(items, cell).mean(axis=1).to_numpy()
            axes.plot(each, np.full(each.size, height), "|", color=colour, markersize=5, alpha=0.6)
            axes.plot([found.low, found.high], [height, height], linewidth=1.8, **look.line(name))
            axes.plot(found.estimate, height, look.marker(name), color=colour, markersize=4.5)
    base = interval(items, place)
    if base is not None:
        axes.axvline(base.estimate, linewidth=1.2, zorder=1, **look.line(BASE))
    axes.set_yticks(range(len(settings)), [f"{condition} · {estimator}" for condition, estimator in settings])
    axes.set_ylim(len(settings) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)


def _rows(runs: pd.DataFrame, quantity: Quantity) -> pd.DataFrame:
    return runs[runs["metric"] == quantity.metric]


def _panel(
    axes: Axes, rows: pd.DataFrame, place: Cell, shown: Sequence[str], look: Look, quantity: Quantity
) -> bool:
    """Draws every method's curves; returns whether there were any."""
    drawn = False
    for name in shown:
        table = curve(place.method(name).of(rows), quantity.metric, by_batch=quantity.by_batch)
        if quantity.complement:
            table = 1 - table
        if quantity.scale == "log":
            table = table.where(table > _FLOOR)
        if table.empty or table.isna().all(axis=None):
            continue
        drawn = True
        # Validation is measured on some steps only, and a seed may have stopped early.
        x, values = table.index.to_numpy(dtype=float), table.to_numpy(dtype=float)
        style = look.line(name)
        for seed in values.T:
            known = ~np.isnan(seed)
            axes.plot(x[known], seed[known], linewidth=0.5, alpha=0.35, color=style["color"])
        known = ~np.isnan(values).all(axis=1)
        low, high = np.nanmin(values[known], axis=1), np.nanmax(values[known], axis=1)
        axes.fill_between(x[known], low, high, color=style["color"], alpha=0.13, linewidth=0)
        axes.plot(x[known], np.nanmean(values[known], axis=1), linewidth=1.7, zorder=3, **style)
    if not drawn:
        empty(axes, f"no values above {_FLOOR:g}" if quantity.scale == "log" else "no values")
        return False
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlim(left=0)
    if quantity.scale == "log":
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    if quantity.scale == "share":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    return True


def _bounds(axes: Axes, runs: pd.DataFrame, place: Cell, shown: Sequence[str], look: Look) -> None:
    """A dotted line at the KL bound of every method that has one in its settings."""
    for name in shown:
        rows = place.method(name).of(runs[runs["source"] == "manifest"])
        for value in sorted(set(rows.loc[rows["metric"].str.endswith("/kl_bound"), "value"])):
            axes.axhline(value, color=look.colour(name), linewidth=1, linestyle=(0, (1, 1.5)), zorder=2)


def _limits(panels: Sequence[Axes], quantity: Quantity) -> None:
    """Gives the panels that were drawn one vertical range; shares start at zero."""
    drawn = [axes for axes in panels if axes.lines]
    if not drawn:
        return
    low = min(axes.get_ylim()[0] for axes in drawn)
    high = max(axes.get_ylim()[1] for axes in drawn)
    if quantity.scale == "log" and high < 10 * low:  # less than a decade would make noise look like change
        middle = np.sqrt(low * high)
        low, high = middle / np.sqrt(10), middle * np.sqrt(10)
    for axes in drawn:
        axes.set_ylim(0 if quantity.scale == "share" else low, high)
        if quantity.scale == "log":
            decades = np.log10(high / low)
            axes.yaxis.set_major_locator(LogLocator(subs=(1,) if decades > 1.5 else (1, 2, 5), numticks=12))
            axes.yaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))
            axes.yaxis.set_minor_formatter(NullFormatter())


def _commonest_estimators(runs: pd.DataFrame, most: int) -> list[str]:
    counted = runs.loc[runs["estimator"] != "", ["run_id", "estimator"]].drop_duplicates()["estimator"]
    counts = Counter(map(str, counted))
    return sorted(counts, key=lambda name: (-counts[name], estimator_order(name)))[:most]


def _grid(
    rows: int, columns: int, *, width: float, height: float, sharey: Share = "none", sharex: Share = "none"
) -> tuple[Figure, "np.ndarray[Any, np.dtype[np.object_]]"]:
    """Panels of a given size in inches."""
    size = (width * max(columns, 1) + 0.5, height * max(rows, 1) + 0.3)
    layout = ConstrainedLayoutEngine(w_pad=0.04, h_pad=0.04, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=size, layout=layout)
    grid = figure.subplots(max(rows, 1), max(columns, 1), squeeze=False, sharey=sharey, sharex=sharex)
    return figure, grid


def _bases(runs: pd.DataFrame) -> list[Cell]:
    """The base models of all runs, whether or not they were graded."""
    return sorted({cell.base() for cell in cells(runs) if cell.trust_region != BASE}, key=cell_order)


def _label(base: Cell, bases: Sequence[Cell]) -> str:
    return f"{base.model} · {base.task}" if len({cell.model for cell in bases}) > 1 else base.task


def _settings(runs: pd.DataFrame) -> list[Setting]:
    found = {(cell.condition, cell.estimator) for cell in cells(runs) if cell.trust_region != BASE}
    return sorted(found, key=lambda setting: (setting[0], estimator_order(setting[1])))


def _methods(runs: pd.DataFrame, trust_regions: Sequence[str] | None) -> list[str]:
    present = {cell.trust_region for cell in cells(runs)} - {BASE}
    if trust_regions is not None:
        return [name for name in trust_regions if name in present]
    return Look(name for name in present if variant_of(name) is None).methods


def _base_score(runs: pd.DataFrame, base: Cell) -> float | None:
    rows = base.of(runs)
    values = rows.loc[(rows["source"] == "test") & (rows["metric"] == "pass@1"), "value"]
    return float(values.iloc[0]) if len(values) else None
