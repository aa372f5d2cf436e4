"""`troll check`: the matrix, and times that come from earlier runs only."""

import functools
import json

import pytest
import yaml
from refusals import error_of
from typer.testing import CliRunner

from troll.cli.app import app
from troll.common.processor import processor_name
from troll.experiment.experiment import resolve
from troll.experiment.files import parse_experiment
from troll.operations.hub_context import known_context
from troll.operations.plan import earlier_runs, estimate, kept_aggregations, plan


def finish(results, experiment, run, wall_s, *, machine=None, jobs=None):
    """Leaves behind what a finished run leaves."""
    root = results / experiment.experiment
    directory = root / "runs" / run.run_id
    directory.mkdir(parents=True)
    hardware = {"processor": machine or processor_name(), "gpus": []}
    manifest = {
        "run_id": run.run_id,
        "config": resolve(experiment, run).model_dump(),
        "hardware": hardware,
        "wall_s": wall_s,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    for job, seconds in (jobs or {}).items():
        name = run.run_id if job == "train" else f"runs/{run.run_id}"
        path = root / "benchmarks" / job / f"{name}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"s": seconds}) + "\n")


def find(experiment, task, rule):
    return next(run for run in experiment.runs() if (run.task, run.trust_region) == (task, rule))


def time_of(experiment, run, results):
    return estimate(experiment, run, experiment.training_of(run), list(earlier_runs(results)))


def test_without_earlier_runs_every_time_is_unknown(reduced, tmp_path):
    lines = plan(parse_experiment(reduced, "x"), tmp_path / "none")
    assert lines[0].startswith("model  task       trust region  estimator  condition  seeds  steps  time")
    assert [line.split() for line in lines[1:5]] == [
        ["tiny", task, rule, "grpo", "stale", "1", "8", "unknown"]
        for task in ("chains", "functions")
        for rule in ("clip", "troll")
    ]
    assert lines[-1] == (
        f"4 runs from 2 base models; time unknown: no finished run of this kind from this machine under "
        f"{tmp_path / 'none'}/"
    )


def test_times_come_from_the_run_most_like_it(reduced, tmp_path):
    experiment = parse_experiment(reduced, "x")
    clip, troll = (find(experiment, "chains", rule) for rule in ("clip", "troll"))
    finish(tmp_path, experiment, clip, 20.0)
    assert time_of(experiment, clip, tmp_path) == 20.0
    assert time_of(experiment, troll, tmp_path) == 20.0, "another rule is the next best"
    finish(tmp_path, experiment, troll, 30.0, jobs={"train": 35.0, "sample": 4.0, "grade": 1.0})
    assert time_of(experiment, troll, tmp_path) == 40.0, "with the start of Python, samples and grades"
    assert time_of(experiment, clip, tmp_path) == 20.0
    assert time_of(experiment, find(experiment, "functions", "clip"), tmp_path) is None
    lines = plan(experiment, tmp_path)
    assert "about 0:20" in lines[1]
    assert "about 1:00 on one core, estimated from earlier runs" in lines[-1]
    assert lines[-1].endswith("; time of 2 unknown")


def test_time_grows_with_rollout_batches_and_nothing_else_is_guessed(reduced, tmp_path):
    experiment = parse_experiment(reduced, "x")
    clip = find(experiment, "chains", "clip")
    finish(tmp_path, experiment, clip, 20.0)
    reduced["training"]["rollout_batches"] = 20
    assert time_of(parse_experiment(reduced, "x"), clip, tmp_path) == 200.0
    reduced["training"]["max_response_tokens"] = 48
    assert time_of(parse_experiment(reduced, "x"), clip, tmp_path) is None
    reduced["training"]["max_response_tokens"] = 24
    reduced["models"]["tiny"]["width"] = 128
    assert time_of(parse_experiment(reduced, "x"), clip, tmp_path) is None


def test_other_machines_and_broken_manifests_do_not_count(reduced, tmp_path):
    experiment = parse_experiment(reduced, "x")
    clip, troll = (find(experiment, "chains", rule) for rule in ("clip", "troll"))
    finish(tmp_path, experiment, clip, 20.0, machine="another")
    finish(tmp_path, experiment, troll, 20.0)
    path = tmp_path / "reduced/runs" / troll.run_id / "manifest.json"
    path.write_text(path.read_text()[:100])
    assert not list(earlier_runs(tmp_path))


def test_rules_that_keep_their_own_aggregation_are_named(reduced):
    reduced["trust_regions"]["gspo"] = {"rule": "gspo-clip"}
    assert not kept_aggregations(parse_experiment(reduced, "x")), "nothing was asked for"
    reduced["training"]["aggregation"] = "seq-mean-token-mean"
    assert not kept_aggregations(parse_experiment(reduced, "x")), "what it has"
    reduced["training"]["aggregation"] = "token-mean"
    assert kept_aggregations(parse_experiment(reduced, "x")) == [
        "trust_regions.gspo: gspo-clip uses its own aggregation, seq-mean-token-mean, instead of token-mean"
    ]


@pytest.mark.parametrize(("context", "fits"), [(192, True), (191, False), (None, True)])
def test_check_compares_responses_with_the_context_of_a_model_of_the_hub(
    repository, tmp_path, monkeypatch, context, fits
):
    model = tmp_path / "mirror/us/small"
    model.mkdir(parents=True)
    (model / "config.json").write_text(
        json.dumps({"model_type": "llama", "max_position_embeddings": context})
    )
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tmp_path / "mirror"))
    known_context.cache_clear()
    one_gpu = yaml.safe_load((repository / "workflow/config/paper-one-gpu.yaml").read_text())
    one_gpu["models"] = {"small": {"hub": {"id": "us/small"}}}
    one_gpu["tasks"]["gsm8k"]["training"] = {"max_prompt_tokens": 64, "max_response_tokens": 128}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(one_gpu))
    result = CliRunner().invoke(app, ["check", str(tmp_path / "small.yaml"), "--names"])
    known_context.cache_clear()
    assert (result.exit_code == 0) is fits
    if not fits:
        error_of(result, "max_prompt_tokens 64", "max_response_tokens 128", "191 tokens", "model small")


MISSING = object()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config model", "tiny"),
        ("config training", []),
        ("config training rollout_batches", 0),
        ("config training rollout_batches", -4),
        ("config training rollout_batches", "4"),
        ("config", None),
        ("config task", 3),
        ("hardware", 3),
        ("hardware gpus", 3),
        ("wall_s", "20"),
        ("wall_s", -1.0),
        ("wall_s", float("nan")),
        ("wall_s", float("inf")),
        ("wall_s", 10**400),
        ("run_id", MISSING),
        ("config estimator", MISSING),
    ],
)
def test_a_damaged_manifest_tells_no_time_and_stops_nothing(reduced, tmp_path, key, value):
    experiment = parse_experiment(reduced, "x")
    clip, troll = (find(experiment, "chains", rule) for rule in ("clip", "troll"))
    finish(tmp_path, experiment, clip, 20.0)
    finish(tmp_path, experiment, troll, 30.0)
    path = tmp_path / "reduced/runs" / troll.run_id / "manifest.json"
    manifest = json.loads(path.read_text())
    *parents, last = key.split()
    block = functools.reduce(dict.__getitem__, parents, manifest)
    if value is MISSING:
        del block[last]
    else:
        block[last] = value
    path.write_text(json.dumps(manifest))
    assert [seen.run_id for seen in earlier_runs(tmp_path)] == [clip.run_id]
    assert "about 0:20" in plan(experiment, tmp_path)[1]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "3", "", '{"wall_s": ' + "1" * 5000 + "}"])
def test_a_manifest_that_is_no_object_tells_no_time_and_stops_nothing(reduced, tmp_path, text):
    experiment = parse_experiment(reduced, "x")
    clip = find(experiment, "chains", "clip")
    finish(tmp_path, experiment, clip, 20.0)
    (tmp_path / "reduced/runs" / clip.run_id / "manifest.json").write_text(text)
    assert not list(earlier_runs(tmp_path))
    assert "unknown" in plan(experiment, tmp_path)[1]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"s": null}', '{"s": []}', '{"s": NaN}', "[3]", '{"s": "-"}']
)
def test_a_damaged_time_of_a_job_is_as_one_that_is_not_there(reduced, tmp_path, text):
    experiment = parse_experiment(reduced, "x")
    clip = find(experiment, "chains", "clip")
    finish(tmp_path, experiment, clip, 20.0, jobs={"train": 35.0, "sample": 4.0, "grade": 1.0})
    assert time_of(experiment, clip, tmp_path) == 40.0
    (tmp_path / f"reduced/benchmarks/sample/runs/{clip.run_id}.jsonl").write_text(f"{text}\n")
    assert time_of(experiment, clip, tmp_path) == 20.0


def test_a_large_matrix_is_shown_by_group(reduced, tmp_path):
    regions = {f"clip{n}": reduced["trust_regions"]["clip"] for n in range(50)}
    first, rest = [*regions][:10], [*regions][10:]
    blocks = [{"group": "mine", "trust_regions": first}, {"group": "rest", "trust_regions": rest}]
    many = parse_experiment(reduced | {"trust_regions": regions, "matrix": blocks, "seeds": [0, 1, 2]}, "x")
    tasks = len(many.tasks)
    lines = plan(many, tmp_path)
    rows = [line.split() for line in lines[1:4]]
    steps = str(many.training_of(many.runs()[0]).steps)
    assert [row[:3] for row in rows] == [
        ["mine", str(10 * tasks), str(30 * tasks)],
        ["rest", str(40 * tasks), str(120 * tasks)],
        ["all", str(50 * tasks), str(150 * tasks)],
    ]
    assert all(row[3] == steps for row in rows)
    assert lines[4:6] == ["", "every run: --names"] and lines[6].startswith(f"{150 * tasks} runs from ")
