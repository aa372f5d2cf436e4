import gzip
import json
import math

import numpy as np
import pandas as pd
import pytest
import synthetic
import yaml
from refusals import error_of, refused
from synthetic import row_where
from typer.testing import CliRunner

from troll.analysis.data.reduction import by_batch, digest_of_log
from troll.analysis.data.run_files import read_run_files, read_suites
from troll.analysis.data.runs import read_directories
from troll.analysis.data.settings import flat_settings
from troll.analysis.data.tidy import BASE, ITEM_COLUMNS, RUN_COLUMNS, read_tidy
from troll.cli.app import app
from troll.common.numerics import NUMERICS
from troll.tasks.datasets.catalogue import MATH_EVAL


@pytest.fixture
def run_dir(tmp_path):
    return synthetic.write_run(tmp_path / "testbed", "chains", "troll", "grpo", "gentle", 0, batches=2)


def edit_json(path, **changes):
    synthetic.write_json(path, json.loads(path.read_text()) | changes)


def settings(runs):
    (text,) = set(runs["settings"])
    return dict(flat_settings(str(text)))


def test_what_is_logged_becomes_one_row_for_each_batch(run_dir):
    """The values themselves are those of `by_batch`, which has tests of its own."""
    runs = read_directories([run_dir]).runs
    files = read_run_files(run_dir)
    reduced = {(row["source"], row["step"], row["metric"]): row["value"] for row in by_batch(files.metrics)}
    rows = runs[~runs["source"].isin(["manifest", "test"])]
    assert {(row.source, row.step, row.metric): row.value for row in rows.itertuples()} == reduced
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    row = row_where(runs, step=9, metric="success")
    assert (row.rollout_batch, row.wall_s, row.source) == (1, lines[8]["time"]["wall_s"], "train")
    assert row.value == lines[8]["success"]
    assert row_where(runs, step=1, metric="validation_success").source == "validation"
    assert row_where(runs, step=9, metric="time/update_s").value == pytest.approx(0.02)
    assert row_where(runs, metric="summary/steps", source="summary").value == 16
    assert not runs["metric"].isin(["time/wall_s", "step", "rollout_batch"]).any()
    assert set(runs["digest_log"]) == {digest_of_log(files.metrics)}


def test_coordinates_digests_and_constants(run_dir):
    runs = read_directories([run_dir], keys={"tiny/chains/troll/grpo/gentle/seed0": "k" * 64}).runs
    for name, value in {"model": "tiny", "task": "chains", "trust_region": "troll", "seed": 0}.items():
        assert (runs[name] == value).all()
    assert (runs["numerics"] == NUMERICS).all() and (runs["key"] == "k" * 64).all()
    assert (runs["digest_test_data"] == "7" * 64).all()
    assert not runs["mixed"].any()
    assert settings(runs)["trust_region/settings/kl_bound"] == synthetic.KL_BOUND
    assert row_where(runs, metric="constraint_check/passed").value == 1
    assert row_where(runs, metric="wall_s").source == "manifest"
    assert not (runs["metric"] == "numerics").any(), "a column, and no number of the run"


def test_settings_that_are_no_numbers_are_kept(run_dir):
    config = yaml.safe_load((run_dir / "run.yaml").read_text())
    for tail, steps in [("pooled", [3]), ("constant", [3, 4]), ("pooled", None), (True, {})]:
        config["training"] |= {"tail": tail, "steps": steps, "name": f"{tail} {steps}"}
        synthetic.configure(run_dir, config)
        found = settings(read_directories([run_dir]).runs)
        assert not {"experiment", "training/name"} & set(found), "coordinates"
        assert found["training/tail"] == tail
        assert found.get("training/steps") == (json.dumps(steps) if isinstance(steps, list) else None)
        hash(tuple(found.values()))


def test_a_directory_that_is_neither_run_nor_base_model_is_named(tmp_path):
    base = synthetic.write_base(tmp_path, "chains")
    elsewhere = base.rename(tmp_path / "chains")
    with refused(elsewhere, "run.yaml"):
        read_directories([], [elsewhere])


def test_blocks_may_carry_the_names(run_dir):
    config = yaml.safe_load((run_dir / "run.yaml").read_text())
    config["estimator"] = {"name": "grpo", "rule": "grpo", "settings": {"epsilon": 0.07}}
    config["seeds"] = {"rollouts": 123456789}
    config |= {"thinking": "template", "files_sha256": {"reward": "0" * 64}}
    synthetic.configure(run_dir, config)
    runs = read_directories([run_dir]).runs
    assert (runs["estimator"] == "grpo").all()
    assert settings(runs)["estimator/settings/epsilon"] == 0.07
    assert settings(runs)["thinking"] == "template" and settings(runs)["files_sha256/reward"] == "0" * 64
    assert not any("seeds" in name for name in settings(runs)), (
        "a derived seed is no setting that one compares"
    )


def test_grades_become_test_rows_and_items(tmp_path):
    table = np.zeros((4, 8), dtype=bool)
    table[0], table[1, :2] = True, True
    path = synthetic.write_run(
        tmp_path / "testbed", "chains", "clip", "grpo", "gentle", 1, table=table, batches=2
    )
    collected = read_directories([path])
    row = row_where(collected.runs, source="test", metric="pass@1")
    assert (row.value, row.n_items, row.step) == (10 / 32, 4, 16), "test metrics belong to the last step"
    assert row_where(collected.runs, metric="pass@8").value == 0.5
    assert row_where(collected.runs, metric="status/wrong").value == 22 / 32
    assert collected.items[["task_id", "n", "c"]].values.tolist() == [
        ["chains/test/0", 8, 8],
        ["chains/test/1", 8, 2],
        ["chains/test/2", 8, 0],
        ["chains/test/3", 8, 0],
    ]


def test_failures_of_the_machinery_do_not_count_as_wrong(run_dir):
    path = run_dir / "grades.json"
    grades = json.loads(path.read_text())
    grades["problems"] = {
        "p": {"passed": [True, False, False], "status": ["passed", "wrong", "infrastructure"]}
    }
    synthetic.write_json(path, grades)
    items = read_directories([run_dir]).items
    assert items[["n", "c"]].values.tolist() == [[2, 1]]


def test_base_model_has_a_task_and_no_other_coordinates(tmp_path):
    run_dirs, base_dirs = synthetic.write_experiment(
        tmp_path / "testbed", tasks=["chains"], seeds=1, batches=1, problems=5
    )
    collected = read_directories(run_dirs, base_dirs)
    base = collected.runs[collected.runs["trust_region"] == BASE]
    assert set(base["task"]) == {"chains"} and set(base["experiment"]) == {"testbed"}
    assert set(base["estimator"]) == {""} and set(base["condition"]) == {""}
    assert base["seed"].isna().all()
    assert set(base["digest_data"]) == {""}, "what a base model was made from is not what runs read"
    assert set(base["digest_environment"]) == {"e" * 64} and set(base["settings"]) == {""}
    assert (collected.items["trust_region"] == BASE).sum() == 5


def test_files_round_trip_and_do_not_depend_on_order(tmp_path):
    run_dirs, base_dirs = synthetic.write_experiment(
        tmp_path / "testbed", tasks=["chains"], seeds=2, batches=2, problems=5
    )
    collected = synthetic.collect(run_dirs, tmp_path / "a", base_dirs=base_dirs)
    synthetic.collect(run_dirs[::-1], tmp_path / "b", base_dirs=base_dirs)
    for name in ("tidy/all.parquet", "runs.csv.gz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    read = read_tidy(tmp_path / "a")
    pd.testing.assert_frame_equal(read.runs, collected.runs)
    pd.testing.assert_frame_equal(read.items, collected.items)
    assert list(collected.runs) == list(RUN_COLUMNS) and list(collected.items) == list(ITEM_COLUMNS)
    text = gzip.decompress((tmp_path / "a/runs.csv.gz").read_bytes()).decode()
    assert len(text.splitlines()) == len(collected.runs) + 1
    assert "d" * 12 in text and "d" * 13 not in text


def test_not_a_number_is_kept_because_it_is_a_result(run_dir):
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines()
    last = [json.loads(line) | {"loss": math.nan, "entropy": None} for line in lines[-8:]]
    path.write_text("\n".join([*lines[:-8], *map(json.dumps, last)]) + "\n")
    runs = read_directories([run_dir]).runs
    assert math.isnan(row_where(runs, step=9, metric="loss").value)
    assert runs[(runs["step"] == 9) & (runs["metric"] == "entropy")].empty


LARGE = "1" * 400  # larger than any float
RUN = "tiny/chains/troll/grpo/gentle/seed0"
SUITE = {"problems": {}, "data_sha256": "x"}
NO_NUMBERS = (("x", "'x'"), (int(LARGE), f"{LARGE[:100]}..."), (None, None))
BROKEN = [
    *((name, None, ()) for name in ("metrics.jsonl", "manifest.json", "grades.json")),
    ("run.yaml", "a: [", ("YAML",)),
    ("run.yaml", "- 1", ()),
    ("run.yaml", {"seed": "zero"}, ("seed", "'zero'")),
    # As when an experiment file has changed, and its runs were not yet made again.
    ("run.yaml", {"training": {"learning_rate": 0.5}}, ("training", "manifest.json")),
    ("metrics.jsonl", "", ()),
    ("metrics.jsonl", '{"step": 1}\n', ()),
    ("metrics.jsonl", '{"step": 1}\n{"step": 1}\n', ("metrics.jsonl:2", "step", 1)),
    ("metrics.jsonl", '{"step": 1}\n{"step"', ("metrics.jsonl:2", "JSON")),
    ("metrics.jsonl", '{"step": 1, "loss": "x"}\n', ("metrics.jsonl:1", "loss", "'x'")),
    ("metrics.jsonl", f'{{"step": 1, "loss": {LARGE}}}\n', ("metrics.jsonl:1", "loss")),
    ("metrics.jsonl", f'{{"step": {LARGE}}}\n', ("metrics.jsonl:1", "step", 0)),
    ("metrics.jsonl", '{"step": 1, "rollout_batch": "x"}\n', ("metrics.jsonl:1", "rollout_batch", "'x'")),
    ("metrics.jsonl", '{"step": 1, "time": {"wall_s": "x"}}\n', ("metrics.jsonl:1", "time.wall_s", "'x'")),
    ("manifest.json", "{", ("JSON",)),
    ("manifest.json", "[]", ("JSON",)),
    ("manifest.json", {"digests": None}, ("JSON", "digests")),
    ("manifest.json", {"digests": synthetic.DIGESTS | {"data": None}}, ("digests.data", None)),
    *(("manifest.json", {"numerics": it}, ("numerics", repr(it))) for it in (None, True, -1, 1.5, "2")),
    *(("manifest.json", {"hardware": it}, ("hardware", repr(it))) for it in (3, "a laptop", [1])),
    ("manifest.json", {"run_id": "other"}, ("run_id", "'other'", RUN)),
    ("manifest.json", {"wall_s": int(LARGE)}, ("number",)),
    ("manifest.json", {"constraint_check": {"kl": int(LARGE)}}, ("number",)),
    ("manifest.json", {"config": None}, ("run.yaml", "condition")),
    ("grades.json", "{}", ()),
    ("grades.json", "[]", ()),
    ("grades.json", {"metrics": {"pass@1": 0.999}}, ("pass@1", "0.999000")),
    ("grades.json", {"metrics": {"pass@1": math.nan}}, ("pass@1", "nan")),
    *(("grades.json", {"metrics": {"a": it}}, ("metrics.a", shown)) for it, shown in NO_NUMBERS),
    *(
        ("suites/graded.json", {"gsm8k": SUITE | {"metrics": {"a": it}}}, ("gsm8k: metrics.a", shown))
        for it, shown in NO_NUMBERS
    ),
]
"""Files, what they hold instead or which of their keys change, and what messages name besides the file."""


@pytest.mark.parametrize(("name", "change", "facts"), BROKEN)
def test_a_file_that_no_run_writes_is_named_before_anything_is_written(run_dir, name, change, facts):
    path, out = run_dir / name, run_dir.parent / "tables"
    if change is None:
        path.unlink()
    elif isinstance(change, str):
        path.write_text(change)
    else:  # JSON is also YAML
        synthetic.write_json(path, (yaml.safe_load(path.read_text()) if path.exists() else {}) | change)
    error_of(CliRunner().invoke(app, ["job", "collect", str(run_dir), "--out", str(out)]), path, *facts)
    assert not out.exists()


def test_validation_on_data_sets_is_a_curve_for_each_and_their_mean(run_dir):
    path = run_dir / "metrics.jsonl"
    first, *others = [json.loads(line) for line in path.read_text().splitlines()]
    shares = {f"validation_success/{name}": place / 10 for place, name in enumerate(MATH_EVAL, start=1)}
    some = dict(list(shares.items())[1:])
    lines = [first | shares, others[0] | some, *others[1:]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = read_directories([run_dir]).runs
    found = runs[runs["metric"].str.startswith("validation_success/")]
    assert set(found["source"]) == {"validation"}
    mean = {"validation_success/math-eval": 0.4}
    assert dict(found[found["step"] == 1][["metric", "value"]].to_numpy()) == pytest.approx(shares | mean)
    assert dict(found[found["step"] == 2][["metric", "value"]].to_numpy()) == pytest.approx(some)


def test_the_mean_of_math_eval_is_official_only_where_every_set_is(run_dir):
    def entry(official):
        metrics = {"pass@1": 0.25, "disagreements": 3} | ({"official/pass@1": 0.5} if official else {})
        return {"metrics": metrics, "problems": {"0": {}}, "data_sha256": "x"}

    sets = {name: entry(official=True) for name in MATH_EVAL}
    synthetic.write_json(run_dir / "suites/graded.json", sets)
    rows = {row["metric"]: row["value"] for row in read_suites(run_dir, 1)[0]}
    assert (rows["math-eval/pass@1"], rows["math-eval/official/pass@1"]) == (0.25, 0.5)
    assert (rows["amc23/official/pass@1"], rows["amc23/disagreements"]) == (0.5, 3)
    synthetic.write_json(run_dir / "suites/graded.json", sets | {"amc23": entry(official=False)})
    rows = {row["metric"] for row in read_suites(run_dir, 1)[0]}
    assert "math-eval/pass@1" in rows and "math-eval/official/pass@1" not in rows


@pytest.mark.parametrize(
    ("plan", "facts"),
    [
        ("{", ("JSON",)),
        ("[]", ("list",)),
        ('{"expected": 3}', ("expected", 3)),
        ('{"expected": [3]}', ("expected.0", 3)),
        ('{"skipped": 3}', ("skipped", 3)),
        ('{"keys": ["k"]}', ("keys", "['k']")),
        ('{"seeds": 3}', ("seeds", "expected")),
    ],
)
def test_a_wrong_plan_is_one_line_before_anything_is_written(run_dir, plan, facts):
    file = run_dir.parent / "planned.json"
    file.write_text(plan)
    out = run_dir.parent / "tables"
    words = ["job", "collect", str(run_dir), "--out", str(out), "--plan", str(file)]
    error_of(CliRunner().invoke(app, words), file, *facts)
    assert not out.exists()


def test_a_plan_can_be_written_beside_runs_whose_manifests_have_no_settings(run_dir, troll):
    """Those of base models of older versions, for one."""
    base = synthetic.write_base(run_dir.parents[6], "chains")
    assert "config" not in json.loads((base / "manifest.json").read_text())
    out = run_dir.parents[6] / "tables"
    plan = out.with_name("planned.json")
    plan.write_text('{"expected": []}')
    result = troll("job", "collect", run_dir, base, "--out", out, "--plan", plan)
    assert result.returncode == 0, result.stderr
    assert json.loads((out / "plan.json").read_text()) == {"expected": [], "skipped": {}}


def test_nothing_and_twice_are_refused(run_dir):
    with refused("run directories"):
        read_directories([])
    with refused("run tiny/chains/troll/grpo/gentle/seed0"):
        read_directories([run_dir, run_dir])


def test_disagreeing_digests_are_refused_or_marked(tmp_path):
    root = tmp_path / "testbed"
    dirs = [synthetic.write_run(root, "chains", "clip", "grpo", "gentle", s, batches=1) for s in range(3)]
    odd = synthetic.write_run(
        root, "chains", "troll", "grpo", "gentle", 0, batches=1, digests={"environment": "9" * 64}
    )
    runs = (
        "999999999999 in tiny/chains/troll/grpo/gentle/seed0",
        "eeeeeeeeeeee in tiny/chains/clip/grpo/gentle/seed0",
    )
    with refused("digests.environment", "experiment testbed", *runs):
        synthetic.collect([*dirs, odd], tmp_path / "tables")
    assert not (tmp_path / "tables").exists()
    collected = synthetic.collect([*dirs, odd], tmp_path / "tables", allow_mixed=True)
    assert set(collected.runs.loc[collected.runs["mixed"], "trust_region"]) == {"troll"}
    assert set(collected.items.loc[collected.items["mixed"], "trust_region"]) == {"troll"}


@pytest.mark.parametrize("use", ["training", "test"])
def test_runs_that_read_other_prompts_are_refused(tmp_path, use):
    """The files of data and model may be the same, and what was made of them another."""
    root = tmp_path / "testbed"
    dirs = [synthetic.write_run(root, "chains", "clip", "grpo", "stale", n, batches=1) for n in range(3)]

    def read_by(path, digest):
        if use == "test":
            edit_json(path / "grades.json", prompts_sha256=digest)
        else:
            edit_json(path / "manifest.json", digests=synthetic.DIGESTS | {"prompts": digest})

    read_by(dirs[0], "1" * 64)
    read_by(dirs[1], "1" * 64)
    assert read_directories(dirs).runs["run_id"].nunique() == 3  # an older run does not say
    read_by(dirs[1], "2" * 64)
    with refused("seed0", "seed1", use, "prompts"):
        read_directories(dirs)


@pytest.mark.parametrize("name", ["all.parquet", "notes.md"])
def test_a_file_in_place_of_a_directory_is_named(experiment, tmp_path, troll, name):
    path = tmp_path / name
    path.write_bytes((experiment / "tidy/all.parquet").read_bytes())
    for command in (
        ["compare", path],
        ["release", "check", path],
        ["job", "table", "main", "--results", path],
    ):
        out = ["--out", tmp_path / "main"] if "table" in command else []
        error_of(troll(*command, *out), path, f"directory, {tmp_path}")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
