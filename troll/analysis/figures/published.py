"""The paper's figures with our curves: its panels in its order, its axes and its names in the legends."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox

from troll.analysis.data import paper
from troll.analysis.data.paper import Comparison
from troll.analysis.render.paper_panels import (
    DASHED,
    Line,
    additions,
    after_training,
    draw,
    legend,
    lines_of,
    methods,
    named,
)
from troll.analysis.render.style import MethodStyles, empty, styled
from troll.analysis.tables.published import published_table

_SIZES = {
    "Qwen3-0.6B": ("600M", "#98e3cf"),
    "Qwen3-1.7B": ("1.7B", "#4fd0bb"),
    "Qwen3-4B": ("4B", "#20a6c8"),
    "Qwen3-8B": ("8B", "#0a74b8"),
    "Qwen3-14B": ("14B", "#0b3d59"),
}
"""The paper's name of each size, and a colour, darker for larger models."""
_ESTIMATORS = {
    "GRPO": ("GRPO", "#0a74b8"),
    "DrGRPO": ("Dr.GRPO", "#7ed957"),
    "PPO": ("PPO", "#ee69ae"),
    "GSPO": ("GSPO", "#fb7119"),
}
_FAMILIES = {
    "Apertus-8B-Instruct": ("Apertus-8B Instr.", "#f9a50b"),
    "Llama3.2-3B": ("Llama3.2-3B", "#db2f2a"),
    "SmolLM3-3B": ("SmolLM-3B", "#2f80bf"),
}
"""The models of the paper's two panels beside its table."""
_ON_DAPO = "SmolLM3-3B"
_VARIANTS = {
    "troll": ("TROLL", "#0a74b8"),
    "troll-kl0.01": ("ε = 0.01", "#7ed957"),
    "troll-kl0.25": ("ε = 0.25", "#1b5e20"),
    "troll-k256": ("K = 256", "#fb7119"),
    "troll-k16": ("K = 16", "#a84308"),
}
_PANELS = {
    "DAPO_Train": "DAPO Train",
    "DAPO_Eval": "DAPO Eval",
    "MATH_Eval": "MATH Eval",
    "GSM8K": "GSM8K",
    "DAPO": "DAPO Eval",
    "Code": "Eurus Code",
}
"""Titles of panels by data set."""
_METHODS = {"clip": "Clip", "troll": "TROLL", "gspo-clip": "GSPO", "quatro": "QUATRO"}
"""The methods whose staleness was varied."""
_BEST = "#d9d9fb"
"""Behind the better of two numbers."""
_NOT_RUN = "not run"
_FAMILY_OF = {"FineMath-Llama": "Llama3.2"}
"""Beginnings of names that stand for a family of models of another name, as in the paper's table."""


@styled()
def sizes_figure(runs: pd.DataFrame) -> Figure:
    """Draws success over training steps for the Qwen3 sizes on DAPO Train, DAPO Eval and MATH Eval."""
    figure, panels = _figure((8.6, 2.6), [["DAPO_Train", "DAPO_Eval", "MATH_Eval"]])
    for data, axes in panels.items():
        label = "Success Rate" if data == "DAPO_Train" else ""
        draw(axes, runs, _lines(paper.sizes(), data, "model", _SIZES), label=label)
    legend(figure, [*named(_SIZES.values()), *methods(), *additions()], columns=9)
    return figure


@styled()
def estimators_figure(runs: pd.DataFrame) -> Figure:
    """Draws success against hours for four estimators: DAPO Train above DAPO Eval and MATH Eval."""
    places = [["DAPO_Train", "DAPO_Train"], ["DAPO_Eval", "MATH_Eval"]]
    figure, panels = _figure((7.2, 4.2), places)
    for data, axes in panels.items():
        label = "Mean Success Rate" if data == "MATH_Eval" else "Success Rate"
        draw(axes, runs, _lines(paper.estimators(), data, "estimator", _ESTIMATORS), "hours", label=label)
    legend(figure, [*named(_ESTIMATORS.values()), *methods(), *additions()], columns=8)
    return figure


@styled()
def families_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """Draws the table of model families beside the curves of three models, on GSM8K and on DAPO Eval."""
    figure, panels = _figure((9.2, 4.0), [["table", "GSM8K"], ["table", "DAPO"]], width_ratios=[1.45, 1])
    _families_table(panels.pop("table"), published_table("families", runs, items))
    for data, axes in panels.items():
        # The paper shows SmolLM3 on DAPO only, though its table has it on GSM8K too.
        shown = {name: style for name, style in _FAMILIES.items() if (name == _ON_DAPO) == (data == "DAPO")}
        draw(axes, runs, _lines(paper.families(), data, "model", shown))
    legend(figure, [*named(_FAMILIES.values()), *methods(), *additions()], columns=7)
    return figure


@styled()
def code_figure(runs: pd.DataFrame) -> Figure:
    """Draws mathematics and code side by side for the Qwen3 sizes: success over training steps.

    Success in code is the share of tests passed, as the paper's, or of problems solved without it.
    """
    shares = bool(((runs["metric"] == "reward") & (runs["source"] == "test")).any())
    rows = [row for row in paper.code() if row.measure == ("reward" if shares else "pass@1")]
    figure, panels = _figure((6.4, 2.6), [["DAPO_Eval", "Code"]])
    for data, axes in panels.items():
        label = "Share of Tests Passed" if data == "Code" and shares else "Success Rate"
        draw(axes, runs, _lines([*paper.sizes(), *rows], data, "model", _SIZES), label=label)
    legend(figure, [*named(_SIZES.values()), *methods(), *additions()], columns=5)
    return figure


@styled()
def analysis_figure(runs: pd.DataFrame, items: pd.DataFrame) -> Figure:
    """Draws variants of TROLL on Qwen3-1.7B, cost on Qwen3-4B, and policy entropy of Qwen3-14B."""
    places = [["ablations", "cost"], ["ablations", "entropy"]]
    figure, panels = _figure((8.6, 3.8), places, height_ratios=[1, 1.9])
    rows = {row.method: row for row in paper.ablations()}
    default = next(iter(rows.values()))
    values = {name: (row, row.published[1]) for name, row in rows.items()}
    values[default.baseline] = (default, default.published[0])
    lines = [
        Line(shown, colour, values[name][0], name, values[name][1], method="")
        for name, (shown, colour) in _VARIANTS.items()
    ]
    axes = panels["ablations"]
    draw(axes, runs, lines, "hours", label="Mean Success Rate")
    axes.set_title("Qwen3-1.7B - MATH Eval")
    handles = named(_VARIANTS.values())
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.09), ncols=5, handlelength=1.8)
    _cost_table(panels["cost"], published_table("cost", runs, items))
    (row,) = paper.entropy()
    colour = _SIZES[row.model][1]
    draw(panels["entropy"], runs, lines_of(row, "", colour), "hours", label="Entropy")
    panels["entropy"].legend(handles=methods(colour)[::-1], title=row.model, loc="upper center")
    legend(figure, additions(), columns=2)
    return figure


@styled()
def staleness_figure(runs: pd.DataFrame) -> Figure:
    """Draws held-out success with batches of 1, 4 and 16 times the size, over training and after it.

    The optimiser steps on a rollout batch, and so the staleness of the last ones, grow with its size.
    """
    rows: dict[int, dict[str, Comparison]] = {}
    for row in paper.staleness():
        size = int(row.condition.removeprefix("*stale").removesuffix("x"))
        rows.setdefault(size, {row.baseline: row})[row.method] = row
    styles = MethodStyles(_METHODS)
    figure, panels = _figure((9.2, 2.6), [[*map(str, rows), "after"]])
    for size, by_method in rows.items():
        lines = [
            Line("", styles.colour(name), row, name, method=_METHODS[name]) for name, row in by_method.items()
        ]
        draw(panels[str(size)], runs, lines)
        panels[str(size)].set_title(f"DAPO Eval, batch x {size}")
    _over_staleness(panels["after"], runs, rows, styles)
    handles = named((shown, styles.colour(name)) for name, shown in _METHODS.items())
    handles[0].set_linestyle(DASHED)
    legend(figure, [*handles, *additions(published=False)], columns=6)
    return figure


def _over_staleness(
    axes: Axes, runs: pd.DataFrame, rows: Mapping[int, Mapping[str, Comparison]], styles: MethodStyles
) -> None:
    """Draws every method's success after training against the size of the rollout batch."""
    drawn = False
    for name in _METHODS:
        values = [after_training(runs, row, name) for row in (by_name[name] for by_name in rows.values())]
        style: dict[str, Any] = {"color": styles.colour(name), "linestyle": DASHED if name == "clip" else "-"}
        if not all(map(math.isnan, values)):
            axes.plot(list(rows), values, marker="o", markersize=4, label=_METHODS[name], **style)
            drawn = True
    axes.set_title("DAPO Eval, after training")
    if not drawn:
        empty(axes)
        return
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(rows), [f"x {size}" for size in rows])
    axes.set_xlabel("Rollout Batch")
    axes.set_ylabel("Success Rate")


def _figure(
    size: tuple[float, float], places: Sequence[Sequence[str]], **ratios: Any
) -> tuple[Figure, dict[str, Axes]]:
    """Returns a figure of a size in inches with named panels, which have the paper's titles."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05, wspace=0.04, hspace=0.04)
    figure = Figure(figsize=size, layout=layout)
    panels = figure.subplot_mosaic([list(line) for line in places], **ratios)
    for name, axes in panels.items():
        axes.set_title(_PANELS.get(name, ""))
    return figure, panels


def _lines(
    rows: Sequence[Comparison], data: str, attribute: str, styles: Mapping[str, tuple[str, str]]
) -> list[Line]:
    """Returns the lines of a panel, in the order of the legend."""
    chosen = {getattr(row, attribute): row for row in rows if row.data == data}
    return [line for key in styles if key in chosen for line in lines_of(chosen[key], *styles[key])]


def _families_table(axes: Axes, table: pd.DataFrame) -> None:
    """Draws the paper's table with ours beside every number, at the published step or else after training."""
    cells = [["Model", "Dataset", "Clip", "ours", "TROLL", "ours"]]
    best, ruled, last = [], [], ""
    for _, row in table.iterrows():
        if last and _family(str(row["model"])) != last:
            ruled.append(len(cells) - 1)
        last = _family(str(row["model"]))
        roles = ("baseline", "method")
        published = [float(row[f"published_{role}"]) for role in roles]
        at_step = [float(row.get(f"{role}_at", math.nan)) for role in roles]
        late = all(map(math.isnan, at_step))
        ours = [float(row[role]) for role in roles] if late else at_step
        texts = [_number(value) + "*" * (late and not math.isnan(value)) for value in ours]
        name = str(row["model"]).replace("-Instruct", " Instr.")
        cells.append([name, row["data"], _number(published[0]), texts[0], _number(published[1]), texts[1]])
        pairs = (published, 2), (ours, 3)
        best += [
            (len(cells) - 1, first + 2 * (pair[1] > pair[0]))
            for pair, first in pairs
            if max(pair) > min(pair)
        ]
    widths = [0.31, 0.15, 0.135, 0.135, 0.135, 0.135]
    _table(axes, cells, widths, ruled)
    height = 1 / len(cells)
    for line, column in best:
        corner = sum(widths[:column]), 1 - (line + 1) * height
        axes.add_patch(
            Rectangle(corner, widths[column], height, transform=axes.transAxes, color=_BEST, zorder=-1)
        )
    _note(axes, -0.02, "* after training, where ours has no value at the published step")


def _family(model: str) -> str:
    """Returns the family of a model: models of one stand between the same two lines of the paper's table."""
    name = model.split("-")[0]
    return next((family for start, family in _FAMILY_OF.items() if model.startswith(start)), name)


def _note(axes: Axes, height: float, text: str) -> None:
    axes.text(0, height, text, transform=axes.transAxes, va="top", fontsize=6.5, color="#666666")


def _number(value: float) -> str:
    return _NOT_RUN if math.isnan(value) else f"{value:.3f}"


def _cost_table(axes: Axes, table: pd.DataFrame) -> None:
    """Draws the paper's table of memory and time of a step, with ours below each."""
    cells = [[str(table["model"].iloc[0]), "Clip", "TROLL"]]
    names = {"memory (GiB)": ("VRAM", "GiB"), "time per step (s)": ("Runtime", "s")}
    for _, row in table.iterrows():
        name, unit = names[str(row["quantity"])]
        for text, prefix in ((name, "published_"), (f"{name}, ours", "")):
            values = [float(row[f"{prefix}{role}"]) for role in ("baseline", "method")]
            shown = [_NOT_RUN if math.isnan(value) else f"{value:.3f} {unit}" for value in values]
            cells.append([text, *shown])
    _table(axes, cells, [0.36, 0.32, 0.32])
    _note(axes, 1.2, "Runtime, ours: a whole rollout batch with its sampling")


def _table(
    axes: Axes, cells: Sequence[Sequence[str]], widths: Sequence[float], ruled: Sequence[int] = ()
) -> None:
    """Draws a table that fills a panel, with lines around its first row, below its last and below others."""
    axes.set_axis_off()
    table = axes.table(
        [list(row) for row in cells], colWidths=list(widths), cellLoc="center", bbox=Bbox.unit(), edges=""
    )
    table.auto_set_font_size(False)
    for (row, column), cell in table.get_celld().items():
        cell.set_fontsize(7.5)
        cell.visible_edges = "TB" if row == 0 else "B" if row in (len(cells) - 1, *ruled) else ""
        cell.set_linewidth(0.5 if row in ruled else 1.0)
        if column == 0:
            cell.set_text_props(ha="left")
