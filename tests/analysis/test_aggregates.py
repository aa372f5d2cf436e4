"""Many settings at once, and what training took: against values worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from troll.analysis.data.tidy import GROUP
from troll.analysis.render.formats import to_markdown
from troll.analysis.tables.aggregates import aggregate_table
from troll.analysis.tables.behaviour import training_cost_table


def items_of(by_method, problems=20):
    """Problems whose pass@1 over the test set is given for each method, estimator and seed."""
    rows = []
    for method, by_estimator in {"base": {"": [0.2]}, **by_method}.items():
        for estimator, shares in by_estimator.items():
            for seed, share in enumerate(shares):
                condition = "" if method == "base" else "stale"
                place = dict(zip(GROUP, ("tiny", "chains", condition, estimator, method), strict=True))
                passed = round(share * problems)
                rows += [
                    {
                        **place,
                        "experiment": "e",
                        "rule": method.partition("-")[0],
                        "seed": None if method == "base" else seed,
                        "task_id": f"{i:02}",
                        "n": 1,
                        "c": int(i < passed),
                    }
                    for i in range(problems)
                ]
    return pd.DataFrame(rows)


def test_the_aggregate_is_the_trimmed_mean_and_the_chance_to_be_above():
    clip = {"grpo": [0.1, 0.2, 0.3, 0.4], "rloo": [0.2, 0.2, 0.2, 0.9]}
    troll = {"grpo": [0.3, 0.4, 0.5, 0.6], "rloo": [0.2, 0.1, 0.2, 0.1], "gae": [1.0, 1.0]}
    table = aggregate_table(items_of({"clip": clip, "troll": troll, "troll-kl0.1": troll}))
    (row,) = table.to_dict("records")
    assert (row["trust_region"], row["settings"], row["runs"]) == ("troll", 2, 8), "gae has no clip beside it"
    ours, theirs = ((np.array(one["grpo"] + one["rloo"]) - 0.2) / 0.8 for one in (troll, clip))
    assert row["mean"] == pytest.approx(np.mean(ours))
    assert row["iqm"] == pytest.approx(stats.trim_mean(ours, 0.25))
    assert row["iqm_baseline"] == pytest.approx(stats.trim_mean(theirs, 0.25))
    chances = [stats.mannwhitneyu(troll[name], clip[name]).statistic / 16 for name in ("grpo", "rloo")]
    assert row["improvement"] == pytest.approx(np.mean(chances))
    for name in ("iqm", "iqm_baseline", "improvement"):
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
    pd.testing.assert_frame_equal(table, aggregate_table(items_of({"clip": clip, "troll": troll})))


def test_equal_methods_are_even_and_one_that_always_wins_has_no_doubt():
    same, better = {"grpo": [0.2, 0.3, 0.4]}, {"grpo": [0.7, 0.8, 0.9]}
    table = aggregate_table(items_of({"clip": same, "troll": same, "sapo": better})).set_index("trust_region")
    assert table.loc["troll", "improvement"] == 0.5
    assert table.loc["troll", "improvement_low"] < 0.5 < table.loc["troll", "improvement_high"]
    assert list(table.loc["sapo", ["improvement", "improvement_low", "improvement_high"]]) == [1, 1, 1]
    assert "100.0 [100.0, 100.0]" in to_markdown(table.reset_index())


def test_conditions_stand_in_the_order_of_their_numbers():
    items = items_of({"clip": {"grpo": [0.2, 0.3]}, "troll": {"grpo": [0.3, 0.4]}})
    trained = items["condition"] == "stale"
    names = ["lr3e-5", "lr1e-4", "lr1e-3"]
    every = [items[trained].assign(condition=name) for name in reversed(names)]
    table = aggregate_table(pd.concat([items[~trained], *every], ignore_index=True))
    assert list(table["condition"]) == names


def test_single_seeds_are_no_certainty(items):
    table = aggregate_table(items[(items["seed"] == 0) | items["seed"].isna()])
    ends = [f"{name}_{end}" for name in ("iqm", "improvement") for end in ("low", "high")]
    assert len(table) and table[ends].isna().all(axis=None) and table["iqm"].notna().all()


def test_without_a_baseline_the_table_says_so():
    table = aggregate_table(items_of({"troll": {"grpo": [0.5]}}))
    assert table.empty
    assert "No method has a run of clip and a graded base model beside it." in to_markdown(table)


def test_training_cost_is_per_batch_and_against_clip_with_grpo(runs):
    train = runs[(runs["source"] == "train") & (runs["metric"] == "success")]
    costs = {("clip", "grpo"): (2.0, 1.0), ("troll", "grpo"): (2.2, 1.1), ("troll", "dr-grpo"): (5.0, 3.0)}
    added = []
    for (method, estimator), (seconds, gib) in costs.items():
        mine = train[(train["trust_region"] == method) & (train["estimator"] == estimator)]
        one = mine.groupby("run_id", observed=True, as_index=False).first()[mine.columns]
        added.append(one.assign(metric="summary/cpu_s", source="summary", value=5 * seconds))  # of 5 batches
        added.append(one.assign(metric="peak_gib", source="manifest", value=gib))
    whole = pd.concat([runs.astype({"metric": str, "source": str}), *added], ignore_index=True)
    table = training_cost_table(whole)
    for (method, estimator), (seconds, gib) in costs.items():
        found = table[(table["trust_region"] == method) & (table["estimator"] == estimator)]
        assert found["batch_cpu_s"].to_numpy() == pytest.approx(seconds)
        assert found["cpu_ratio"].to_numpy() == pytest.approx(seconds / 2.0)
        assert found["memory_ratio"].to_numpy() == pytest.approx(gib / 1.0)
    # Runs of an earlier version have no processor time.
    rest = table[(table["trust_region"] == "clip") & (table["estimator"] == "dr-grpo")]
    assert rest["cpu_ratio"].isna().all() and rest["batch_s"].notna().all()
