import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from troll.analysis.figures.published import (
    analysis_figure,
    code_figure,
    estimators_figure,
    families_figure,
    sizes_figure,
)


def named(frame: pd.DataFrame, model: str, task: str) -> pd.DataFrame:
    chosen = frame[(frame["task"] == "chains") & (frame["condition"] == "gentle")]
    chosen = chosen.astype({"model": "str", "task": "str", "run_id": "str"})
    return chosen.assign(model=model, task=task, run_id=f"{model}/{task}/" + chosen["run_id"])


def thick(axes: mpl.axes.Axes, width: float) -> list[mpl.lines.Line2D]:
    return [line for line in axes.lines if line.get_linewidth() == width]


def said(axes: mpl.axes.Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_sizes_show_ours_where_run_and_the_published_end_everywhere(runs: pd.DataFrame) -> None:
    figure = sizes_figure(named(runs, "Qwen3-4B", "dapo"))
    assert [axes.get_title() for axes in figure.axes[:5]] == [
        "Qwen3-0.6B",
        "Qwen3-1.7B",
        "Qwen3-4B",
        "Qwen3-8B",
        "Qwen3-14B",
    ]
    assert [said(axes) == ["not run"] for axes in figure.axes[:5]] == [True, True, False, True, True]
    ours = figure.axes[2]
    assert len(thick(ours, 1.7)) == 2
    assert [line.get_ydata()[0] for line in thick(ours, 3)] == [0.64, 0.7]
    assert [line.get_ydata()[0] for line in thick(figure.axes[0], 3)] == [0.24, 0.335]
    assert all(said(axes) == ["not run"] for axes in figure.axes[10:]), "MATH Eval was not measured"


def test_estimators_are_against_time(runs: pd.DataFrame) -> None:
    chosen = named(runs, "Qwen3-8B", "dapo")
    figure = estimators_figure(chosen)
    assert [axes.get_title() for axes in figure.axes[:4]] == ["GRPO", "DrGRPO", "PPO", "GSPO"]
    ends = chosen[(chosen["metric"] == "summary/train_s") & (chosen["estimator"] == "grpo")]
    line = thick(figure.axes[0], 1.7)[1]
    # The last batch's success is held until the last update.
    assert line.get_xdata()[-1] == pytest.approx(ends["value"].max())
    assert figure.axes[-1].get_xlabel() == "wall-clock seconds"


def test_code_stands_beside_mathematics(runs: pd.DataFrame) -> None:
    both = pd.concat([named(runs, "Qwen3-8B", "dapo"), named(runs, "Qwen3-8B", "eurus-code")])
    figure = code_figure(both)
    assert [bool(thick(axes, 1.7)) for axes in figure.axes[3::5]] == [True, True]
    assert thick(figure.axes[8], 3) == [], "no published end value for code"


def test_families_without_runs(runs: pd.DataFrame) -> None:
    figure = families_figure(runs)
    assert len(figure.axes) == 9 and all(said(axes) == ["not run"] for axes in figure.axes)


def test_analysis_has_hollow_published_and_filled_own_markers(
    runs: pd.DataFrame, items: pd.DataFrame
) -> None:
    four, large = named(runs, "Qwen3-4B", "dapo"), named(runs, "Qwen3-14B", "dapo")
    figure = analysis_figure(pd.concat([four, large]), named(items, "Qwen3-4B", "dapo"))
    labels = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert labels[0] == ["troll", "troll-k256", "troll-kl0.01", "troll-kl0.25", "troll-k16"]
    assert labels[1:] == [["clip", "troll"]] * 3
    hollow, filled = figure.axes[2].lines[:2]
    assert hollow.get_xdata()[0] == 85.133 and hollow.get_markerfacecolor() == "none"
    assert filled.get_xdata()[0] == pytest.approx(0.4)
    assert [said(axes) for axes in figure.axes] == [["not run"], ["not run"], [], []]
    assert np.isfinite(figure.axes[3].lines[3].get_xdata()[0])
