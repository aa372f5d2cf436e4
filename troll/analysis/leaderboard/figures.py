"""Figures of the leaderboard: differences from the tuned baseline, tuning budget, speed and contrasts."""

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
from troll.analysis.leaderboard.inputs import expected_best, first_scores
from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.render.formats import points, points_tick
from troll.analysis.render.style import MethodStyles, legend, styled

_LINE = 0.17
_SEEDS: Mapping[str, Any] = {"color": "#9a9a9a", "markersize": 2.2, "zorder": 2}
_NAMED = 5
"""Number of rules drawn in colour in `budget_figure`, besides the baseline and TROLL; others are grey."""


def differences_figure(board: pd.DataFrame) -> Figure:
    """Test pass@1 minus that of the tuned baseline, best rule first: a panel for each task and model."""
    groups = list(board.groupby(["task", "model"], sort=False))
    rules = int(max(len(rows) for _, rows in groups))
    with styled():
        figure = Figure(figsize=(3.6 * len(groups), 0.9 + _LINE * rules), layout="constrained")
        for axes, ((task, _), rows) in zip(np.ravel(figure.subplots(1, len(groups))), groups, strict=True):
            styles = MethodStyles(board["trust_region"])
            _draw_differences(axes, rows.reset_index(drop=True), styles)
            axes.set_title(str(task))
            axes.set_xlabel("test pass@1 minus tuned baseline (points)")
    return figure


def _draw_differences(axes: Axes, rows: pd.DataFrame, styles: MethodStyles) -> None:
    axes.axvline(0, color="#1c1c1c", linewidth=0.8, zorder=1)
    for place, row in enumerate(rows.to_dict("records")):
        name, baseline = str(row["trust_region"]), bool(np.isnan(row["difference"]))
        shown = (0.0, 0.0, 0.0) if baseline else _in_points(row)
        _draw_interval(axes, shown, place, styles.marker(name), styles.colour(name), 2)
    axes.set_yticks(range(len(rows)), list(rows["trust_region"]))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: points(value / 100)))


def budget_figure(trials: pd.DataFrame, board: pd.DataFrame) -> Figure:
    """Expected validation success of the best trial by number of trials: a panel for each task.

    Source: Dodge et al. 2019; the estimator is `troll.analysis.leaderboard.inputs.expected_best`.
    """
    trials = trials.assign(score=first_scores(trials))
    groups = list(trials.groupby("task", sort=False))
    baseline = str(board.loc[board["difference"].isna(), "trust_region"].iloc[0])
    best = trials.groupby(["rule", "task"])["score"].max().groupby("rule").mean()
    named = [*best.sort_values(ascending=False, kind="stable").index[:_NAMED], baseline, "troll"]
    with styled():
        figure = Figure(figsize=(3.2 * len(groups), 2.6), layout="constrained")
        styles = MethodStyles(set(named) & set(trials["rule"]))
        panels = np.ravel(figure.subplots(1, len(groups), sharex=True))
        for axes, (task, rows) in zip(panels, groups, strict=True):
            for rule, group in rows.groupby("rule"):
                scores = group["score"].to_list()
                budgets = range(1, len(scores) + 1)
                expected = [100 * expected_best(scores, budget) for budget in budgets]
                style: dict[str, Any] = {"color": "#c9c9c9", "zorder": 1, "linewidth": 0.7}
                if rule in styles.methods:
                    style = {"linewidth": 1.4} | styles.line(str(rule))
                axes.plot(budgets, expected, **style)
            axes.set_title(str(task))
            axes.set_xlabel("trials")
        panels[0].set_ylabel("validation success, expected best (%)")
        legend(figure, styles, columns=4)
    return figure


def performance_profile(board: pd.DataFrame, ratios: Sequence[float]) -> pd.DataFrame:
    """By rule, the share of tasks where it reaches the target within ``ratios`` times the fastest's rollouts.

    A rule that never reaches the target, or has no runs on a task, counts as infinite there. Source:
    AlgoPerf's performance profiles (Dahl et al. 2023, section 4.3), with tau from 1 to 4.
    """
    setting = [board["task"], board["model"]]
    quickest = board["rollouts"].groupby(setting).transform("min")
    ratio = (board["rollouts"] / quickest).where(np.isfinite(board["rollouts"]), np.inf)
    tasks = len(board[["task", "model"]].drop_duplicates())
    shares = {
        str(name): [float((group <= tau).sum() / tasks) for tau in ratios]
        for name, group in ratio.groupby(board["trust_region"])
    }
    return pd.DataFrame(shares, index=list(ratios)).T


def profile_figure(board: pd.DataFrame) -> Figure:
    """Performance profiles (`performance_profile`): a line for each rule, tau from 1 to 4."""
    ratios = [round(float(ratio), 4) for ratio in np.geomspace(1, 4, 121)]
    profile = performance_profile(board, ratios)
    with styled():
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        axes = figure.subplots()
        styles = MethodStyles(profile.index)
        for name in styles.methods:
            axes.step(ratios, profile.loc[name], where="post", linewidth=1.4, **styles.line(name))
        axes.set(
            xscale="log",
            xlim=(1, 4),
            ylim=(-0.02, 1.02),
            xlabel="rollout batches to the target, relative to the quickest rule",
            ylabel="share of tasks",
        )
        axes.set_xticks([1, 1.5, 2, 3, 4], ["1", "1.5", "2", "3", "4"])
        axes.minorticks_off()
        legend(figure, styles, columns=5)
    return figure


def contrasts_figure(table: pd.DataFrame, final: Sequence[Results], protocol: Protocol) -> Figure:
    """The first endpoint by contrast: seeds and mean for each task, the mean of the tasks as a diamond.

    The margin is shaded.
    """
    comparison = protocol.comparison
    values = fresh_values(final, protocol, comparison.endpoints[0])
    contrasts, margin = comparison.contrasts, 100 * comparison.margin
    rows = table[table["endpoint"] == table["endpoint"].iloc[0]]
    with styled():
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
    """A difference and its interval in percentage points."""
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
