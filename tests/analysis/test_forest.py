"""The figure of all differences: its numbers are those of the comparisons and of the verdicts."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.patches import Polygon

from troll.analysis.data.results import read_tables
from troll.analysis.figures.forest import averages, forest_figure, forest_lines
from troll.analysis.tables.comparisons import comparison_family

ROOT = Path(__file__).parents[2] / "results/released"
RELEASED = [ROOT / name for name in ("testbed", "testbed-ablations", "testbed-estimators")]


def diamonds(figure):
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Polygon)]


@pytest.mark.parametrize(
    ("names", "drawn"), [(["clip", "troll"], True), (["clip"], False), (["troll", "none"], False)]
)
def test_it_is_drawn_where_the_baseline_stands_beside_another_trust_region(names, drawn):
    rules = {name: {"rule": name} for name in names}
    assert ("forest" in synthetic.entries_planned("figure", trust_regions=rules)) == drawn


def test_a_line_for_each_setting_and_a_diamond_for_each_condition(runs, items):
    figure = forest_figure(runs, items)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:6] == [
        "gentle",
        "chains · grpo",
        "chains · dr-grpo",
        "functions · grpo",
        "functions · dr-grpo",
        "average",
    ]
    assert len(labels) == 12 and len(diamonds(figure)) == 2
    family = comparison_family(runs, items)
    bars = sorted(tuple(line.get_xdata()) for line in figure.axes[0].lines if line.get_linewidth() == 1.6)
    np.testing.assert_allclose(
        bars, sorted(zip(family["difference_low"], family["difference_high"], strict=True))
    )


def test_the_same_runs_in_two_experiments_are_one_line(runs, items):
    twice = [pd.concat([frame, frame.assign(experiment="copy")]) for frame in (runs, items)]
    assert len(forest_lines(*twice)) == len(forest_lines(runs, items)) == 8


def test_a_single_seed_has_no_bar_and_a_hollow_marker(runs, items):
    one = [frame[(frame["seed"] == 0) | frame["seed"].isna()] for frame in (runs, items)]
    figure = forest_figure(*one)
    marks = [line for line in figure.axes[0].lines if line.get_markersize() == 4.5]
    assert len(marks) == 8 and {line.get_markerfacecolor() for line in marks} == {"white"}
    assert not [
        line for line in figure.axes[0].lines if line.get_linewidth() == 1.6 and len(line.get_xdata()) == 2
    ]


def test_few_settings_have_one_average_or_none(runs, items):
    lines = forest_lines(runs, items)
    two = [line for line in lines if line.cell.task == "chains"]
    assert list(averages(two)) == [""], "two in each condition: all together"
    assert averages(two[:2]) == {}
    assert {text.get_text() for text in forest_figure(runs[:0], items[:0]).axes[0].texts} == {"no runs"}


def test_many_settings_stand_in_columns_in_their_order(runs, items, monkeypatch):
    one = forest_figure(runs, items)
    monkeypatch.setattr("troll.analysis.figures.forest._LONGEST", 6)
    two = forest_figure(runs, items)
    columns = [axes for axes in two.axes if axes.get_yticklabels()]
    assert len(columns) == 2 and two.get_size_inches()[1] < one.get_size_inches()[1]
    labels = [[label.get_text() for label in axes.get_yticklabels()] for axes in (*columns, one.axes[0])]
    assert labels[0] + labels[1] == labels[2]
    assert columns[0].get_xlim() == columns[1].get_xlim() and columns[0].get_ylim() == columns[1].get_ylim()


@pytest.mark.slow
def test_released_averages_are_those_of_the_verdicts():
    found = averages(forest_lines(*read_tables(RELEASED)))
    stale, gentle = found["stale"], found["gentle"]
    told = [stale.estimate, stale.low, stale.high, stale.predicted_low, stale.predicted_high]
    np.testing.assert_allclose(told, [0.222, 0.161, 0.283, 0.073, 0.371], atol=6e-4)
    np.testing.assert_allclose(
        [gentle.estimate, gentle.low, gentle.high], [0.0021, -0.0010, 0.0052], atol=6e-4
    )
