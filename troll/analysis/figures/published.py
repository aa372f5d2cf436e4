"""The paper's figures with our curves and the published end values, which panels without runs show alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from troll.analysis.data.summaries import Cell, cells
from troll.analysis.metrics import METRICS, SHARE, Metric
from troll.analysis.render.formats import percent_tick
from troll.analysis.render.panels import STEPS, Across, grid, limits, panel, rows_of, time_axis
from troll.analysis.render.style import MethodStyles, legend, styled
from troll.analysis.tables.published import QWEN3, SECTIONS, Comparison, published_table

_TRAIN = METRICS["success"]
_HELD_OUT = replace(METRICS["validation_success"], label="held-out success (%)")
_MATH_EVAL = Metric("math-eval/pass@1", SHARE, "mean of MATH Eval", label="success (%)", scale="share")
_METRICS = {"DAPO_Train": _TRAIN, "MATH_Eval": _MATH_EVAL}


def sizes_figure(runs: pd.DataFrame) -> Figure:
    """Success over training for the Qwen3 sizes: a column per size, a row per data set."""
    return _curves(runs, _section("sizes"), lambda row: row.model, QWEN3)


def estimators_figure(runs: pd.DataFrame) -> Figure:
    """Success against wall-clock time for the four estimators on Qwen3-8B: a column per estimator."""
    across = time_axis(runs) if (runs["source"] == "train").any() else STEPS
    return _curves(runs, _section("estimators"), lambda row: row.estimator, across=across)


def families_figure(runs: pd.DataFrame) -> Figure:
    """Held-out success over training on GSM8K for the models of the paper's table: a column per model."""
    return _curves(runs, [row for row in _section("families") if row.data == "GSM8K"], lambda row: row.model)


def code_figure(runs: pd.DataFrame) -> Figure:
    """Mathematics and code side by side for the Qwen3 sizes: a column per size."""
    mathematics = [row for row in _section("sizes") if row.data == "DAPO_Eval"]
    return _curves(runs, [*mathematics, *_section("code")], lambda row: row.model, QWEN3)


def _section(name: str) -> list[Comparison]:
    return list(SECTIONS[name].rows())


def _curves(
    runs: pd.DataFrame,
    rows: Sequence[Comparison],
    column_of: Callable[[Comparison], str],
    order: Sequence[str] = (),
    across: Across = STEPS,
) -> Figure:
    """A panel per comparison; published end values are short lines at the right edge."""
    names = list(order) or list(dict.fromkeys(column_of(row) for row in rows))
    datasets = list(dict.fromkeys(row.data for row in rows))
    with styled():
        figure, panels = grid(len(datasets), len(names), width=1.75, height=1.6, sharey="row")
        styles = MethodStyles(name for row in rows for name in (row.baseline, row.method))
        for row in rows:
            index = datasets.index(row.data), names.index(column_of(row))
            axes, metric = panels[index], _METRICS.get(row.data, _HELD_OUT)
            _comparison(axes, runs, row, metric, styles, across)
            if index[0] == 0:
                axes.set_title(column_of(row))
            if index[0] == len(datasets) - 1:
                axes.set_xlabel(across.label)
            if index[1] == 0:
                axes.set_ylabel(f"{row.data.replace('_', ' ')}\n{metric.label}")
        for line in panels:
            limits(list(line), _TRAIN)
        legend(figure, styles, published=True)
    return figure


def _comparison(
    axes: Axes, runs: pd.DataFrame, row: Comparison, metric: Metric, styles: MethodStyles, across: Across
) -> None:
    shown = (row.baseline, row.method)
    matching = [cell for cell in cells(runs) if cell.trust_region == row.method and row.holds(cell)]
    setting = matching[0] if matching else Cell(row.model, "", "", "", "")
    drawn = panel(axes, rows_of(runs, metric), setting, shown, styles, metric, across, missing="not run")
    for name, value in zip(shown, row.published, strict=True):
        if not math.isnan(value):
            style = styles.line(name) | {"linestyle": "-", "linewidth": 3, "clip_on": False}
            axes.plot([0.9, 1.0], [value] * 2, transform=axes.get_yaxis_transform(), **style)
    if not drawn:
        axes.set_ylim(0, 1)
        axes.tick_params(labelleft=True, left=True)
        axes.yaxis.set_major_formatter(percent_tick)


def analysis_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """The paper's analysis: ablations, memory, time, entropy; published markers are hollow, ours filled."""
    parts = [("ablations", "MATH Eval (%)"), ("cost", "memory (GiB)"), ("cost", "time per step (s)")]
    parts.append(("entropy", "late entropy (nats)"))
    with styled():
        figure, panels = grid(1, len(parts), width=2.3, height=1.9)
        for axes, (section, label) in zip(panels[0], parts, strict=True):
            table = published_table(section, runs, items)
            if "quantity" in table and section == "cost":
                table = table[table["quantity"] == label]
            _dots(axes, table, percent=section == "ablations")
            axes.set_title(label)
        markers = [("published", "none"), ("ours", "#0b4f8a")]
        square: dict[str, Any] = {"linestyle": "", "marker": "s", "markeredgecolor": "#0b4f8a"}
        handles = [Line2D([], [], markerfacecolor=fill, label=text, **square) for text, fill in markers]
        figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


def _dots(axes: Axes, table: pd.DataFrame, *, percent: bool) -> None:
    """A row per method with the published and our value, the baseline first."""
    entries: dict[str, tuple[float, float]] = {}
    for _, row in table.iterrows():
        for role, fallback in (("baseline", "clip"), ("method", "troll")):
            name = str(row.get(f"{role}_name", "troll" if percent and role == "baseline" else fallback))
            entries.setdefault(name, (float(row[f"published_{role}"]), float(row[role])))
    styles = MethodStyles(entries)
    for height, (name, (published, ours)) in enumerate(entries.items()):
        style: dict[str, Any] = {"marker": "s", "linestyle": "", "markersize": 5}
        style["markeredgecolor"] = styles.colour(name)
        axes.plot([published], [height], markerfacecolor="none", **style)
        axes.plot([ours], [height], markerfacecolor=styles.colour(name), **style)
    axes.set_yticks(range(len(entries)), list(entries))
    axes.set_ylim(len(entries) - 0.4, -0.6)
    axes.margins(x=0.25)
    if percent:
        axes.xaxis.set_major_formatter(percent_tick)
    if all(math.isnan(ours) for _, ours in entries.values()):
        axes.text(0.98, 0.03, "not run", transform=axes.transAxes, ha="right", color="#777777", fontsize=7)
