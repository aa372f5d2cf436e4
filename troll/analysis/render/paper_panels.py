"""Panels of the paper's figures: models or estimators by colour, clip dashed and TROLL solid.

Curves against training steps end where the paper's do, so that both can be laid side by side; later values
are in the tables, and the values after training stand in a strip to the right of each panel.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from troll.analysis.data.paper import Comparison
from troll.analysis.data.summaries import Cell, cached_per_frame, cells, per_run, spread
from troll.analysis.data.training_steps import Across, curve_of, training_steps_of
from troll.analysis.render.style import empty

_LABELS: Mapping[Across, str] = {"train_step": "Train Step", "hours": "Wallclock Time (hours)"}
DASHED: Any = (0, (2.5, 1.5))
_GREY = "#808080"
_SMOOTHED = 1 / 25
"""Thick lines are means over the training steps within this share of the paper's to both sides."""
_LONGEST, _SHORTEST, _HEIGHT = 15.0, 7.0, 3.0
"""Lengths and height of published values in points; later ones are shorter, so that equal ones show."""
_STRIP = {True: 6.0, False: 12.0}
"""Distance of clip's and of other values after training from the panel's right edge, in points."""


@dataclass(frozen=True)
class Line:
    """One curve of the paper with its published value."""

    name: str  # in the legend
    colour: str
    row: Comparison
    trust_region: str  # ours
    published: float = math.nan
    method: str = "TROLL"  # in the legend

    @property
    def clip(self) -> bool:
        """Whether it is drawn dashed, and its markers hollow."""
        return self.method == "Clip"

    @property
    def label(self) -> str:
        """Its name in a panel."""
        return f"{self.name} {self.method}".strip()


def lines_of(row: Comparison, name: str, colour: str) -> list[Line]:
    """Returns the two lines of a comparison, clip first."""
    return [
        Line(name, colour, row, row.baseline, row.published[0], "Clip"),
        Line(name, colour, row, row.method, row.published[1]),
    ]


def draw(
    axes: Axes,
    runs: pd.DataFrame,
    lines: Sequence[Line],
    across: Across = "train_step",
    *,
    label: str = "Success Rate",
) -> None:
    """Draws our curves, our values after training and the published values of one panel."""
    places = [float(getattr(line.row, "step" if across == "train_step" else "hours")) for line in lines]
    published = float(np.fmax.reduce([math.nan, *places]))
    longest, made, found = math.nan, math.nan, False
    for line in lines:
        cell = _cell(runs, line.row, line.trust_region)
        if cell is None:
            continue
        steps, value = training_steps_of(runs, cell), after_training(runs, line.row, line.trust_region)
        end = _curve(axes, runs, cell, line, across, steps)
        longest, made = np.fmax(longest, end), np.fmax(made, steps)
        found |= not math.isnan(end) or not math.isnan(value)
        if not math.isnan(value):
            _strip(axes, line, value)
    # Hours depend on the machine, so an axis of hours also covers all of our runs.
    right = float(np.fmax(published, longest)) if across == "hours" else published
    right = longest if math.isnan(right) else right
    axes.set_xlim(0, 1.0 if math.isnan(right) else 1.05 * right)
    for index, (line, place) in enumerate(zip(lines, places, strict=True)):
        if not math.isnan(line.published + place):
            length = _LONGEST - (_LONGEST - _SHORTEST) * index / len(lines)
            style = _dash(line.colour, length, hollow=line.clip)
            axes.plot([place], [line.published], label=f"{line.label}, published", **style)
    by_step = across == "train_step"
    continues = by_step and made > published
    axes.set_xlabel(_LABELS[across] + (f" (ours go on to {made:,.0f})" if continues else ""))
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=by_step))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    known = found or any(not math.isnan(line.published) for line in lines)
    if not known:
        empty(axes)
    elif math.isnan(longest):
        text = "ours: only after training" if found else "not run"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=_GREY)


def _cell(runs: pd.DataFrame, row: Comparison, trust_region: str) -> Cell | None:
    """Our cell of a method in the first setting that a comparison holds."""
    return next(
        (cell for cell in _cells(runs) if cell.trust_region == trust_region and row.holds(cell)), None
    )


_cells = cached_per_frame(cells)


def after_training(runs: pd.DataFrame, row: Comparison, trust_region: str) -> float:
    """Our value of a comparison's measure after training, the mean over seeds; NaN without one."""
    cell = _cell(runs, row, trust_region)
    return math.nan if cell is None else spread(cell.rows(per_run(runs)).get(row.measure, ()))[0]


def _curve(axes: Axes, runs: pd.DataFrame, cell: Cell, line: Line, across: Across, made: float) -> float:
    """Draws a line's curve; returns where it ends on the axis, NaN without one."""
    table = curve_of(runs, cell, line.row.measure, own_split=True)
    style: dict[str, Any] = {"color": line.colour, "linestyle": DASHED if line.clip else "-"}
    if table.empty:
        return math.nan
    for _, seed in table.groupby("seed", observed=True):
        axes.plot(seed[across], seed["value"], linewidth=0.8, alpha=0.25, zorder=2, **style)
    mean = table.groupby("train_step")[["hours", "value"]].mean().reset_index()
    steps, values = mean["train_step"].to_numpy(), mean["value"].to_numpy()
    paper = made if math.isnan(line.row.step) else line.row.step
    near = np.abs(steps[:, None] - steps) <= _SMOOTHED * paper
    smooth = near @ values / near.sum(axis=1)
    axes.plot(mean[across], smooth, linewidth=1.8, zorder=3, label=line.label, **style)
    return float(mean[across].max())


def _strip(axes: Axes, line: Line, value: float) -> None:
    """Draws our value after training to the right of the panel."""
    style = _marker(line.colour, hollow=line.clip)
    edge = axes.get_yaxis_transform()
    right_of_panel = offset_copy(edge, axes.get_figure(root=True), x=_STRIP[line.clip], units="points")
    label = f"{line.label}, after training"
    axes.update_datalim([(0, value)])  # so that the panel's range covers it
    axes.plot([1], [value], transform=right_of_panel, clip_on=False, label=label, zorder=4, **style)


def _marker(colour: str, *, hollow: bool) -> dict[str, Any]:
    style = {"marker": "o", "markersize": 4, "linestyle": "", "markeredgecolor": colour}
    return style | {"markerfacecolor": "white" if hollow else colour}


def _dash(colour: str, length: float, *, hollow: bool = False) -> dict[str, Any]:
    """Returns the style of a published value; the outline keeps it apart from curves of the same colour."""
    y = _HEIGHT / length
    corners = [(-1, -y), (1, -y), (1, y), (-1, y), (-1, -y)]
    style = {"marker": corners, "markersize": length, "linestyle": "", "zorder": 5, "clip_on": False}
    if hollow:
        return style | {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.3}
    return style | {"markerfacecolor": colour, "markeredgecolor": "black", "markeredgewidth": 0.7}


def named(names: Iterable[tuple[str, str]]) -> list[Line2D]:
    """Handles of a legend for names with their colours."""
    return [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in names]


def methods(colour: str = _GREY) -> list[Line2D]:
    """Handles of a legend for the dashes of clip and TROLL."""
    dashed = Line2D([], [], color=colour, linewidth=2, linestyle=DASHED, label="Clip")
    return [dashed, Line2D([], [], color=colour, linewidth=2, label="TROLL")]


def additions(*, published: bool = True) -> list[Line2D]:
    """Handles of a legend for what the paper's figures do not have."""
    dash = Line2D([], [], label="published", **_dash(_GREY, _LONGEST))
    return [
        *([dash] if published else []),
        Line2D([], [], label="ours after training", **_marker(_GREY, hollow=False)),
    ]


def legend(figure: Figure, handles: Sequence[Line2D], *, columns: int) -> None:
    """Adds a legend for the whole figure above the panels."""
    figure.legend(
        handles=list(handles), loc="outside upper center", ncols=columns, handlelength=2.4, columnspacing=1.6
    )
