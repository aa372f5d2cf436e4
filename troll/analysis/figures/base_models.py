"""Differences from the baseline by kind of model: a marker per base model, a line for their mean."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from troll.analysis.data.summaries import BASELINE, Cell, difference
from troll.analysis.render.formats import points_tick
from troll.analysis.render.panels import grid
from troll.analysis.render.style import MethodStyles, empty, styled
from troll.analysis.tables.base_models import compared_cells, kinds_of

_SPREAD = 0.6
"""Width of a kind's base models, as a share of the distance between kinds."""


@styled()
def base_models_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """Draws pass@1 minus the baseline's: a row per condition and estimator, a column per task."""
    kinds, compared = kinds_of(runs), compared_cells(runs, items)
    places = list(dict.fromkeys((cell.condition, cell.estimator) for cell in compared))
    tasks = sorted({cell.task for cell in compared})
    names = list(dict.fromkeys(kinds[cell.model] for cell in compared))
    several = len({estimator for _, estimator in places}) > 1
    figure, panels = grid(len(places), len(tasks), width=3.0, height=2.1, sharey="row")
    if not compared:
        empty(panels[0, 0], "no base models that differ by their seed alone")
        return figure
    styles = MethodStyles({cell.trust_region for cell in compared} | {BASELINE})
    for row, place in enumerate(places):
        for column, task in enumerate(tasks):
            axes, setting = panels[row, column], (*place, task)
            group = [cell for cell in compared if (cell.condition, cell.estimator, cell.task) == setting]
            _panel(axes, items, group, names, kinds, styles)
            axes.set_title(" · ".join([task, *(place if several else place[:1])]))
        panels[row, 0].set_ylabel(f"difference from {BASELINE} (points)")
    _legend(figure, styles)
    return figure


def _panel(
    axes: Axes,
    items: pd.DataFrame,
    group: list[Cell],
    names: list[str],
    kinds: dict[str, str],
    styles: MethodStyles,
) -> None:
    axes.axhline(0, color="#1c1c1c", linewidth=0.8, zorder=1)
    for centre, name in enumerate(names):
        members = [cell for cell in group if kinds[cell.model] == name]
        places = np.linspace(-_SPREAD / 2, _SPREAD / 2, len(members) + 2)[1:-1] + centre
        means: dict[str, list[float]] = {}
        for x, cell in zip(places, sorted(members, key=lambda cell: cell.model), strict=True):
            gap = difference(items, cell, cell.with_trust_region(BASELINE))
            if gap is None:
                continue
            colour, marker = styles.colour(cell.trust_region), styles.marker(cell.trust_region)
            means.setdefault(cell.trust_region, []).append(gap.estimate)
            axes.plot([x, x], [gap.low, gap.high], color=colour, linewidth=1.2, zorder=2)
            axes.plot(x, gap.estimate, marker, color=colour, markersize=4.5, zorder=3)
        for method, values in means.items():
            ends, height = [centre - _SPREAD / 2, centre + _SPREAD / 2], np.mean(values)
            axes.plot(ends, [height] * 2, color=styles.colour(method), linewidth=2.4, alpha=0.45, zorder=2)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_formatter(points_tick)


def _legend(figure: Figure, styles: MethodStyles) -> None:
    shown = [name for name in styles.methods if name != BASELINE]
    handles = [styles.mark(name, 1.2) for name in shown]
    handles.append(Line2D([], [], color="#6b6b6b", linewidth=2.4, alpha=0.45))
    labels = [*(f"{name}, one base model" for name in shown), "mean of the base models"]
    figure.legend(handles, labels, loc="outside upper center", ncols=len(handles), handlelength=2.2)
