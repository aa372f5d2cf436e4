"""Success against divergence of each method and its variants."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

from troll.analysis.data.divergence import late_divergences
from troll.analysis.data.summaries import Cell, cell_order, per_run, variants
from troll.analysis.figures.sensitivity import base_line, measured
from troll.analysis.metrics import SHARE, SUMMARIES, Summary
from troll.analysis.render.formats import percent_tick
from troll.analysis.render.panels import grid, limits, wrapped
from troll.analysis.render.style import MethodStyles, empty, legend, styled

KL = SUMMARIES["late_kl"]
SUCCESS = Summary("pass@1", SHARE, "test pass@1", label="test pass@1 (%)")
_COLUMNS = 3
_BESIDE = (((3, -6.5), "left"), ((-3, 3), "right"), ((3, 3), "left"))
"""Offsets of labels from the marker in points and their alignment, assigned to families in turn."""


@styled()
def frontier_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """Draws test pass@1 against late KL: a panel for each setting in which variants of a rule were run.

    A line joins a method and its variants in the order of their late KL; labels are the suffixes of the
    variants' names. Markers are means over seeds, bars Student's 95 % intervals over seeds. The dotted line
    is the base model.
    """
    summary, defaults = per_run(runs), variants(runs)
    late = late_divergences(summary)
    varied = {cell.with_trust_region("") for cell in late if cell.trust_region in defaults}
    settings = sorted(varied, key=cell_order)
    columns = min(len(settings), _COLUMNS)
    figure, panels = grid(-(-len(settings) // _COLUMNS), columns, width=3.7, height=3.1)
    if not settings:
        empty(panels[0, 0], "no variants were run")
        return figure
    members: dict[tuple[Cell, str], list[Cell]] = {}
    for cell in sorted(late, key=late.__getitem__):
        family = defaults.get(cell.trust_region, cell.trust_region)
        members.setdefault((cell.with_trust_region(""), family), []).append(cell)
    styles = MethodStyles({family for setting, family in members if setting in varied})
    for row, line in enumerate(wrapped(settings, _COLUMNS)):
        for axes, setting in zip(panels[row], line, strict=False):
            for family in styles.methods:
                _draw(axes, family, members.get((setting, family), ()), summary, items, styles)
            _finish(axes, setting, settings, items, styles)
        limits([axes for axes in panels[row] if axes.lines], SUCCESS)
    for axes in panels.flat[len(settings) :]:
        axes.set_axis_off()
    legend(figure, styles, base=True, marked=True)
    return figure


def _draw(
    axes: Axes,
    family: str,
    members: Sequence[Cell],
    summary: pd.DataFrame,
    items: pd.DataFrame,
    styles: MethodStyles,
) -> None:
    points = []
    for cell in members:
        drift, success = (measured(cell, measure, summary, items) for measure in (KL, SUCCESS))
        if not np.isnan(success[0]):
            points.append((cell, drift, success))
    if not points:
        return
    colour = styles.colour(family)
    offset, side = _BESIDE[styles.methods.index(family) % len(_BESIDE)]
    for cell, (kl, least_kl, most_kl), (mean, low, high) in points:
        # Added as an artist, the line does not widen the axes: an interval that reaches zero ends at the
        # edge.
        axes.add_artist(Line2D([least_kl, most_kl], [mean] * 2, linewidth=0.6, color=colour, alpha=0.5))
        axes.vlines(kl, low, high, linewidth=0.9, color=colour, alpha=0.7)
        if cell.trust_region != family:
            label, place = cell.trust_region.removeprefix(f"{family}-"), (kl, mean)
            text: dict[str, Any] = {"ha": side, "fontsize": 5.5, "color": colour}
            axes.annotate(label, place, offset, textcoords="offset points", **text)
    x, y = [drift[0] for _, drift, _ in points], [success[0] for _, _, success in points]
    style = styles.line(family) | {"marker": styles.marker(family), "markersize": 4}
    axes.plot(x, y, linewidth=1.2, zorder=3, **style)


def _finish(
    axes: Axes, setting: Cell, settings: Sequence[Cell], items: pd.DataFrame, styles: MethodStyles
) -> None:
    base_line(axes, items, setting, styles)
    parts = ("model", "task", "condition", "estimator")
    varying = [part for part in parts if len({getattr(cell, part) for cell in settings}) > 1]
    axes.set_title(" · ".join(getattr(setting, part) for part in varying or ("task",)))
    axes.set_xscale("log")
    axes.margins(x=0.1)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=9))
    axes.xaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(KL.label)
    axes.set_ylabel(SUCCESS.label)
    axes.yaxis.set_major_formatter(percent_tick)
