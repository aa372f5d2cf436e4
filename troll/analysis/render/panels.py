"""Panels of curves in a grid, and their shared limits.

A panel has a thin line per seed, a thick line for the mean and a band from the smallest to the largest seed.
Values that are measured once per rollout batch are drawn at its first update; the value of the last batch is
drawn until the last update.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter

from troll.analysis.data.reduction import SUMMARY
from troll.analysis.data.settings import settings_by
from troll.analysis.data.summaries import Cell, curve
from troll.analysis.metrics import Metric, Summary
from troll.analysis.render.formats import percent_tick
from troll.analysis.render.style import MethodStyles, empty

Share = Literal["none", "row", "col"]
T = TypeVar("T")
FLOOR = 1e-8
"""Smaller differences of float32 probabilities are rounding errors, which would fill a logarithmic axis."""
_TRAIN_S, _CPU_S = f"{SUMMARY}/train_s", f"{SUMMARY}/cpu_s"


@dataclass(frozen=True)
class Across:
    """The horizontal axis: optimiser steps, or the mean time at which the seeds reached a step."""

    label: str = "optimiser steps"  # of the axis, with the unit
    seconds: float | None = None  # seconds per unit of time; None for steps


STEPS = Across()


def rows_of(runs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Returns a metric's rows, with step and time of their run's end: ``last_step`` and ``last_s``."""
    ends = runs.loc[runs["metric"] == _TRAIN_S].set_index("run_id")
    last = ends[["step", "value"]].rename(columns={"step": "last_step", "value": "last_s"})
    return runs[runs["metric"] == metric.name].join(last, on="run_id")


def panel(
    axes: Axes,
    rows: pd.DataFrame,
    setting: Cell,
    shown: Sequence[str],
    styles: MethodStyles,
    metric: Metric,
    across: Across = STEPS,
    spread: bool = True,
) -> bool:
    """Draws every method's curves, or that there are none; returns whether any curve was drawn."""
    drawn = False
    for name in shown:
        cell_rows = setting.with_trust_region(name).rows(rows)
        table = _to_last_update(cell_rows, curve(cell_rows, metric.name))
        if metric.complement:
            table = 1 - table
        if metric.scale == "log":
            table = table.where(table > FLOOR)
        if table.empty or table.isna().all(axis=None):
            continue
        drawn = True
        # Validation is measured on some steps only, and a seed may have stopped early.
        x, values = _positions(cell_rows, table, across), table.to_numpy(dtype=float)
        style = styles.line(name)
        steps_with_values = ~np.isnan(values).all(axis=1)
        at, present = x[steps_with_values], values[steps_with_values]
        if spread:
            for seed in values.T:
                measured = ~np.isnan(seed)
                axes.plot(x[measured], seed[measured], linewidth=0.5, alpha=0.35, color=style["color"])
            low, high = np.nanmin(present, axis=1), np.nanmax(present, axis=1)
            axes.fill_between(at, low, high, color=style["color"], alpha=0.13, linewidth=0)
        # Dashed lines are drawn above solid ones, so that both are visible where they coincide.
        order = 3.0 if style["linestyle"] == "solid" else 3.5
        axes.plot(at, np.nanmean(present, axis=1), linewidth=1.7, zorder=order, **style)
    if not drawn:
        empty(axes, f"no values above {FLOOR:g}" if metric.scale == "log" else "no values")
        return False
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=across.seconds is None))
    axes.set_xlim(left=0)
    if metric.scale == "log":
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    if metric.scale == "share":
        axes.yaxis.set_major_formatter(percent_tick)
    return True


def _to_last_update(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Returns a curve with the values of the last batch drawn until the last update."""
    train = rows[rows["source"] == "train"] if len(rows) else rows
    if table.empty or train.empty:
        return table
    last = int(train["last_step"].max())
    if last <= table.index.max():
        return table
    return pd.concat([table, table.iloc[[-1]].set_axis([last])])


def _positions(rows: pd.DataFrame, table: pd.DataFrame, across: Across) -> "np.ndarray[Any, Any]":
    if across.seconds is None:
        return table.index.to_numpy(dtype=float)
    reached = rows.groupby("step")["wall_s"].mean().reindex(table.index)
    ends = rows.groupby("last_step")["last_s"].mean().reindex(table.index)
    reached = reached.fillna(ends)
    return reached.to_numpy(dtype=float) / across.seconds


def by_processor(runs: pd.DataFrame) -> pd.DataFrame | None:
    """Returns the runs with processor time instead of wall-clock time; None if a run used a GPU or lacks it.

    Runs without a GPU often share their processor with others, which distorts their wall-clock time;
    processor time is meaningless for work done on a GPU.
    """
    train = runs[runs["source"] == "train"]
    gpus = runs.loc[(runs["source"] == "manifest") & (runs["metric"] == "gpus")]
    rows = train[train["metric"] == "time/cpu_s"]
    everything = set(train["run_id"])
    recorded = everything <= set(gpus["run_id"]) and everything <= set(rows["run_id"])
    if (gpus["value"] > 0).any() or not recorded:
        return None
    clock = rows.set_index(["run_id", "step"])["value"].rename("clock")
    timed = runs.join(clock, on=["run_id", "step"])
    timed = timed.assign(wall_s=timed.pop("clock"))
    spent = timed[timed["metric"] == _CPU_S].set_index("run_id")["value"]
    ends = timed["metric"] == _TRAIN_S
    timed.loc[ends, "value"] = timed.loc[ends, "run_id"].map(spent).astype(float)
    return timed


def time_axis(runs: pd.DataFrame, clock: str = "wall-clock") -> Across:
    """Returns a time axis in the largest unit of which the longest run takes at least two."""
    longest = float(runs.loc[runs["metric"] == _TRAIN_S, "value"].max())
    for name, seconds in (("hours", 3600.0), ("minutes", 60.0)):
        if longest >= 2 * seconds:
            return Across(f"{clock} {name}", seconds)
    return Across(f"{clock} seconds", 1.0)


def bounds(axes: Axes, runs: pd.DataFrame, setting: Cell, shown: Sequence[str], styles: MethodStyles) -> None:
    """Draws a dotted line at the KL bound of every method that has one in its settings."""
    for name in shown:
        recorded = settings_by(setting.with_trust_region(name).rows(runs), ["run_id"])
        bound = {float(settings.get("trust_region/settings/kl_bound", "nan")) for _, settings in recorded}
        for value in sorted(value for value in bound if value == value):
            axes.axhline(value, color=styles.colour(name), linewidth=1, linestyle=(0, (1, 1.5)), zorder=2)


def limits(panels: Sequence[Axes], metric: Metric | Summary) -> None:
    """Sets a common vertical range for all panels with curves; shares start at zero."""
    drawn = [axes for axes in panels if axes.lines]
    if not drawn:
        return
    low = min(axes.get_ylim()[0] for axes in drawn)
    high = max(axes.get_ylim()[1] for axes in drawn)
    if metric.scale == "linear":  # a margin keeps lines along the edge visible
        low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    if (
        metric.scale == "log" and high < 10 * low
    ):  # at least a decade, so that noise does not look like change
        middle = np.sqrt(low * high)
        low, high = middle / np.sqrt(10), middle * np.sqrt(10)
    for axes in drawn:
        axes.set_ylim(0 if metric.scale == "share" else low, high)
        if metric.scale == "log":
            decades = np.log10(high / low)
            axes.yaxis.set_major_locator(LogLocator(subs=(1,) if decades > 2 else (1, 2, 5), numticks=12))
            axes.yaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))
            axes.yaxis.set_minor_formatter(NullFormatter())


def grid(
    rows: int,
    columns: int,
    *,
    width: float,
    height: float | Sequence[float],
    sharey: Share = "none",
    sharex: Share = "none",
) -> tuple[Figure, "np.ndarray[Any, Any]"]:
    """Returns a figure with panels of a given size in inches; heights may differ by row."""
    heights = [height] * max(rows, 1) if isinstance(height, int | float) else list(height)
    size = (width * max(columns, 1) + 0.5, sum(heights) + 0.3)
    layout = ConstrainedLayoutEngine(w_pad=0.04, h_pad=0.04, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=size, layout=layout)
    shape = len(heights), max(columns, 1)
    panels = figure.subplots(*shape, squeeze=False, sharey=sharey, sharex=sharex, height_ratios=heights)
    return figure, panels


def wrapped(panels: Sequence[T], columns: int) -> list[Sequence[T]]:
    """Panels in reading order, in rows of ``columns`` panels."""
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def blocks_of(rows: int, columns: int, width: float, height: float) -> int:
    """Number of side-by-side blocks of rows that makes the figure most nearly square."""
    return min(
        range(1, max(rows, 1) + 1),
        key=lambda blocks: max(blocks * columns * width, -(-rows // blocks) * height),
    )
