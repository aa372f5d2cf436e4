"""Replication: predictions against their definition, and verdicts on runs that do and do not repeat it."""

import numpy as np
import pytest
import synthetic
from scipy import stats
from typer.testing import CliRunner

from troll.analysis.data.replication import Predicted, describe_replication, predictions, replicates
from troll.analysis.data.summaries import Cell
from troll.cli.app import app


def shifted(runs, by, condition="stale"):
    """The same table with TROLL's test success moved in one condition."""
    changed = runs.copy()
    rows = (runs["metric"] == "pass@1") & (runs["trust_region"] == "troll") & (runs["condition"] == condition)
    changed.loc[rows, "value"] += by
    return changed


def test_the_prediction_covers_new_seeds_as_often_as_it_says():
    rng, hits, trials = np.random.default_rng(0), 0, 4000
    draws = rng.normal(0.1, 0.05, (trials, 7))
    for old, new in ((draw[:5], draw[5:]) for draw in draws):
        half = stats.t.ppf(0.975, 4) * old.std(ddof=1) * np.sqrt(1 / 5 + 1 / 2)
        hits += abs(new.mean() - old.mean()) <= half
    assert hits / trials == pytest.approx(0.95, abs=0.012)


def test_predictions_are_by_setting_and_paired_by_seed(collected):
    ours = collected.runs[collected.runs["seed"].isna() | (collected.runs["seed"] < 2)]
    found = predictions(ours, collected.runs)
    assert len(found) == 8 and all(one.seeds == 2 and one.reference_seeds == 3 for one in found)
    one = found[0]
    test = collected.runs[collected.runs["metric"] == "pass@1"]
    rows = one.cell.rows(test).set_index("seed")["value"]
    change = rows - one.cell.with_trust_region("clip").rows(test).set_index("seed")["value"]
    half = stats.t.ppf(0.975, 2) * change.std() * np.sqrt(1 / 2 + 1 / 3)
    assert (one.low, one.high) == pytest.approx((change.mean() - half, change.mean() + half))
    assert one.difference == pytest.approx(change[change.index < 2].mean())


def test_a_repetition_replicates_and_another_effect_does_not(runs):
    same = predictions(runs, runs)
    assert replicates(same) and describe_replication(same)[0].startswith(
        "Replicates: 8 of 8 settings lie within"
    )
    other = predictions(shifted(runs, 0.9), runs)
    lines = describe_replication(other)
    assert not replicates(other) and lines[0].startswith("Does not replicate: 4 of 8 settings lie within")
    assert len(lines) == 5 and lines[1].startswith("  outside: chains / stale / grpo: +")


def test_as_many_misses_as_chance_explains_are_no_failure():
    def made(outside, of):
        cell = Cell("m", "t", "c", "e", "troll")
        return [Predicted(cell, float(i < outside), 2, 0.0, 5, -0.5, 0.5) for i in range(of)]

    assert [replicates(made(outside, 8)) for outside in range(4)] == [True, True, True, False]
    assert [replicates(made(outside, 1)) for outside in range(2)] == [True, False]
    assert not replicates([]) and describe_replication([])[0].startswith("Nothing to replicate")


def test_other_settings_are_no_replication_and_no_failure(runs):
    stale = runs["condition"] == "stale"
    ours = synthetic.record(runs, stale, **{"training.learning_rate": 0.5})
    assert {one.cell.condition for one in predictions(ours, runs)} == {"gentle"}


def test_the_command_ends_with_the_verdict(tmp_path):
    def made(name, *, troll, seeds):
        root = tmp_path / name / "testbed"
        dirs = [
            synthetic.write_run(root, "chains", method, "grpo", condition, seed, batches=1, table=table)
            for method, solved in (("clip", 20), ("troll", troll))
            for condition in ("gentle", "stale")
            for seed in range(seeds)
            for table in [synthetic.solved(solved + seed * (method == "troll"))]
        ]
        synthetic.collect(dirs, root)
        return root

    release = made("release", troll=30, seeds=3)
    run = CliRunner().invoke
    good = run(app, ["compare", str(made("good", troll=31, seeds=2)), "--reference", str(release)])
    bad = run(app, ["compare", str(made("bad", troll=50, seeds=2)), "--reference", str(release)])
    assert good.exit_code == 0 and good.output.startswith("Replicates: 2 of 2 settings")
    assert bad.exit_code == 1 and bad.output.startswith("Does not replicate: 0 of 2 settings")
    assert "  outside: chains / gentle / grpo: +50.8 points (2 seeds), predicted [" in bad.output
