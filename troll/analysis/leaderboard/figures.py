"""The figure of a protocol's contrasts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from matplotlib.ticker import FuncFormatter

from troll.analysis.data.results import Results
from troll.analysis.leaderboard.contrasts import MEAN, fresh_values
from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.render.formats import points_tick
from troll.analysis.render.style import styled

_SEEDS: Mapping[str, Any] = {"color": "#9a9a9a", "markersize": 2.2, "zorder": 2}


@styled()
def contrasts_figure(table: pd.DataFrame, final: Sequence[Results], protocol: Protocol) -> Figure:
    """Draws the first endpoint by contrast: seeds and mean of each task, the mean of the tasks as a diamond.

    The margin is shaded.
    """
    comparison = protocol.comparison
    values = fresh_values(final, protocol, comparison.endpoints[0])
    contrasts, margin = comparison.contrasts, 100 * comparison.margin
    rows = table[table["endpoint"] == table["endpoint"].iloc[0]]
    figure = Figure(figsize=(2.9 * len(contrasts) + 0.6, 2.7), layout="constrained")
    panels = np.ravel(figure.subplots(1, len(contrasts), sharex=True, sharey=True))
    for axes, contrast in zip(panels, contrasts, strict=True):
        of_pair = rows[(rows["method"] == contrast.method) & (rows["baseline"] == contrast.baseline)]
        by_task = 100 * (values[contrast.method] - values[contrast.baseline])
        axes.axvspan(-margin, margin, color="#ececec", zorder=0)
        axes.axvline(0, color="#1c1c1c", linewidth=0.8, zorder=1)
        for place, (task, seeds) in enumerate(by_task.items()):
            axes.plot(seeds, place + np.linspace(0.14, 0.36, len(seeds)), "o", **_SEEDS)
            row = of_pair[of_pair["analysis"] == f"{task} alone"].iloc[0]
            _draw_interval(axes, _in_points(row), place, "s", "#1c1c1c", 3)
        row, place = of_pair[of_pair["analysis"] == MEAN].iloc[0], by_task.shape[1]
        middle, low, high = _in_points(row)
        corners = [(low, place), (middle, place - 0.2), (high, place), (middle, place + 0.2)]
        axes.add_patch(Polygon(corners, facecolor="#0b4f8a", edgecolor="none", zorder=3))
        heights = place + np.linspace(0.26, 0.48, len(by_task))
        axes.plot(by_task.mean(axis=1), heights, "o", **_SEEDS)
        tasks = list(map(str, by_task.columns))
        axes.set_yticks(range(len(tasks) + 1), [*tasks, "mean of\nthe tasks"])
        axes.set_ylim(len(tasks) + 0.6, -0.4)
        axes.set_title(f"{contrast.method} minus {contrast.baseline}")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, at: points_tick(value / 100, at)))
    figure.supxlabel(f"{rows['endpoint'].iloc[0]} (points)", fontsize=8)
    return figure


def _in_points(row: "Mapping[Any, Any] | pd.Series[Any]") -> tuple[float, float, float]:
    """Returns a difference and its interval in percentage points."""
    return 100 * row["difference"], 100 * row["difference_low"], 100 * row["difference_high"]


def _draw_interval(
    axes: Axes, points: tuple[float, float, float], place: float, marker: str, colour: str, zorder: float
) -> None:
    value, low, high = points
    axes.errorbar(
        value,
        place,
        xerr=[[value - low], [high - value]],
        fmt=marker,
        color=colour,
        markersize=4,
        linewidth=1.2,
        capsize=2,
        zorder=zorder,
    )
