import gzip
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
import yaml

from troll.analysis.data.runs import collect, read_directories
from troll.analysis.data.tidy import BASE, ITEM_COLUMNS, RUN_COLUMNS, read_items, read_runs, write_parquet
from troll.common.errors import UserError


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return synthetic.write_run(tmp_path / "testbed", "chains", "troll", "grpo", "gentle", 0, batches=2)


def edit_json(path: Path, **changes: object) -> None:
    synthetic.write_json(path, json.loads(path.read_text()) | changes)


def one(frame: pd.DataFrame, **where: object) -> pd.Series:
    for name, value in where.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, frame
    return frame.iloc[0]


def test_every_logged_number_becomes_one_row(run_dir: Path) -> None:
    runs = read_directories([run_dir]).runs
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    logged = {
        (line["step"], name): value
        for line in lines
        for name, value in line.items()
        if name not in ("step", "rollout_batch", "time")
    }
    train = runs[runs["source"].isin(["train", "validation"]) & ~runs["metric"].str.startswith("time/")]
    assert {(row.step, row.metric): row.value for row in train.itertuples()} == logged
    row = one(runs, step=9, metric="success")
    assert (row.rollout_batch, row.wall_s, row.source) == (1, lines[8]["time"]["wall_s"], "train")
    assert one(runs, step=1, metric="validation_success").source == "validation"
    assert one(runs, step=3, metric="time/update_s").value == 0.02
    assert not runs["metric"].isin(["time/wall_s", "step", "rollout_batch"]).any()


def test_coordinates_digests_and_constants(run_dir: Path) -> None:
    runs = read_directories([run_dir]).runs
    for name, value in {"model": "tiny", "task": "chains", "trust_region": "troll", "seed": 0}.items():
        assert (runs[name] == value).all()
    assert (runs["digest_source"] == "5" * 64).all()
    assert (runs["digest_test_data"] == "7" * 64).all()
    assert not runs["mixed"].any()
    assert one(runs, metric="setting/trust_region/settings/kl_bound").value == synthetic.KL_BOUND
    assert one(runs, metric="constraint_check/passed").value == 1
    assert one(runs, metric="wall_s").source == "manifest"


def test_settings_that_are_no_numbers_are_told_apart(run_dir: Path) -> None:
    config = yaml.safe_load((run_dir / "run.yaml").read_text())
    found = []
    for tail, steps in [("pooled", [3]), ("constant", [3]), ("pooled", [3, 4]), ("pooled", None)]:
        config["training"] |= {"tail": tail, "steps": steps, "name": f"{tail} {steps}"}
        synthetic.configure(run_dir, config)
        runs = read_directories([run_dir]).runs
        assert not runs["metric"].isin(["setting/experiment", "setting/training/name"]).any(), "coordinates"
        found.append([one(runs, metric=f"setting/training/{name}").value for name in ("tail", "steps")])
    (tails, steps) = zip(*found, strict=True)
    assert tails[0] == tails[2] == tails[3] != tails[1] and len(set(steps)) == 3
    assert all(float(value).is_integer() and value < 2**53 for row in found for value in row)


def test_a_directory_that_is_neither_run_nor_base_model_is_named(tmp_path: Path) -> None:
    base = synthetic.write_base(tmp_path, "chains")
    elsewhere = base.rename(tmp_path / "chains")
    with pytest.raises(UserError, match=r"chains: no run \(without run.yaml\) and no base model"):
        read_directories([], [elsewhere])


def test_blocks_may_carry_the_names(run_dir: Path) -> None:
    config = yaml.safe_load((run_dir / "run.yaml").read_text())
    config["estimator"] = {"name": "grpo", "rule": "grpo", "settings": {"epsilon": 0.07}}
    config["seeds"] = {"rollouts": 123456789}
    synthetic.configure(run_dir, config)
    runs = read_directories([run_dir]).runs
    assert (runs["estimator"] == "grpo").all()
    assert one(runs, metric="setting/estimator/settings/epsilon").value == 0.07
    assert not runs["metric"].str.contains("seeds").any(), "a derived seed is no setting that one compares"


def test_grades_become_test_rows_and_items(tmp_path: Path) -> None:
    table = np.zeros((4, 8), dtype=bool)
    table[0], table[1, :2] = True, True
    path = synthetic.write_run(
        tmp_path / "testbed", "chains", "clip", "grpo", "gentle", 1, table=table, batches=2
    )
    collected = read_directories([path])
    row = one(collected.runs, source="test", metric="pass@1")
    assert (row.value, row.n_items, row.step) == (10 / 32, 4, 16), "test metrics belong to the last step"
    assert one(collected.runs, metric="pass@8").value == 0.5
    assert one(collected.runs, metric="status/wrong").value == 22 / 32
    assert collected.items[["task_id", "n", "c"]].values.tolist() == [
        ["chains/test/0", 8, 8],
        ["chains/test/1", 8, 2],
        ["chains/test/2", 8, 0],
        ["chains/test/3", 8, 0],
    ]


def test_failures_of_the_machinery_do_not_count_as_wrong(run_dir: Path) -> None:
    path = run_dir / "grades.json"
    grades = json.loads(path.read_text())
    grades["problems"] = {
        "p": {"passed": [True, False, False], "status": ["passed", "wrong", "infrastructure"]}
    }
    synthetic.write_json(path, grades)
    items = read_directories([run_dir]).items
    assert items[["n", "c"]].values.tolist() == [[2, 1]]


def test_base_model_has_a_task_and_no_other_coordinates(tmp_path: Path) -> None:
    run_dirs, base_dirs = synthetic.write_experiment(
        tmp_path / "testbed", tasks=["chains"], seeds=1, batches=1, problems=5
    )
    collected = read_directories(run_dirs, base_dirs)
    base = collected.runs[collected.runs["trust_region"] == BASE]
    assert set(base["task"]) == {"chains"} and set(base["experiment"]) == {"testbed"}
    assert set(base["estimator"]) == {""} and set(base["condition"]) == {""}
    assert base["seed"].isna().all()
    assert set(base["digest_data"]) == {""}, "what a base model was made from is not what runs read"
    assert set(base["digest_source"]) == {"5" * 64}
    assert (collected.items["trust_region"] == BASE).sum() == 5


def test_files_round_trip_and_do_not_depend_on_order(tmp_path: Path) -> None:
    run_dirs, base_dirs = synthetic.write_experiment(
        tmp_path / "testbed", tasks=["chains"], seeds=2, batches=2, problems=5
    )
    first, second = tmp_path / "a/runs.parquet", tmp_path / "b/runs.parquet"
    collected = collect(run_dirs, first, tmp_path / "a/runs.csv.gz", base_dirs=base_dirs)
    collect(run_dirs[::-1], second, tmp_path / "b/runs.csv.gz", base_dirs=base_dirs)
    assert first.read_bytes() == second.read_bytes()
    assert (tmp_path / "a/runs.csv.gz").read_bytes() == (tmp_path / "b/runs.csv.gz").read_bytes()
    items = tmp_path / "a/runs_items.parquet"
    assert items.read_bytes() == (tmp_path / "b/runs_items.parquet").read_bytes()
    pd.testing.assert_frame_equal(read_runs(first), collected.runs)
    pd.testing.assert_frame_equal(read_items(items), collected.items)
    assert list(collected.runs) == list(RUN_COLUMNS) and list(collected.items) == list(ITEM_COLUMNS)
    text = gzip.decompress((tmp_path / "a/runs.csv.gz").read_bytes()).decode()
    assert len(text.splitlines()) == len(collected.runs) + 1
    assert "5" * 12 in text and "5" * 13 not in text


def test_not_a_number_is_kept_because_it_is_a_result(run_dir: Path) -> None:
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines()
    line = json.loads(lines[-1]) | {"loss": math.nan, "entropy": None}
    path.write_text("\n".join([*lines[:-1], json.dumps(line)]) + "\n")
    runs = read_directories([run_dir]).runs
    assert math.isnan(one(runs, step=16, metric="loss").value)
    assert runs[(runs["step"] == 16) & (runs["metric"] == "entropy")].empty


@pytest.mark.parametrize("name", ["run.yaml", "metrics.jsonl", "manifest.json", "grades.json"])
def test_missing_file_is_named(run_dir: Path, name: str) -> None:
    (run_dir / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: no such file"):
        read_directories([run_dir])


LARGE = "1" * 400  # larger than any float


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.yaml", "a: [", "run.yaml: not YAML"),
        ("run.yaml", "- 1", "run.yaml: expected a mapping"),
        ("metrics.jsonl", "", "metrics.jsonl: empty"),
        ("metrics.jsonl", '{"step": 1}\n{"step": 1}\n', r"metrics.jsonl:2: step: 1 is no integer above 1"),
        ("metrics.jsonl", '{"step": 1, "loss": "x"}\n', r"metrics.jsonl:1: loss: 'x' is no number"),
        ("metrics.jsonl", '{"step": 1}\n{"step"', r"metrics.jsonl:2: not JSON"),
        ("manifest.json", "{", "manifest.json: not JSON"),
        ("manifest.json", "[]", "manifest.json: expected a JSON object"),
        ("grades.json", "{}", "grades.json: not a file of grades"),
        ("grades.json", "[]", "grades.json: not a file of grades"),
        ("metrics.jsonl", '{"step": 1}\n', "metrics.jsonl: no line has a number"),
        (
            "metrics.jsonl",
            f'{{"step": 1, "loss": {LARGE}}}\n',
            "metrics.jsonl:1: loss: 1+... is larger than any",
        ),
        ("metrics.jsonl", f'{{"step": {LARGE}}}\n', r"metrics.jsonl:1: step: 1+\.\.\. is no integer above 0"),
        (
            "metrics.jsonl",
            '{"step": 1, "rollout_batch": "x"}\n',
            "metrics.jsonl:1: rollout_batch: 'x' is no int",
        ),
        (
            "metrics.jsonl",
            '{"step": 1, "time": {"wall_s": "x"}}\n',
            "metrics.jsonl:1: time.wall_s: 'x' is no num",
        ),
    ],
)
def test_broken_file_is_named(run_dir: Path, name: str, text: str, message: str) -> None:
    (run_dir / name).write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_directories([run_dir])
    assert "\n" not in str(error.value)


def test_wrong_coordinate_digest_and_identity_are_named(run_dir: Path) -> None:
    manifest = json.loads((run_dir / "manifest.json").read_text())
    edit_json(run_dir / "manifest.json", digests=manifest["digests"] | {"source": None})
    with pytest.raises(UserError, match=r"digests\.source: None is no digest"):
        read_directories([run_dir])
    synthetic.write_json(run_dir / "manifest.json", manifest | {"run_id": "other"})
    with pytest.raises(UserError, match=r"run_id: 'other' is not the 'tiny/chains"):
        read_directories([run_dir])
    config = yaml.safe_load((run_dir / "run.yaml").read_text())
    (run_dir / "run.yaml").write_text(yaml.safe_dump(config | {"seed": "zero"}))
    with pytest.raises(UserError, match=r"run\.yaml: seed: 'zero' is no int"):
        read_directories([run_dir])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hardware": 3}, "hardware: expected an object, found 3"),
        ({"hardware": "a laptop"}, "hardware: expected an object, found 'a laptop'"),
        ({"hardware": [1]}, "hardware: expected an object, found [1]"),
        ({"wall_s": int(LARGE)}, "holds a number that is too large for a table"),
        ({"constraint_check": {"kl": int(LARGE)}}, "holds a number that is too large for a table"),
        ({"digests": None}, "expected a JSON object with an object `digests`"),
    ],
)
def test_a_manifest_that_no_run_writes_is_one_line(run_dir: Path, troll, changes: dict, said: str) -> None:
    edit_json(run_dir / "manifest.json", **changes)
    out = run_dir.parent / "tables"
    result = troll("collect", run_dir, "--out", out)
    assert (result.returncode, result.stderr) == (1, f"error: {run_dir}/manifest.json: {said}\n")
    assert not out.exists()


@pytest.mark.parametrize("value", ["x", int(LARGE), None], ids=["text", "large", "null"])
def test_a_number_of_grades_that_is_none_is_named(run_dir: Path, value: object) -> None:
    grades = json.loads((run_dir / "grades.json").read_text())
    edit_json(run_dir / "grades.json", metrics=grades["metrics"] | {"pass@4": value})
    with pytest.raises(UserError, match=r"grades\.json: not a file of grades"):
        read_directories([run_dir])
    entry = {"metrics": {"pass@1": value}, "problems": {}, "data_sha256": "x"}
    edit_json(run_dir / "grades.json", metrics=grades["metrics"])
    synthetic.write_json(run_dir / "suites/graded.json", {"gsm8k": entry})
    with pytest.raises(UserError, match=r"graded\.json: not a file of grades"):
        read_directories([run_dir])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--expected", "{"), "--expected: not JSON"),
        (("--expected", "3"), "--expected: expected a list of objects, one for each planned run"),
        (("--expected", "[3]"), "--expected: expected a list of objects, one for each planned run"),
        (("--skipped", "[]"), "--skipped: expected a JSON object, found list"),
        (("--looks", "3"), "--looks: expected first and most"),
    ],
)
def test_a_wrong_plan_is_one_line_before_anything_is_written(
    run_dir: Path, troll, options: tuple[str, str], said: str
) -> None:
    result = troll("collect", run_dir, "--out", run_dir.parent / "tables", *options)
    assert result.returncode == 1 and result.stderr.startswith(f"error: {said}")
    assert result.stderr.count("\n") == 1 and not (run_dir.parent / "tables").exists()


def test_a_plan_can_be_written_beside_runs_whose_manifests_have_no_settings(run_dir: Path, troll) -> None:
    """Those of base models of older versions, for one."""
    base = synthetic.write_base(run_dir.parents[6], "chains")
    assert "config" not in json.loads((base / "manifest.json").read_text())
    out = run_dir.parents[6] / "tables"
    result = troll("collect", run_dir, base, "--out", out, "--expected", "[]")
    assert result.returncode == 0, result.stderr
    assert json.loads((out / "plan.json").read_text()) == {"expected": [], "skipped": {}}


def test_settings_that_a_run_was_not_made_with_are_refused(run_dir: Path) -> None:
    """As when an experiment file has changed, and its runs were not yet made again."""
    path = run_dir / "run.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(config | {"training": config["training"] | {"learning_rate": 0.5}}))
    with pytest.raises(UserError, match=r"run\.yaml: training: not what .*manifest\.json says"):
        read_directories([run_dir])
    edit_json(run_dir / "manifest.json", config=None)
    with pytest.raises(UserError, match=r"run\.yaml: condition: not what"):
        read_directories([run_dir])


def test_a_score_that_its_own_problems_contradict_is_refused(run_dir: Path) -> None:
    grades = json.loads((run_dir / "grades.json").read_text())
    edit_json(run_dir / "grades.json", metrics=grades["metrics"] | {"pass@1": 0.999})
    with pytest.raises(UserError, match=r"pass@1: 0\.999000, but its problems give"):
        read_directories([run_dir])


def test_nothing_and_twice_are_refused(run_dir: Path) -> None:
    with pytest.raises(UserError, match="no run directories"):
        read_directories([])
    with pytest.raises(UserError, match="both hold run tiny/chains"):
        read_directories([run_dir, run_dir])


def test_disagreeing_digests_are_refused_or_marked(tmp_path: Path) -> None:
    root = tmp_path / "testbed"
    dirs = [synthetic.write_run(root, "chains", "clip", "grpo", "gentle", s, batches=1) for s in range(3)]
    odd = synthetic.write_run(
        root, "chains", "troll", "grpo", "gentle", 0, batches=1, digests={"source": "9" * 64}
    )
    with pytest.raises(UserError, match=r"digests\.source of experiment testbed disagree") as error:
        read_directories([*dirs, odd])
    message = str(error.value)
    assert "999999999999 in tiny/chains/troll/grpo/gentle/seed0" in message
    assert "555555555555 in tiny/chains/clip/grpo/gentle/seed0" in message
    collected = read_directories([*dirs, odd], allow_mixed=True)
    assert set(collected.runs.loc[collected.runs["mixed"], "trust_region"]) == {"troll"}
    assert set(collected.items.loc[collected.items["mixed"], "trust_region"]) == {"troll"}


def test_tables_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    with pytest.raises(UserError, match="no such file"):
        read_runs(path)
    path.write_text("no table")
    with pytest.raises(UserError, match="not a Parquet file"):
        read_runs(path)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(UserError, match="column experiment is missing"):
        read_runs(path)


@pytest.mark.parametrize("name", ["runs.parquet", "notes.md"])
def test_a_file_in_place_of_a_directory_is_named(collected, tmp_path: Path, troll, name: str) -> None:
    path = tmp_path / name
    write_parquet(collected.runs.head(300), path, RUN_COLUMNS)
    said = f"error: {path}: is a file; name its directory, {tmp_path}\n"
    for command in (["compare", path], ["check-results", path], ["table", "main", "--results", path]):
        out = ["--out", tmp_path / "main"] if command[0] == "table" else []
        result = troll(*command, *out)
        assert (result.returncode, result.stderr) == (1, said), command
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_plan_of_any_size_can_be_read_from_the_input(tmp_path: Path) -> None:
    """One argument holds 128 kB; the shell's own printf has no limit."""
    run = synthetic.write_run(tmp_path / "testbed", "chains", "clip", "grpo", "gentle", 0, batches=1)
    entry = dict.fromkeys(("model", "task", "trust_region", "estimator", "condition", "rule"), "x")
    planned = json.dumps([entry | {"seed": seed} for seed in range(2000)])
    assert len(planned) > 2**17
    command = [
        sys.executable,
        "-m",
        "troll.cli",
        "collect",
        str(run),
        "--out",
        str(tmp_path),
        "--expected",
        "-",
    ]
    script = tmp_path / "collect.sh"
    script.write_text(f"printf %s {shlex.quote(planned)} | {shlex.join(command)}")
    subprocess.run(["bash", "-euo", "pipefail", script], check=True)
    assert len(json.loads((tmp_path / "plan.json").read_text())["expected"]) == 2000


def test_a_flipped_byte_of_a_table_is_refused_or_changes_nothing(collected, tmp_path):
    path = tmp_path / "runs.parquet"
    write_parquet(collected.runs.head(300), path, RUN_COLUMNS)
    whole, refused = path.read_bytes(), 0
    expected = read_runs(path).astype(str)
    for place in range(0, len(whole), 23):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert read_runs(path).astype(str).equals(expected), place
        except UserError as error:
            assert str(error).startswith(str(path))
            refused += 1
    assert refused > 100
