"""Forest plot: a line for every difference from the baseline, and their averages as diamonds."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon

from troll.analysis.data.summaries import (
    BASELINE,
    METHOD,
    Cell,
    cell_order,
    condition_order,
    seed_differences,
    variants,
)
from troll.analysis.data.tidy import GROUP
from troll.analysis.pooling import LEAST_SETTINGS, PREDICTION, Pooled, pool
from troll.analysis.render.formats import points, points_tick
from troll.analysis.render.style import MethodStyles, empty, styled
from troll.analysis.statistics import sd
from troll.analysis.tables.comparisons import comparison_family

_LINE, _WIDTH = 0.17, 6.6
_LONGEST = 60
"""Maximum rows of a column; further conditions are placed in columns side by side."""
_DIAMOND = "#3b3b3b"
_PREDICTED = "#b9b9b9"


@dataclass(frozen=True)
class Line:
    """One setting's difference from the baseline, as a share, with its 95 % interval."""

    cell: Cell
    difference: float
    low: float
    high: float
    seeds: int
    variance: float


def forest_lines(runs: pd.DataFrame, items: pd.DataFrame) -> list[Line]:
    """Returns the unique settings of experiments, without variants of rules, in display order."""
    family = comparison_family(runs, items)
    names = dict.fromkeys(map(str, runs["experiment"]))
    varied = {name: variants(runs[runs["experiment"] == name]) for name in names}
    lines = []
    for row in family.to_dict("records"):
        cell = Cell(**{name: str(row[name]) for name in GROUP})
        if cell.trust_region in varied[row["experiment"]] or row["against"] != BASELINE:
            continue
        experiment_items = items[items["experiment"] == row["experiment"]]
        differences = seed_differences(experiment_items, cell, cell.with_trust_region(BASELINE))
        ends = row["difference"], row["difference_low"], row["difference_high"]
        lines.append(Line(cell, *ends, row["seeds"], sd(differences) ** 2 / max(differences.size, 1)))
    return sorted(lines, key=lambda line: (condition_order(line.cell.condition), cell_order(line.cell)))


def averages(lines: Sequence[Line]) -> dict[str, Pooled]:
    """Returns TROLL's averages by condition with at least three settings; else over all, named ""."""
    of_method = [line for line in lines if line.cell.trust_region == METHOD and line.seeds > 1]
    groups = {
        name: [line for line in of_method if line.cell.condition == name] for name in _conditions(of_method)
    }
    groups = {name: group for name, group in groups.items() if len(group) >= LEAST_SETTINGS}
    if not groups and len(of_method) >= LEAST_SETTINGS:
        groups = {"": of_method}
    return {
        name: pool([line.difference for line in group], [line.variance for line in group])
        for name, group in groups.items()
    }


def _conditions(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line.cell.condition for line in lines))


@styled()
def forest_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """Draws differences from the baseline in test pass@1 by setting, and their averages by condition."""
    lines = forest_lines(runs, items)
    pooled = averages(lines)
    columns = _columns(lines, pooled)
    rows = max(map(sum, (column.values() for column in columns)), default=0)
    size = (_WIDTH * max(1, len(columns)), max(1.6, 0.75 + _LINE * (rows + 1)))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, max(1, len(columns)), sharex=True, squeeze=False)[0]
    if not lines:
        empty(panels[0], "no runs")
        return figure
    styles = MethodStyles({line.cell.trust_region for line in lines} | {BASELINE})
    several = {name for name in GROUP if len({getattr(line.cell, name) for line in lines}) > 1}
    for axes, column in zip(panels, columns, strict=True):
        members = [line for line in lines if line.cell.condition in column]
        means = {name: mean for name, mean in pooled.items() if name in column}
        _draw(axes, members, means, styles, several)
        axes.set_ylim(rows - 0.4, -0.6)
    _legend(figure, styles, averaged=bool(pooled))
    return figure


def _columns(lines: Sequence[Line], pooled: Mapping[str, Pooled]) -> list[dict[str, int]]:
    """Returns the conditions of each column with their numbers of rows; "" is the average of all settings."""
    count = Counter(line.cell.condition for line in lines)
    rows = {name: 1 + count[name] + (name in pooled) for name in _conditions(lines)}
    rows |= {"": 1} if "" in pooled else {}
    total = sum(rows.values())
    columns: list[dict[str, int]] = [{} for _ in range(-(-total // _LONGEST))]
    above = 0
    for name, height in rows.items():
        columns[(2 * above + height) * len(columns) // (2 * total)][name] = height
        above += height
    return [column for column in columns if column]


def _draw(
    axes: Axes,
    lines: Sequence[Line],
    pooled: Mapping[str, Pooled],
    styles: MethodStyles,
    several: Collection[str],
) -> None:
    rows: list[tuple[str, str, bool]] = []  # left label, right label, whether it is a heading
    axes.axvline(0, color="#1c1c1c", linewidth=0.8, zorder=1)
    coordinates = [name for name in ("model", "task", "estimator", "trust_region") if name in several]
    for condition in _conditions(lines):
        rows.append((condition, "", True))
        for line in (line for line in lines if line.cell.condition == condition):
            _line(axes, len(rows), line, styles)
            name = " · ".join(getattr(line.cell, part) for part in coordinates) or line.cell.task
            rows.append((name, _interval_text(line.difference, line.low, line.high), False))
        if condition in pooled:
            rows.append(("average", _diamond(axes, len(rows), pooled[condition]), False))
    if "" in pooled:
        rows.append(("average of all settings", _diamond(axes, len(rows), pooled[""]), True))
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    for label, (_, _, heading) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if heading else "normal")
    axes.tick_params(axis="y", length=0)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(rows)), [number for _, number, _ in rows])
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(points_tick)
    axes.set_xlabel(f"test pass@1, difference from {BASELINE} (points)")


def _interval_text(middle: float, low: float, high: float) -> str:
    if np.isnan(low):
        return points(middle)
    return f"{points(middle)} [{points(low)}, {points(high)}]"


def _line(axes: Axes, row: int, line: Line, styles: MethodStyles) -> None:
    colour, marker = styles.colour(line.cell.trust_region), styles.marker(line.cell.trust_region)
    single = line.seeds < 2  # its interval would be over problems
    if not single:
        axes.plot([line.low, line.high], [row] * 2, color=colour, linewidth=1.6, zorder=2)
    style: dict[str, Any] = {
        "color": colour,
        "markersize": 4.5,
        "markerfacecolor": "white" if single else colour,
    }
    axes.plot(line.difference, row, marker, zorder=3, **style)


def _diamond(axes: Axes, row: int, pooled: Pooled) -> str:
    """Draws an average as a diamond as wide as its interval, on a line for the prediction interval.

    Returns:
        The average as text.
    """
    if not np.isnan(pooled.predicted_low):
        ends = [pooled.predicted_low, pooled.predicted_high]
        axes.plot(ends, [row] * 2, color=_PREDICTED, linewidth=3, zorder=2, solid_capstyle="butt")
    x = (pooled.low, pooled.estimate, pooled.high, pooled.estimate)
    corners = list(zip(x, (row, row - 0.33, row, row + 0.33), strict=True))
    axes.add_patch(Polygon(corners, closed=True, facecolor=_DIAMOND, edgecolor=_DIAMOND, zorder=4))
    return _interval_text(pooled.estimate, pooled.low, pooled.high)


def _legend(figure: Figure, styles: MethodStyles, *, averaged: bool) -> None:
    labels = [name for name in styles.methods if name != BASELINE]
    handles = [styles.mark(name, 1.6) for name in labels]
    if averaged:
        handles += [
            Line2D([], [], linestyle="", marker="D", color=_DIAMOND, markersize=5),
            Line2D([], [], color=_PREDICTED, linewidth=3),
        ]
        labels += ["average, 95 % interval", PREDICTION]
    figure.legend(handles, labels, loc="outside upper center", ncols=3, handlelength=2.2)
