"""Runs against a reference: what is equal, where a run first differs, and what is no repetition at all."""

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from refusals import error_of, refused
from typer.testing import CliRunner

from troll.analysis.data.replication import replication_of
from troll.analysis.data.reproduction import compare_runs, describe, equality, read_released
from troll.analysis.data.runs import write_whole
from troll.analysis.data.tidy import Tidy, read_tidy
from troll.cli.app import app
from troll.experiment.directories import released_directory

RUN = "tiny/chains/troll/grpo/stale/seed1"


@pytest.fixture
def known(one_setting):
    return read_tidy(one_setting)


def change(known, metric, change, step=None):
    """The same tables with one number of one run changed."""
    runs = known.runs.copy()
    rows = (runs["run_id"] == RUN) & (runs["metric"] == metric)
    if step is not None:
        rows &= runs["step"] == step
    assert rows.any()
    runs.loc[rows, "value"] = change(runs.loc[rows, "value"])
    return Tidy(runs, known.items)


def said(ours, theirs):
    compared = compare_runs(ours, theirs)
    return "\n".join(describe(compared, *(one.runs["run_id"].nunique() for one in (ours, theirs))))


def test_the_same_runs_are_equal_whatever_time_they_took(known):
    compared = compare_runs(change(known, "time/rollout_s", lambda values: values * 2), known)
    assert len(compared) == known.runs["run_id"].nunique() == 5
    assert (compared["different"] == 0).all() and (compared["numbers"] > 10).sum() == 4
    lines = describe(compared, 5, 5)
    assert lines[0] == "5 runs in both, of 5 here and 5 in the reference"
    assert lines[1].startswith("5 of 5 equal the reference number for number (") and len(lines) == 2


def test_a_missing_number_equals_a_missing_number(known):
    missing = change(known, "loss", lambda values: values * np.nan)
    assert (compare_runs(missing, missing)["different"] == 0).all()


def test_the_last_bit_of_one_number_is_found(known):
    rows = known.runs[(known.runs["run_id"] == RUN) & (known.runs["metric"] == "loss")]
    steps = sorted(set(rows["step"]))
    assert steps == [1, 33], "a value for each rollout batch"
    ours = change(known, "loss", lambda values: np.nextafter(values, np.inf), steps[0])
    ours = change(ours, "grad_norm", lambda values: values + 1, steps[1])
    row = compare_runs(ours, known).set_index("run_id").loc[RUN]
    assert (row["different"], row["step"], row["metric"]) == (2, 1, "loss")
    assert row["here"] != row["there"] and row["here"] == pytest.approx(row["there"])
    text = said(ours, known)
    assert "4 of 5 equal the reference number for number" in text
    assert f"{RUN}: first differs at step 1, loss, " in text
    assert text.endswith("made from the same code and data")
    ours.runs["digest_environment"] = "0" * 64
    assert said(ours, known).endswith("made from other environment")
    assert said(Tidy(ours.runs.assign(numerics=0), ours.items), known).endswith(
        "made from other environment, numerics"
    )


def test_what_no_value_of_a_batch_shows_is_found(known):
    """A single step whose difference the mean rounds away, and two problems that changed places."""
    here = known.runs["run_id"] == RUN
    texts = known.runs["digest_log"].astype(str)
    other = Tidy(known.runs.assign(digest_log=texts.mask(here, "0" * 64)), known.items)
    assert compare_runs(other, known).set_index("run_id")["different"].to_dict()[RUN] == 1
    assert "4 of 5 equal" in said(other, known)
    assert f"  {RUN}: differs in single optimiser steps or test problems alone; ends at " in said(
        other, known
    )
    # Logs of unlike metrics have unlike digests anyway, and one that has none was not digested.
    less = Tidy(other.runs[other.runs["metric"] != "entropy"], known.items)
    assert "5 of 5 equal" in said(less, known)
    assert "5 of 5 equal" in said(Tidy(known.runs.assign(digest_log=""), known.items), known)

    items = known.items.copy()
    own = items.index[items["run_id"] == RUN]
    (first, second) = (own[0], next(row for row in own if items["c"][row] != items["c"][own[0]]))
    items.loc[[first, second], "c"] = items.loc[[second, first], "c"].to_numpy()
    swapped = compare_runs(Tidy(known.runs, items), known).set_index("run_id").loc[RUN]
    assert swapped["different"] == 2 and "4 of 5 equal" in said(Tidy(known.runs, items), known)


def test_a_run_that_ended_early_is_not_equal_and_a_new_metric_is_no_difference(known):
    runs = known.runs
    last = runs.loc[(runs["run_id"] == RUN) & (runs["source"] == "train"), "step"].max()
    short = runs[(runs["run_id"] != RUN) | (runs["source"] != "train") | (runs["step"] < last)]
    short = Tidy(short, known.items)
    for ours, theirs in ((short, known), (known, short)):
        row = compare_runs(ours, theirs).set_index("run_id").loc[RUN]
        assert row["different"] > 0 and row["step"] == last
    without = Tidy(runs[runs["metric"] != "entropy"], known.items)
    assert len(without.runs) < len(runs) and (compare_runs(known, without)["different"] == 0).all()


def test_means_are_put_beside_each_other_where_runs_differ(known):
    ours = change(known, "pass@1", lambda values: values * 0 + 0.25)
    both = []
    for runs in (ours.runs, known.runs):
        rows = (runs["metric"] == "pass@1") & runs["run_id"].str.contains("troll")
        both.append(100 * runs.loc[rows, "value"].mean())
    text = said(ours, known)
    line = next(
        line for line in text.splitlines() if line.startswith("  troll / grpo / stale / chains / tiny: ")
    )
    here, there = line.removesuffix(" %").split(": ")[1].split(" and ")
    assert [float(part.split(" ± ")[0]) for part in (here, there)] == pytest.approx(both, abs=0.051)


def test_runs_with_other_settings_are_no_repetition(known):
    own = known.runs["run_id"] == RUN
    runs = synthetic.record(known.runs, own, **{"training.learning_rate": 3e-4, "training.clip": 1})
    text = said(Tidy(runs, known.items), known)
    assert "1 of them not compared: their training/learning_rate differs" in text
    assert "training/clip" not in text, "a version that records more makes no difference"
    assert "4 of 4 equal the reference" in text


def test_nothing_in_common_is_said(known):
    elsewhere = Tidy(
        *(one.assign(run_id="x/" + one["run_id"].astype(str)) for one in (known.runs, known.items))
    )
    assert said(known, elsewhere) == "0 runs in both, of 5 here and 5 in the reference"


@pytest.mark.parametrize("layout", ["results/released/testbed", "results/testbed"])
def test_the_release_of_a_commit_is_read_from_git(one_setting, tmp_path, layout):
    checkout = tmp_path / "a checkout"
    place = checkout / "results/testbed"
    shutil.copytree(one_setting / "tidy", checkout / layout / "tidy")
    before = read_tidy(checkout / layout)
    with refused("HEAD", "--reference"):
        read_released(place, "HEAD")
    git = ["git", "-C", str(checkout), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "release"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    shutil.rmtree(checkout / layout)
    with refused("released/testbed/tidy"):
        read_released(place)
    found = read_released(place, "HEAD")
    pd.testing.assert_frame_equal(found.runs, before.runs)
    pd.testing.assert_frame_equal(found.items, before.items)
    with refused("released/testbed/tidy", "nowhere", "--reference"):
        read_released(place, "nowhere")


def test_runs_taken_from_the_release_do_not_repeat_it(one_setting, tmp_path):
    place = tmp_path / "results/testbed"
    for root in (place, released_directory(place)):
        shutil.copytree(one_setting / "tidy", root / "tidy")
    run = CliRunner().invoke
    error_of(run(app, ["compare", str(place)]), place, "all 4 runs", "REPEAT=1")
    write_whole(change(read_tidy(place), "wall_s", lambda values: values + 1), place)
    found = run(app, ["compare", str(place)])
    assert found.exit_code == 0 and found.output.startswith("not compared: 3 runs of the release itself")
    assert "2 runs in both, of 2 here and 5 in the reference" in found.output


def test_results_are_compared_with_their_release(one_setting, tmp_path):
    place = tmp_path / "a checkout/results/testbed"
    for root in (place, released_directory(place)):
        shutil.copytree(one_setting / "tidy", root / "tidy")
    before = read_tidy(place)
    assert replication_of(place) == [], "the released runs themselves"
    again = change(before, "loss", lambda values: values + 1)
    write_whole(again, place)
    assert replication_of(place) == [], "runs that took as long to the last bit are the released ones"
    again.runs["value"] *= np.where(again.runs["metric"] == "wall_s", 1.1, 1.0)
    write_whole(again, place)
    pd.testing.assert_frame_equal(read_released(place).runs, before.runs)
    assert replication_of(one_setting) == [], "it has no release"
    run = CliRunner().invoke
    equal, replicated = replication_of(place)
    assert equal == "3 of 4 runs equal the release to the last bit"
    assert replicated.startswith("Replicates: 1 of 1 settings lie within")
    kept = before.runs["run_id"] != RUN
    again.runs["value"] = again.runs["value"].where(~kept, before.runs["value"])
    write_whole(again, place)
    assert replication_of(place)[0] == "0 of 1 runs equal the release to the last bit"
    again.runs["value"] *= np.where(again.runs["metric"] == "wall_s", 1.1, 1.0)
    write_whole(again, place)
    hardware = {"vendor": "AuthenticAMD", "processor": "AMD EPYC", "capability": "AVX2"}
    changed = change(before, "loss", lambda values: values + 1)
    runs = changed.runs.assign(hardware=json.dumps(hardware))
    assert equality(compare_runs(changed, before), replace(changed, runs=runs), before) == [equal]
    intel = before.runs.assign(
        hardware=json.dumps(hardware | {"vendor": "GenuineIntel", "processor": "Xeon"})
    )
    apart = compare_runs(changed, before).assign(different=1)
    assert equality(apart, replace(changed, runs=runs), replace(before, runs=intel)) == [
        "0 of 4 runs equal the release to the last bit: they ran on AMD EPYC, the release on Xeon, which "
        "rounds otherwise"
    ]
    different, exact = run(app, ["compare", str(place)]), run(app, ["compare", str(place), "--exact"])
    assert (different.exit_code, exact.exit_code) == (0, 1)
    assert "4 of 5 equal the reference" in different.output
    other = run(app, ["compare", str(place), "--reference", str(place), "--exact"])
    assert other.exit_code == 0 and "5 of 5 equal the reference" in other.output
