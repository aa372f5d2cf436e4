"""Heat maps of success, and of its difference from the baseline, by learning rate and staleness."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from troll.analysis.data.axes import AXES, recorded
from troll.analysis.data.summaries import BASELINE, Cell, difference, interval, method_order, trained_cells
from troll.analysis.registry import crossed
from troll.analysis.render.formats import MINUS, points, scientific
from troll.analysis.render.panels import grid
from troll.analysis.render.style import empty, styled
from troll.analysis.statistics import Array, Interval

_Place = tuple[str, str, str]
_Stale = tuple[float, float]
_RATE, _STEPS, _LAG = (
    next(axis for axis in AXES if axis.name == name) for name in ("learning_rate", "staleness", "policy_lag")
)
_DARK = 0.6
"""Position on the colour scale above which numbers are white."""
_LEAST_SPAN = 0.05


@dataclass(frozen=True)
class Grid:
    """The cells of one setting by learning rate and staleness."""

    rates: tuple[float, ...]  # columns, ascending
    # rows: optimiser steps per rollout batch, and policy lag in batches; ascending
    stale: tuple[_Stale, ...]
    methods: tuple[str, ...]  # in display order
    cells: Mapping[tuple[str, float, _Stale], Cell]  # by method, rate and staleness


def grids(runs: pd.DataFrame) -> dict[_Place, Grid]:
    """Returns grids by model, task and estimator, of methods with `crossed` rate and staleness."""
    by_place: dict[_Place, dict[tuple[str, float, _Stale], Cell]] = {}
    for cell in trained_cells(runs):
        settings = recorded(runs, cell)
        rate, steps = _RATE.value(settings), _STEPS.value(settings)
        if rate is not None and steps is not None:
            key = (cell.trust_region, rate, (steps, _LAG.value(settings) or 0.0))
            by_place.setdefault((cell.model, cell.task, cell.estimator), {}).setdefault(key, cell)
    by_setting = {}
    for place, by_key in by_place.items():
        methods = [
            name
            for name in sorted({name for name, _, _ in by_key}, key=method_order)
            if crossed((rate, stale) for method, rate, stale in by_key if method == name)
        ]
        if methods:
            cells_of_methods = {key: cell for key, cell in by_key.items() if key[0] in methods}
            rates, stale = (tuple(sorted({key[part] for key in cells_of_methods})) for part in (1, 2))
            by_setting[place] = Grid(rates, stale, tuple(methods), cells_of_methods)  # type: ignore[arg-type]
    return by_setting


@styled()
def heat_map_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """Draws two rows per model, task and estimator: pass@1, and its difference from the baseline.

    Numbers are means over seeds, in percent and in points. Differences whose 95 % interval excludes zero are
    bold.
    """

    def against_baseline(cell: Cell) -> Interval | None:
        return difference(items, cell, cell.with_trust_region(BASELINE))

    all_grids = grids(runs)
    sizes = [(len(part.methods), len(part.rates), len(part.stale)) for part in all_grids.values()]
    columns, rates, stale = map(max, zip(*(sizes or [(1, 1, 1)]), strict=True))
    figure, panels = grid(2 * len(all_grids), columns, width=0.42 * rates + 0.35, height=0.3 * stale + 0.6)
    if not all_grids:
        empty(panels[0, 0], "learning rate and staleness were not varied together")
        return figure
    for axes in panels.flat:
        axes.set_visible(False)
    for row, (place, part) in enumerate(all_grids.items()):
        upper, lower = panels[2 * row], panels[2 * row + 1]
        base = interval(items, next(iter(part.cells.values())).base_model())
        tables = {name: _table(part, name, partial(interval, items))[0] for name in part.methods}
        span = _span([*tables.values(), np.asarray([base.estimate if base else np.nan])])
        changes = {name: _table(part, name, against_baseline) for name in part.methods if name != BASELINE}
        gaps = {name: both for name, both in changes.items() if not np.isnan(both[0]).all()}
        widest = max([_LEAST_SPAN, *(float(np.nanmax(np.abs(gap))) for gap, _ in gaps.values())])
        for axes, (name, table) in zip(upper, tables.items(), strict=False):
            _draw(axes, part, table, "viridis_r", span, signed=False)
            axes.set_title(name)
        for axes, name in zip(lower, tables, strict=False):
            if name in gaps:
                gap, clear = gaps[name]
                _draw(axes, part, gap, "RdBu", (-widest, widest), signed=True, bold=clear)
                axes.set_title(f"{name} {MINUS} {BASELINE}")
        for above, below in zip(upper, lower, strict=True):
            (below if below.get_visible() else above).set_xlabel(_RATE.label)
        for line in (upper, lower):  # all panels have the same rows of cells
            for axes in [axes for axes in line if axes.get_visible()][1:]:
                axes.tick_params(labelleft=False)
        base_text = f" (base model {100 * base.estimate:.0f})" if base else ""
        upper[0].set_ylabel(f"{' · '.join(place[1:])}\ntest pass@1 (%){base_text}", fontsize=7)
    return figure


def _span(tables: Sequence[Array]) -> tuple[float, float]:
    values = np.concatenate([table.ravel() for table in tables])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return low, max(high, low + _LEAST_SPAN)


def _table(grid: Grid, name: str, measure: Callable[[Cell], Interval | None]) -> tuple[Array, Array]:
    """Means over seeds ``[staleness, rate]``, NaN without runs, and where their intervals exclude zero."""
    table = np.full((len(grid.stale), len(grid.rates)), np.nan)
    clear = np.zeros_like(table)
    for (method, rate, stale), cell in grid.cells.items():
        if method == name and (measured := measure(cell)) is not None:
            place = grid.stale.index(stale), grid.rates.index(rate)
            table[place], clear[place] = measured.estimate, float(measured.reading() in ("higher", "lower"))
    return table, clear


def _draw(
    axes: Axes,
    grid: Grid,
    table: Array,
    colours: str,
    span: tuple[float, float],
    *,
    signed: bool,
    bold: Array | None = None,
) -> None:
    axes.set_visible(True)
    axes.grid(visible=False)
    axes.imshow(table, cmap=colours, vmin=span[0], vmax=span[1], aspect="auto", origin="lower")
    for (row, column), value in np.ndenumerate(table):
        if np.isnan(value):
            continue
        share = (value - span[0]) / (span[1] - span[0])
        dark = abs(2 * share - 1) > _DARK if signed else share > _DARK
        weight = "bold" if bold is not None and bold[row, column] else "normal"
        text = points(value, 0) if signed else f"{100 * value:.0f}"
        style: dict[str, Any] = {"fontsize": 7, "weight": weight, "color": "w" if dark else "k"}
        axes.text(column, row, text, ha="center", va="center", **style)
    axes.set_xticks(range(len(grid.rates)), [scientific(rate) for rate in grid.rates], fontsize=6)
    axes.set_yticks(range(len(grid.stale)), [_staleness(stale) for stale in grid.stale], fontsize=6)


def _staleness(stale: _Stale) -> str:
    steps, lag = stale
    return f"{steps:g} steps" + (f", lag {lag:g}" if lag else "")
