"""The figures: tidy tables in, a matplotlib Figure out, which ``style.write_figure`` writes."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from troll.analysis.panels import (
    STEPS,
    Across,
    Quantity,
    bounds,
    by_processor,
    grid,
    limits,
    panel,
    rows_of,
    time_axis,
)
from troll.analysis.runs import BASE
from troll.analysis.style import Look, empty, legend, styled
from troll.analysis.summaries import (
    Cell,
    cell_order,
    cells,
    estimator_order,
    families,
    interval,
    require_one,
    scores,
    variant_of,
)

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

_MOST_COLUMNS = 6

Setting = tuple[str, str]
"""Condition and estimator."""


def main_figure(
    runs: pd.DataFrame,
    *,
    estimators: Sequence[str] | None = None,
    trust_regions: Sequence[str] | None = None,
    across: Across = STEPS,
) -> Figure:
    """Training success against steps: a row per model and task, a column per condition and estimator.

    More than six such columns are told apart by rows too: one per condition, a column per estimator.

    Args:
        runs: the tidy table of one experiment.
        estimators: which; by default the five that have most runs.
        trust_regions: which; by default all that are no variants named by a setting.
        across: steps or time.
    """
    require_one(runs)
    shown, bases = _methods(runs, trust_regions), _bases(runs)
    chosen = estimators or _commonest_estimators(runs, 5)
    settings = [setting for setting in _settings(runs) if setting[1] in chosen]
    if len(settings) > _MOST_COLUMNS:
        conditions, names = ([*dict.fromkeys(part)] for part in zip(*settings, strict=True))
        lines = [(base, [(name, estimator) for estimator in names]) for base in bases for name in conditions]
    else:
        lines = [(base, settings) for base in bases]
    success = rows_of(runs, SUCCESS)
    with styled():
        width = max((len(columns) for _, columns in lines), default=0)
        figure, panels = grid(len(lines), width, width=2.15, height=1.75, sharey="row")
        look = Look(shown)
        for row, (base, columns) in enumerate(lines):
            before = _base_score(runs, base)
            for column, (condition, estimator) in enumerate(columns):
                axes, place = panels[row, column], Cell(base.model, base.task, condition, estimator, "")
                if panel(axes, success, place, shown, look, SUCCESS, across) and before is not None:
                    axes.axhline(before, linewidth=1.2, zorder=1.5, **look.line(BASE))
                if row == 0 or len(lines) > len(bases):
                    axes.set_title(f"{condition} · {estimator}")
                if row == len(lines) - 1:
                    axes.set_xlabel(across.label)
                if column == 0:
                    axes.set_ylabel(f"{_label(base, bases)}\ntraining success (%)")
            limits(list(panels[row]), SUCCESS)
        legend(figure, look, base=True)
    return figure


def hours_figure(runs: pd.DataFrame) -> Figure:
    """Training success against time, for every estimator; panels as in ``main_figure``.

    Time is that of the processor for runs without a GPU which recorded it, else wall-clock time.
    """
    timed = by_processor(runs)
    clock, runs = ("wall-clock", runs) if timed is None else ("processor", timed)
    estimators = sorted({cell.estimator for cell in cells(runs) if cell.trust_region != BASE})
    return main_figure(runs, estimators=estimators, across=time_axis(runs, clock))


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
    shown = _methods(rows, trust_regions)
    places = []
    for model, setting in itertools.product(models, settings):
        label = (f"{model}\n" if len(models) > 1 else "") + " · ".join(setting)
        places.append((Cell(model, task, *setting, ""), label, shown))
    return _rows_figure(rows, places, quantities)


def projection_figure(runs: pd.DataFrame, task: str, *, trust_regions: Sequence[str] | None = None) -> Figure:
    """How the trust regions acted: tokens outside, KL before and after (bound dotted), step, kept mass."""
    return task_figure(runs, task, quantities=PROJECTION, trust_regions=trust_regions)


def ablation_figure(runs: pd.DataFrame, *, quantities: Sequence[Quantity] = LEARNING) -> Figure:
    """The variants of each rule beside its default: a row per task and setting in which a variant was run."""
    places = []
    for family in families(cell.trust_region for cell in cells(runs)):
        variants = [cell for cell in cells(runs) if variant_of(cell.trust_region) == family]
        shown = Look({cell.trust_region for cell in variants} | {family}).methods
        for cell in sorted({cell.method("") for cell in variants}, key=cell_order):
            places.append((cell, f"{cell.task}\n{cell.condition} · {cell.estimator}", shown))
    return _rows_figure(runs, places, quantities)


def _rows_figure(
    runs: pd.DataFrame,
    places: Sequence[tuple[Cell, str, Sequence[str]]],
    quantities: Sequence[Quantity],
) -> Figure:
    """One row per place (with its label and methods), one column per quantity that any run has."""
    require_one(runs)
    logged = set(runs["metric"])
    present = [quantity for quantity in quantities if quantity.metric in logged]
    with styled():
        figure, panels = grid(len(places), len(present), width=2.05, height=1.5, sharex="row")
        if not places or not present:
            empty(panels[0, 0], "no runs")
            return figure
        look = Look({name for _, _, shown in places for name in shown})
        for column, quantity in enumerate(present):
            rows = rows_of(runs, quantity)
            for row, (place, label, shown) in enumerate(places):
                axes = panels[row, column]
                if panel(axes, rows, place, shown, look, quantity) and quantity.bound:
                    bounds(axes, runs, place, shown, look)
                if row == 0:
                    axes.set_title(quantity.label)
                if row == len(places) - 1:
                    axes.set_xlabel("optimiser steps")
                if column == 0:
                    axes.set_ylabel(label)
        for axis in {quantity.axis or quantity.metric for quantity in present}:
            same = [column for column, q in enumerate(present) if (q.axis or q.metric) == axis]
            limits([axes for column in same for axes in panels[:, column]], present[same[0]])
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
        there = {(cell.condition, cell.estimator, cell.trust_region) for cell in cells(runs)}
        methods = [[name for name in shown if (*setting, name) in there] for setting in settings]
        lines = sum(map(len, methods)) + len(settings)
        figure, panels = grid(1, len(bases), width=3.4, height=0.6 + 0.17 * lines, sharey="row")
        look = Look(shown)
        for column, base in enumerate(bases):
            axes = panels[0, column]
            _points(axes, items, base, dict(zip(settings, methods, strict=True)), look)
            axes.set_title(_label(base, bases))
            axes.set_xlabel("test pass@1 (%)")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}"))
        legend(figure, look, base=True, marked=True)
    return figure


def _points(
    axes: Axes, items: pd.DataFrame, place: Cell, methods: Mapping[Setting, Sequence[str]], look: Look
) -> None:
    """A line for each method of each setting, and an empty one after each setting."""
    ticks, line = [], 0
    for (condition, estimator), names in methods.items():
        ticks.append(line + (len(names) - 1) / 2)
        for height, name in enumerate(names, start=line):
            cell = Cell(place.model, place.task, condition, estimator, name)
            found = interval(items, cell)
            if found is None:
                continue
            colour = look.colour(name)
            each = scores(items, cell).mean(axis=1).to_numpy()
            axes.plot(each, np.full(each.size, height), "|", color=colour, markersize=5, alpha=0.6)
            single, few = each.size == 1, each.size < 3  # one seed: the choice of problems only
            axes.plot(
                [found.low, found.high], [height, height], linewidth=0.8 if few else 1.8, **look.line(name)
            )
            axes.plot(
                found.estimate,
                height,
                look.marker(name),
                color=colour,
                markersize=4.5,
                markerfacecolor="white" if single else colour,
            )
        line += len(names) + 1
    base = interval(items, place)
    if base is not None:
        axes.axvline(base.estimate, linewidth=1.2, zorder=1, **look.line(BASE))
    axes.set_yticks(ticks, [f"{condition} · {estimator}" for condition, estimator in methods])
    axes.set_ylim(line - 1, -1)
    axes.grid(axis="y", visible=False)


def _commonest_estimators(runs: pd.DataFrame, most: int) -> list[str]:
    counted = runs.loc[runs["estimator"] != "", ["run_id", "estimator"]].drop_duplicates()["estimator"]
    counts = Counter(map(str, counted))
    return sorted(counts, key=lambda name: (-counts[name], estimator_order(name)))[:most]


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
