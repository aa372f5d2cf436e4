"""Sensitivity to settings: test success and training behaviour against the value of a setting."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from troll.analysis.data.axes import AXES, Axis, Line, lines
from troll.analysis.data.summaries import Cell, estimator_order, interval, per_run
from troll.analysis.data.tidy import BASE
from troll.analysis.metrics import SHARE, SUMMARIES, Summary
from troll.analysis.render.formats import percent_tick
from troll.analysis.render.panels import grid, limits
from troll.analysis.render.style import MethodStyles, empty, legend, styled
from troll.analysis.statistics import seed_interval

_LEAST_LOG = 1e-12
_DIGIT = 0.03
"""Width of a digit of a tick label, as a share of the panel's width."""
MEASURES = (
    Summary("pass@1", SHARE, "test pass@1", label="test pass@1 (%)", scale="share"),
    *(SUMMARIES[name] for name in ("max_drawdown", "late_kl", "entropy")),
)


@styled()
def sensitivity_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """Draws every varied setting: a row per model, task, estimator and setting, a column per measure.

    Markers are means over seeds, bars Student's 95 % intervals over seeds. The dotted line is the base model.
    """
    rows = [(setting, axis, members) for axis in AXES for setting, members in lines(runs, axis).items()]
    rows.sort(key=lambda row: (AXES.index(row[1]), *row[0][:2], estimator_order(row[0][2])))
    summary = per_run(runs)
    figure, panels = grid(len(rows), len(MEASURES) if rows else 1, width=2.25, height=1.75)
    if not rows:
        empty(panels[0, 0], "no setting was varied")
        return figure
    styles = MethodStyles({line.family for _, _, members in rows for line in members})
    several = len({setting for setting, _, _ in rows}) > 1
    for row, (setting, axis, members) in enumerate(rows):
        for column, measure in enumerate(MEASURES):
            axes = panels[row, column]
            for line in members:
                _draw(axes, line, measure, summary, items, styles, name_it=len(members) > 1)
            _finish(axes, axis, members, measure)
            if measure.name == "pass@1":
                base_line(axes, items, members[0].points[0][1], styles)
            if row == 0:
                axes.set_title(measure.label)
            if column == 0 and several:
                axes.set_ylabel(" · ".join(setting[1:]))
    for column, measure in enumerate(MEASURES):
        limits(list(panels[:, column]), measure)
    legend(figure, styles, base=True, marked=True)
    return figure


def _draw(
    axes: Axes,
    line: Line,
    measure: Summary,
    summary: pd.DataFrame,
    items: pd.DataFrame,
    styles: MethodStyles,
    *,
    name_it: bool,
) -> None:
    x = [value for value, _ in line.points]
    triples = [measured(cell, measure, summary, items) for _, cell in line.points]
    mean, low, high = (np.array(part) for part in zip(*triples, strict=True))
    if np.isnan(mean).all():
        return
    style = styles.line(line.family)
    bar: dict[str, Any] = {"linewidth": 1.2, "color": style["color"], "zorder": 2}
    axes.plot(x, mean, linewidth=1.6, marker=styles.marker(line.family), markersize=4, zorder=3, **style)
    axes.vlines(x, mean, high, **bar)
    for position, least, middle in zip(x, low, mean, strict=True):
        # Added as an artist, the bar does not widen the axis: if it reaches zero, it ends at the edge.
        axes.add_artist(Line2D([position] * 2, [least, middle], **bar))
    if name_it and line.label:
        where = (float(x[-1]), float(mean[-1]))
        axes.annotate(line.label, where, (4, 0), textcoords="offset points", fontsize=6, va="center")


def measured(
    cell: Cell, measure: Summary, summary: pd.DataFrame, items: pd.DataFrame
) -> tuple[float, float, float]:
    """Returns the mean over the seeds of a cell with its 95 % interval; NaN without values."""
    if measure.name == "pass@1":
        success = interval(items, cell)
        return (success.estimate, success.low, success.high) if success else (np.nan, np.nan, np.nan)
    values = np.asarray(cell.rows(summary).get(measure.name, ()), dtype=float)
    values = values[~np.isnan(values)]
    if not values.size:
        return np.nan, np.nan, np.nan
    over = seed_interval(values)
    least = _LEAST_LOG if measure.scale == "log" else -np.inf  # a logarithmic axis has no zero
    return over.estimate, max(over.low, least), over.high


def _finish(axes: Axes, axis: Axis, members: Sequence[Line], measure: Summary) -> None:
    values = sorted({value for line in members for value, _ in line.points})
    if values[0] > 0:
        axes.set_xscale("log")
        axes.set_xlim(values[0] / 1.6, values[-1] * 1.6)
        gaps = np.diff(np.log(values)) / np.log(values[-1] / values[0] * 1.6**2)
        digits = [max(len(f"{value:.4g}") for value in pair) for pair in pairwise(values)]
        if (gaps < _DIGIT * np.array(digits)).any():
            axes.tick_params(axis="x", labelrotation=45)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
    axes.set_xlabel(axis.label)
    if measure.scale == "log":
        axes.set_yscale("log")
    if measure.scale == "share":
        axes.yaxis.set_major_formatter(percent_tick)


def base_line(axes: Axes, items: pd.DataFrame, cell: Cell, styles: MethodStyles) -> None:
    """Draws a line at the success of a cell's base model, if it was graded."""
    base = interval(items, cell.base_model())
    if base is not None:
        axes.axhline(base.estimate, linewidth=1.2, zorder=1, **styles.line(BASE))
