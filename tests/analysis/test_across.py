"""Claims about a line of conditions: slopes, usable decades, and their verdicts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from troll.analysis.claims.across import Across, slope, usable_decades
from troll.analysis.claims.verdicts import Claim, ClaimVerdict, judge, read_claims
from troll.analysis.claims.wording import measure, why
from troll.analysis.data.runs import read_directories
from troll.analysis.data.tidy import Tidy

SOLVED = {("clip", "gentle"): 30, ("troll", "gentle"): 45, ("clip", "stale"): 24, ("troll", "stale"): 51}
"""Of 60 problems; the base model solves 20."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Tidy:
    root = tmp_path_factory.mktemp("results") / "testbed"
    dirs = [
        synthetic.write_run(
            root,
            "chains",
            method,
            "grpo",
            condition,
            seed,
            batches=2,
            table=synthetic.solved(count + seed),
        )
        for (method, condition), count in SOLVED.items()
        for seed in range(3)
    ]
    base = synthetic.write_base(root, "chains", table=synthetic.solved(20))
    return read_directories(dirs, [base])


@pytest.fixture(scope="module")
def rates(known: Tidy) -> pd.DataFrame:
    """The same runs, but what the two conditions differ in is the learning rate: 1e-5 and 1e-4."""
    runs = synthetic.record(known.runs, known.runs["seed"].notna(), **{"training.mini_batches": 8})
    return synthetic.record(runs, runs["condition"] == "gentle", **{"training.learning_rate": 1e-5})


def verdict(runs: pd.DataFrame, known: Tidy, across: dict[str, object], **changes: object) -> ClaimVerdict:
    return judge([Claim.model_validate(synthetic.CLAIM | changes | {"across": across})], runs, known.items)[0]


def test_a_slope_is_that_of_the_difference_for_each_doubling(known: Tidy) -> None:
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


def test_usable_decades_share_a_threshold_measured_from_the_base_model(
    rates: pd.DataFrame, known: Tidy
) -> None:
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


def test_points_that_one_of_the_two_lacks_are_no_line(rates: pd.DataFrame, known: Tidy) -> None:
    across = {"setting": "learning_rate", "statistic": "usable"}
    gone = (known.items["trust_region"] == "clip") & (known.items["condition"] == "stale")
    judged = judge([Claim.model_validate(synthetic.CLAIM | {"across": across})], rates, known.items[~gone])
    assert judged[0].verdict == "not run"
    assert verdict(rates, known, across, where={"condition": ["stale"]}).verdict == "not run"
    assert verdict(rates, known, {"setting": "policy_lag", "statistic": "slope"}).verdict == "not run"


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"baseline": "base"}, ("baseline base", "across")),
        ({"baseline": 0.5}, ("baseline 0.5", "across")),
        ({"relative": True}, ("relative", "across")),
        ({"metric": "late_kl"}, ("metric late_kl", "usable", "pass@k")),
        ({"across": {"setting": "keep", "statistic": "slope"}}, ("across.setting",)),
        ({"across": {"setting": "policy_lag", "statistic": "usable"}}, ("across policy_lag", "slope")),
    ],
)
def test_claims_that_make_no_sense_are_one_line(
    changes: dict[str, object], facts: tuple[object, ...], tmp_path: Path
) -> None:
    across = {"setting": "learning_rate", "statistic": "usable"}
    synthetic.write_json(tmp_path / "claims.yaml", [synthetic.CLAIM | {"across": across} | changes])
    with refused(tmp_path / "claims.yaml", "claim c", *facts):
        read_claims([tmp_path / "claims.yaml"])


lines = st.lists(st.floats(-2, 2), min_size=2, max_size=6)


@given(lines, st.floats(-2, 2))
def test_usable_decades_are_what_a_fine_grid_counts(line: list[float], threshold: float) -> None:
    values = np.logspace(-5, -3, len(line))
    x = np.linspace(-5, -3, 20_001)
    middle = (x[1:] + x[:-1]) / 2
    share = (np.interp(middle, np.log10(values), line) >= threshold).mean()
    found = usable_decades(list(values), np.asarray([line]), threshold)
    np.testing.assert_allclose(found, [2 * share], atol=2e-3)


@given(lines, st.booleans())
def test_a_slope_is_that_of_a_fitted_line(line: list[float], zero: bool) -> None:
    values = [float(number) for number in (range(len(line)) if zero else np.geomspace(1, 64, len(line)))]
    scale: Callable[[object], object] = (lambda x: x) if zero else np.log2
    wanted = np.polyfit(scale(np.asarray(values)), line, 1)[0]
    np.testing.assert_allclose(slope(values, np.asarray([line]), doubling=not zero), [wanted], atol=1e-9)


@pytest.mark.parametrize(("setting", "wanted"), [("policy_lag", 0.02), ("staleness", 0.03)])
def test_lag_counts_in_batches_even_where_no_point_has_none(setting: str, wanted: float) -> None:
    """From 1 to 4: three batches of lag, or two doublings."""
    doubling = Across.model_validate({"setting": setting, "statistic": "slope"}).doubling
    np.testing.assert_allclose(slope([1, 4], np.asarray([[0.0, 0.06]]), doubling=doubling), [wanted])


@pytest.mark.parametrize("missing", ["troll", "clip"])
def test_a_line_that_lacks_a_point_is_not_judged_on_the_others(
    known: Tidy, rates: pd.DataFrame, missing: str
) -> None:
    """Three rates, of which one method lacks one: neither method's line is silently made shorter."""
    more = [frame[frame["condition"] == "stale"].copy() for frame in (rates, known.items)]
    for frame in more:
        frame["condition"] = frame["condition"].astype(str).replace({"stale": "third"})
        frame["run_id"] = frame["run_id"].astype(str).str.replace("/stale/", "/third/")
    more[0] = synthetic.record(more[0], more[0]["seed"].notna(), **{"training.learning_rate": 1e-3})
    entry = synthetic.CLAIM | {"across": {"setting": "learning_rate", "statistic": "slope"}}
    whole = [pd.concat(pair, ignore_index=True) for pair in zip((rates, known.items), more, strict=True)]
    (full,) = judge([Claim.model_validate(entry)], *whole)
    assert "gentle to third" in full.decision.settings[0].name
    part = [frame[(frame["condition"] != "third") | (frame["trust_region"] != missing)] for frame in whole]
    (one,) = judge([Claim.model_validate(entry)], *part)
    assert one.verdict == "not run" and why(one).startswith("no ")
