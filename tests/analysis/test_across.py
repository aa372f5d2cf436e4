"""Claims about a line of conditions: slopes, usable decades, and their verdicts."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from troll.analysis.claims.across import Across, slope, usable_decades
from troll.analysis.claims.verdicts import judge
from troll.analysis.claims.wording import measure, why

SOLVED = {("clip", "gentle"): 30, ("troll", "gentle"): 45, ("clip", "stale"): 24, ("troll", "stale"): 51}
"""Of 60 problems; the base model solves 20."""


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    counts = {place: synthetic.rising(count) for place, count in SOLVED.items()}
    return synthetic.read_solved(tmp_path_factory.mktemp("results") / "testbed", counts)


@pytest.fixture(scope="module")
def rates(known):
    """The same runs, but what the two conditions differ in is the learning rate: 1e-5 and 1e-4."""
    runs = synthetic.record(known.runs, known.runs["seed"].notna(), **{"training.mini_batches": 8})
    return synthetic.record(runs, runs["condition"] == "gentle", **{"training.learning_rate": 1e-5})


def verdict(runs, known, across, **changes):
    return judge([synthetic.claim(across=across, **changes)], runs, known.items)[0]


def test_a_slope_is_that_of_the_difference_for_each_doubling(known):
    judged = verdict(known.runs, known, {"setting": "staleness", "statistic": "slope"})
    (setting,) = judged.decision.settings
    # From 8 to 32 steps: two doublings, over which the lead grows from 15 to 27 of 60 problems.
    np.testing.assert_allclose(setting.differences, [12 / 60 / 2] * 3)
    assert setting.name == "testbed / tiny / chains / gentle to stale / grpo"
    assert judged.verdict == "supported everywhere"
    assert "+10.0 points per doubling" in why(judged)
    assert measure(judged.claim) == (
        "pass@1 across staleness, points per doubling, troll minus clip; claimed: higher"
    )


def test_usable_decades_share_a_threshold_measured_from_the_base_model(rates, known):
    across = {"setting": "learning_rate", "statistic": "usable", "share": 0.5}
    judged = verdict(rates, known, across, margin=0.2)
    (setting,) = judged.decision.settings
    # Half of the way from 20 to the best, 52: 36. TROLL is above it everywhere, clip nowhere.
    np.testing.assert_allclose(setting.differences, [1.0] * 3)
    assert judged.verdict == "supported everywhere"
    assert why(judged).endswith("+1.00 decades") and "margin 0.2 decades" in measure(judged.claim)
    higher = verdict(rates, known, across | {"share": 0.9}).decision.settings[0]
    # 48.8: TROLL's line rises from 45 + seed to 51 + seed.
    np.testing.assert_allclose(higher.differences, [(51 + seed - 48.8) / 6 for seed in range(3)])


def test_points_that_one_of_the_two_lacks_are_no_line(rates, known):
    across = {"setting": "learning_rate", "statistic": "usable"}
    gone = (known.items["trust_region"] == "clip") & (known.items["condition"] == "stale")
    judged = judge([synthetic.claim(across=across)], rates, known.items[~gone])
    assert judged[0].verdict == "not run"
    assert verdict(rates, known, across, where={"condition": ["stale"]}).verdict == "not run"
    assert verdict(rates, known, {"setting": "policy_lag", "statistic": "slope"}).verdict == "not run"


lines = st.lists(st.floats(-2, 2), min_size=2, max_size=6)


@given(lines, st.floats(-2, 2))
def test_usable_decades_are_what_a_fine_grid_counts(line, threshold):
    values = np.logspace(-5, -3, len(line))
    x = np.linspace(-5, -3, 20_001)
    middle = (x[1:] + x[:-1]) / 2
    share = (np.interp(middle, np.log10(values), line) >= threshold).mean()
    found = usable_decades(list(values), np.asarray([line]), threshold)
    np.testing.assert_allclose(found, [2 * share], atol=2e-3)


@given(lines, st.booleans())
def test_a_slope_is_that_of_a_fitted_line(line, zero):
    values = [float(number) for number in (range(len(line)) if zero else np.geomspace(1, 64, len(line)))]
    scale: Callable[[object], object] = (lambda x: x) if zero else np.log2
    wanted = np.polyfit(scale(np.asarray(values)), line, 1)[0]
    np.testing.assert_allclose(slope(values, np.asarray([line]), doubling=not zero), [wanted], atol=1e-9)


@pytest.mark.parametrize(("setting", "wanted"), [("policy_lag", 0.02), ("staleness", 0.03)])
def test_lag_counts_in_batches_even_where_no_point_has_none(setting, wanted):
    """From 1 to 4: three batches of lag, or two doublings."""
    doubling = Across.model_validate({"setting": setting, "statistic": "slope"}).doubling
    np.testing.assert_allclose(slope([1, 4], np.asarray([[0.0, 0.06]]), doubling=doubling), [wanted])


@pytest.mark.parametrize("missing", ["troll", "clip"])
def test_a_line_that_lacks_a_point_is_not_judged_on_the_others(known, rates, missing):
    """Three rates, of which one method lacks one: neither method's line is silently made shorter."""
    more = [frame[frame["condition"] == "stale"].copy() for frame in (rates, known.items)]
    for frame in more:
        frame["condition"] = frame["condition"].astype(str).replace({"stale": "third"})
        frame["run_id"] = frame["run_id"].astype(str).str.replace("/stale/", "/third/")
    more[0] = synthetic.record(more[0], more[0]["seed"].notna(), **{"training.learning_rate": 1e-3})
    claim = synthetic.claim(across={"setting": "learning_rate", "statistic": "slope"})
    whole = [pd.concat(pair, ignore_index=True) for pair in zip((rates, known.items), more, strict=True)]
    (full,) = judge([claim], *whole)
    assert "gentle to third" in full.decision.settings[0].name
    part = [frame[(frame["condition"] != "third") | (frame["trust_region"] != missing)] for frame in whole]
    (one,) = judge([claim], *part)
    assert one.verdict == "not run" and why(one).startswith("no ")
