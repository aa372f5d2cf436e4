"""Differences from the baseline by kind of model: a mark for each base model, a line for their mean."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from troll.analysis.data.summaries import BASELINE, Cell, difference, require_one
from troll.analysis.render.formats import points_tick
from troll.analysis.render.panels import grid
from troll.analysis.render.style import MethodStyles, empty, styled
from troll.analysis.tables.base_models import compared_cells, kinds_of

_SPREAD = 0.6
"""Width that the base models of a kind take, of the one between kinds."""


def base_models_figure(runs: pd.DataFrame, items: pd.DataFrame, *, baseline: str = BASELINE) -> Figure:
    """Test pass@1 minus the baseline's: a row for each condition and estimator, a column for each task."""
    require_one(runs)
    kinds, compared = kinds_of(runs), compared_cells(runs, items, baseline)
    places = list(dict.fromkeys((cell.condition, cell.estimator) for cell in compared))
    tasks = sorted({cell.task for cell in compared})
    names = list(dict.fromkeys(kinds[cell.model] for cell in compared))
    several = len({estimator for _, estimator in places}) > 1
    with styled():
        figure, panels = grid(len(places), len(tasks), width=3.0, height=2.1, sharey="row")
        if not compared:
            empty(panels[0, 0], "no base models that differ by their seed alone")
            return figure
        styles = MethodStyles({cell.trust_region for cell in compared} | {baseline})
        for row, place in enumerate(places):
            for column, task in enumerate(tasks):
                axes = panels[row, column]
                here = [
                    cell for cell in compared if (cell.condition, cell.estimator, cell.task) == (*place, task)
                ]
                _panel(
                    axes, items, here, {name: names.index(name) for name in names}, kinds, styles, baseline
                )
                axes.set_title(" · ".join([task, *(place if several else place[:1])]))
            panels[row, 0].set_ylabel(f"difference from {baseline} (points)")
        _legend(figure, styles, baseline)
    return figure


def _panel(
    axes: Axes,
    items: pd.DataFrame,
    here: list[Cell],
    position: dict[str, int],
    kinds: dict[str, str],
    styles: MethodStyles,
    baseline: str,
) -> None:
    axes.axhline(0, color="#1c1c1c", linewidth=0.8, zorder=1)
    for name, centre in position.items():
        members = [cell for cell in here if kinds[cell.model] == name]
        places = np.linspace(-_SPREAD / 2, _SPREAD / 2, len(members) + 2)[1:-1] + centre
        means: dict[str, list[float]] = {}
        for x, cell in zip(places, sorted(members, key=lambda cell: cell.model), strict=True):
            gap = difference(items, cell, cell.with_trust_region(baseline))
            if gap is None:
                continue
            colour = styles.colour(cell.trust_region)
            means.setdefault(cell.trust_region, []).append(gap.estimate)
            axes.plot([x, x], [gap.low, gap.high], color=colour, linewidth=1.2, zorder=2)
            axes.plot(
                x, gap.estimate, styles.marker(cell.trust_region), color=colour, markersize=4.5, zorder=3
            )
        for method, values in means.items():
            ends = [centre - _SPREAD / 2, centre + _SPREAD / 2]
            axes.plot(
                ends, [np.mean(values)] * 2, color=styles.colour(method), linewidth=2.4, alpha=0.45, zorder=2
            )
    axes.set_xticks(list(position.values()), list(position))
    axes.set_xlim(-0.6, len(position) - 0.4)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_formatter(FuncFormatter(points_tick))


def _legend(figure: Figure, styles: MethodStyles, baseline: str) -> None:
    shown = [name for name in styles.methods if name != baseline]
    handles = [
        Line2D([], [], color=styles.colour(name), marker=styles.marker(name), markersize=4.5, linewidth=1.2)
        for name in shown
    ]
    handles.append(Line2D([], [], color="#6b6b6b", linewidth=2.4, alpha=0.45))
    labels = [*(f"{name}, one base model" for name in shown), "mean of the base models"]
    figure.legend(handles, labels, loc="outside upper center", ncols=len(handles), handlelength=2.2)
