"""The simulation that chose the interval: its draws have the truth that they say, and tries our interval."""

import numpy as np
import pytest

from troll.analysis.coverage import METHODS, SCENARIOS, coverage_table, student
from troll.analysis.statistics import seed_interval


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.title)
def test_draws_have_the_truth_that_is_said(scenario) -> None:
    scores, on_split = scenario.draw(5, 400, np.random.default_rng(0))
    error = scores.mean(axis=(1, 2)).std() / 20
    assert abs(scores.mean() - scenario.truth) < 4 * error
    assert scores.mean(axis=(1, 2)) - on_split == pytest.approx(0, abs=8 * scores.mean(axis=2).std())


def test_the_interval_of_the_tables_is_the_one_that_is_simulated() -> None:
    scores = np.random.default_rng(1).normal(size=(3, 4, 10))
    low, high = student(scores, np.random.default_rng(2))
    for index, matrix in enumerate(scores):
        found = seed_interval(matrix)
        assert (low[index], high[index]) == pytest.approx((found.low, found.high))


@pytest.mark.slow
def test_student_covers_and_the_former_bootstrap_was_too_wide() -> None:
    table = coverage_table(150)
    assert len(table) == 9 * len(METHODS) + 9
    averages = table.iloc[-9:].set_index(["interval", "scenario", "seeds"])["covers"]
    independent = averages.index.get_level_values("interval").str.contains("as if independent")
    assert averages[~independent].between(0.8, 1.0).all()
    assert (averages[independent].to_numpy() < averages[~independent].iloc[3:].to_numpy()).all()
    normal = table.iloc[:-9].set_index(["interval", "scenario", "seeds"])
    normal = normal.drop(SCENARIOS[2].title, level="scenario")
    students = normal.loc["Student's t over seeds"]
    assert students["covers"].between(0.88, 1.0).all()
    former = normal.loc["two-level bootstrap, stretched"]
    assert (former["covers"] > 0.96).all() and (former["width"] > students["width"]).all()
