"""Runs against a reference: what is equal, where a run first differs, and what is no repetition at all."""

import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from typer.testing import CliRunner

from troll.analysis.data.replication import replication_of
from troll.analysis.data.reproduction import compare_runs, describe, released_runs
from troll.analysis.data.runs import collect
from troll.analysis.data.tidy import read_runs
from troll.cli.app import app
from troll.common.errors import UserError

RUN = "tiny/chains/troll/grpo/stale/seed1"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results") / "testbed"
    run_dirs, base_dirs = synthetic.write_experiment(
        root, tasks=["chains"], conditions=["stale"], estimators=["grpo"], seeds=2, batches=2, problems=6
    )
    collect(run_dirs, root / "runs.parquet", base_dirs=base_dirs, out_items=root / "items.parquet")
    return root


@pytest.fixture
def runs(directory: Path) -> pd.DataFrame:
    return read_runs(directory / "runs.parquet")


def change(runs: pd.DataFrame, metric: str, change, step: int | None = None) -> pd.DataFrame:
    """The same table with one number of one run changed."""
    changed = runs.copy()
    rows = (runs["run_id"] == RUN) & (runs["metric"] == metric)
    if step is not None:
        rows &= runs["step"] == step
    assert rows.any()
    changed.loc[rows, "value"] = change(changed.loc[rows, "value"])
    return changed


def said(ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    compared = compare_runs(ours, theirs)
    return "\n".join(describe(compared, ours["run_id"].nunique(), theirs["run_id"].nunique()))


def test_the_same_runs_are_equal_whatever_time_they_took(runs):
    compared = compare_runs(change(runs, "time/rollout_s", lambda values: values * 2), runs)
    assert len(compared) == runs["run_id"].nunique() == 5
    assert (compared["different"] == 0).all() and (compared["numbers"] > 10).sum() == 4
    lines = describe(compared, 5, 5)
    assert lines[0] == "5 runs in both, of 5 here and 5 in the reference"
    assert lines[1].startswith("5 of 5 equal the reference number for number (") and len(lines) == 2


def test_a_missing_number_equals_a_missing_number(runs):
    assert (compare_runs(*[change(runs, "loss", lambda values: values * np.nan)] * 2)["different"] == 0).all()


def test_the_last_bit_of_one_number_is_found(runs):
    steps = sorted(set(runs.loc[(runs["run_id"] == RUN) & (runs["metric"] == "loss"), "step"]))
    ours = change(runs, "loss", lambda values: np.nextafter(values, np.inf), steps[3])
    ours = change(ours, "grad_norm", lambda values: values + 1, steps[5])
    row = compare_runs(ours, runs).set_index("run_id").loc[RUN]
    assert (row["different"], row["step"], row["metric"]) == (2, steps[3], "loss")
    assert row["here"] != row["there"] and row["here"] == pytest.approx(row["there"])
    text = said(ours, runs)
    assert "4 of 5 equal the reference number for number" in text
    assert f"{RUN}: first differs at step {int(steps[3])}, loss, " in text
    assert text.endswith("made from the same code and data")
    ours["digest_environment"] = "0" * 64
    assert said(ours, runs).endswith("made from other environment")


def test_a_run_that_ended_early_is_not_equal_and_a_new_metric_is_no_difference(runs):
    last = runs.loc[(runs["run_id"] == RUN) & (runs["source"] == "train"), "step"].max()
    short = runs[(runs["run_id"] != RUN) | (runs["source"] != "train") | (runs["step"] < last)]
    for ours, theirs in ((short, runs), (runs, short)):
        row = compare_runs(ours, theirs).set_index("run_id").loc[RUN]
        assert row["different"] > 0 and row["step"] == last
    without = runs[runs["metric"] != "entropy"]
    assert len(without) < len(runs) and (compare_runs(runs, without)["different"] == 0).all()


def test_means_are_put_beside_each_other_where_runs_differ(runs):
    ours = change(runs, "pass@1", lambda values: values * 0 + 0.25)
    both = [
        100 * frame.loc[(frame["metric"] == "pass@1") & frame["run_id"].str.contains("troll"), "value"].mean()
        for frame in (ours, runs)
    ]
    text = said(ours, runs)
    line = next(
        line for line in text.splitlines() if line.startswith("  troll / grpo / stale / chains / tiny: ")
    )
    here, there = line.removesuffix(" %").split(": ")[1].split(" and ")
    assert [float(part.split(" ± ")[0]) for part in (here, there)] == pytest.approx(both, abs=0.051)


def test_runs_with_other_settings_are_no_repetition(runs):
    name = "setting/training/learning_rate"
    text = said(change(runs, name, lambda values: values * 3), runs)
    assert "1 of them not compared: their training/learning_rate differs" in text
    assert "4 of 4 equal the reference" in text


def test_nothing_in_common_is_said(runs):
    elsewhere = runs.assign(run_id="x/" + runs["run_id"].astype(str))
    assert said(runs, elsewhere) == "0 runs in both, of 5 here and 5 in the reference"


def test_git_knows_what_was_there_before(directory, tmp_path):
    place = tmp_path / "a checkout/results/testbed"
    place.mkdir(parents=True)
    table = place / "runs.parquet"
    table.write_bytes((directory / "runs.parquet").read_bytes())
    with pytest.raises(UserError, match=r"not in git at HEAD .*name a directory: --reference"):
        released_runs(place)
    git = ["git", "-C", str(tmp_path / "a checkout"), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "release"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    released = read_runs(table)
    assert replication_of(place) == [], "the released runs themselves"
    change(released, "loss", lambda values: values + 1).to_parquet(table)
    pd.testing.assert_frame_equal(released_runs(place), released)
    assert replication_of(directory) == [], "not in git"
    run = CliRunner().invoke
    assert replication_of(place)[0].startswith("Replicates: 1 of 1 settings lie within")
    different, exact = run(app, ["compare", str(place)]), run(app, ["compare", str(place), "--exact"])
    assert (different.exit_code, exact.exit_code) == (0, 1)
    assert "4 of 5 equal the reference" in different.output
    other = run(app, ["compare", str(place), "--reference", str(place), "--exact"])
    assert other.exit_code == 0 and "5 of 5 equal the reference" in other.output
    with pytest.raises(UserError, match="not in git at nowhere"):
        released_runs(place, "nowhere")
