import math

import numpy as np
import pytest
import synthetic
from scipy import stats
from synthetic import row_where

from troll.analysis.data.runs import read_directories
from troll.analysis.render.formats import notes, to_markdown
from troll.analysis.statistics import paired_power, seeds_needed, spread_interval
from troll.analysis.tables.behaviour import power_table, speed_table, stability_table
from troll.analysis.tables.results import main_table


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Five batches of 8 steps, 0.05 s each: clip never rises, one troll run does late."""
    root = tmp_path_factory.mktemp("results") / "testbed"
    curves = {
        ("clip", 0): [0.1, 0.1, 0.1, 0.1, 0.1],
        ("clip", 1): [0.1, 0.3, 0.1, 0.1, 0.1],
        ("troll", 0): [0.1, 0.5, 0.7, 0.7, 0.7],
        ("troll", 1): [0.1, 0.3, 0.3, 0.7, 0.7],
    }
    dirs = [
        synthetic.write_run(root, "chains", method, "grpo", "gentle", seed, batches=5, success=curve)
        for (method, seed), curve in curves.items()
    ]
    return read_directories(dirs).runs


def test_speed_is_the_first_step_at_which_two_batches_reach_the_target(known):
    table = speed_table(known)
    troll, clip = row_where(table, trust_region="troll"), row_where(table, trust_region="clip")
    assert troll["target"] == pytest.approx(0.4), "half-way from 0.1 to the best end, 0.7"
    # Means of two: seed 0 has 0.6 at step 17, seed 1 0.5 at step 25; the median lies between.
    assert (troll["reached"], troll["steps_to"]) == (2, 21)
    assert troll["hours_to"] == pytest.approx(np.mean([17, 25]) * 0.05 / 3600)
    assert clip["reached"] == 0 and math.isinf(clip["steps_to"]) and math.isinf(clip["hours_to"])
    heights = [np.trapezoid(y, dx=1) / 4 for y in ([0.1, 0.5, 0.7, 0.7, 0.7], [0.1, 0.3, 0.3, 0.7, 0.7])]
    assert troll["auc"] == pytest.approx(np.mean(heights))
    assert troll["area_difference"] == pytest.approx(np.mean(heights) - np.mean([0.1, 0.15]))
    assert math.isnan(clip["area_difference"])
    text = to_markdown(table)
    assert "| never | never |" in text and "inf" not in text


def test_one_run_of_two_that_never_gets_there_makes_the_median_never(known):
    clip = row_where(speed_table(known, target=0.15), trust_region="clip")
    assert clip["reached"] == 1 and math.isinf(clip["steps_to"])


def test_stability_counts_collapses_against_the_base(tmp_path):
    counts = {("clip", "stale"): (9, 10, 30), ("troll", "stale"): (30,)}
    runs = synthetic.read_solved(tmp_path / "testbed", counts, batches=4).runs
    clip = row_where(stability_table(runs), trust_region="clip")
    assert clip["collapsed"] == 1, "9 of 60 is below half of 20, 10 of 60 is not"
    drops = []
    for _, rows in runs[(runs["trust_region"] == "clip") & (runs["metric"] == "success")].groupby("seed"):
        values = rows.sort_values("step")["value"].to_numpy()
        drops.append((np.maximum.accumulate(values) - values).max())
    assert clip["max_drawdown"] == pytest.approx(np.mean(drops)) and clip[
        "max_drawdown_worst"
    ] == pytest.approx(max(drops))
    assert (
        clip["kl_max"]
        == runs.loc[(runs["trust_region"] == "clip") & (runs["metric"] == "kl_to_old_max"), "value"].max()
    )
    assert 0 < clip["entropy_kept"] < 1
    without = stability_table(runs[runs["trust_region"] != "base"])
    assert row_where(without, trust_region="troll")["collapsed"] == 0, "against the first batch"


def test_power_table_uses_the_spread_of_paired_differences(items):
    table = power_table(items)
    assert set(table["trust_region"]) == {"troll"} and len(table) == 8
    here = items[
        (items["task"] == "chains") & (items["condition"] == "stale") & (items["estimator"] == "grpo")
    ]
    means = (here["c"] / here["n"]).groupby([here["trust_region"].astype(str), here["seed"]]).mean()
    changes = means["troll"] - means["clip"]
    found = row_where(table, task="chains", condition="stale", estimator="grpo")
    assert found["spread"] == pytest.approx(changes.std(ddof=1))
    assert found["spread_low"] < found["spread"] < found["spread_high"]
    needed = [found["points_1"], found["points_2"], found["points_5"]]
    assert needed == sorted(needed, reverse=True)
    assert paired_power(found["spread"], 0.05, int(found["points_5"])) >= 0.8
    assert paired_power(found["spread"], 0.05, int(found["points_5"]) - 1) < 0.8
    empty = power_table(items[items["trust_region"] != "troll"])
    assert empty.empty and "No run of troll has a run of clip" in empty.attrs["notes"][0]


@pytest.mark.parametrize(("spread", "difference"), [(0.03, 0.01), (0.1, 0.05), (0.02, 0.05)])
def test_power_agrees_with_simulated_experiments(spread, difference):
    seeds = seeds_needed(spread, difference)
    assert seeds is not None
    draws = np.random.default_rng(3).normal(difference, spread, size=(20_000, seeds))
    found = np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05)
    assert found == pytest.approx(paired_power(spread, difference, seeds), abs=0.01)
    assert found > 0.79 and paired_power(spread, difference, seeds - 1) < 0.8


def test_the_interval_of_a_spread_covers_it():
    draws = np.random.default_rng(4).normal(0, 2, size=(20_000, 5)).std(axis=1, ddof=1)
    low, high = spread_interval(1.0, 5)
    assert np.mean((draws * low <= 2) & (draws * high >= 2)) == pytest.approx(0.95, abs=0.01)
    assert math.isnan(spread_interval(1.0, 1)[0])
    assert seeds_needed(1.0, 0.01) is None and seeds_needed(0.0, 0.01) == 2
    assert seeds_needed(math.nan, 1.0) is None


def test_p_values_are_students_and_agree_with_readings(runs, items):
    table = main_table(runs, items)
    compared = table.dropna(subset=["p"])
    assert set(compared["trust_region"]) == {"troll"} and len(compared) == 8
    raw = []
    for _, place in compared.iterrows():
        here = items[
            (items["task"] == place["task"])
            & (items["condition"] == place["condition"])
            & (items["estimator"] == place["estimator"])
        ]
        means = (here["c"] / here["n"]).groupby([here["trust_region"].astype(str), here["seed"]]).mean()
        raw.append(stats.ttest_rel(means["troll"], means["clip"]).pvalue)
    assert compared["p"].to_numpy() == pytest.approx(raw)
    assert ((compared["p"] < 0.05) == compared["reading"].isin(["higher", "lower"])).all()
    assert "each by itself" in notes(table)[0]
