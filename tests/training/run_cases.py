"""What tests of whole runs share: the reduced experiment's runs with an estimator, and how to read them."""

import json
import os
import sys

import yaml

from troll.experiment.experiment import resolve
from troll.experiment.files import parse_experiment, write_run_file
from troll.experiment.run_config import RunConfig
from troll.warm.client import VARIABLE

# PPO-max with all its parts: critic, KL in the reward with a coefficient that adapts, running moments, ptx.
PPO_MAX = {
    "rule": "ppo-max",
    "training": {
        "critic": {"learning_rate": 1.0e-3, "warmup_steps": 2},
        "regulariser": {"target": 0.01, "horizon": 100},
        "pretraining": {"coefficient": 0.1},
    },
}
DAPO = {"rule": "remax", "training": {"dynamic_sampling": {}, "overlong": {"buffer": 6}}}


def write_run(repository, out, estimator="grpo", trust_region="troll", validate_on=None, **changes):
    """Writes run.yaml of the reduced experiment's run with a rule and an estimator, with changes."""
    data = yaml.safe_load((repository / "tests/workflow/reduced.yaml").read_text())
    data["estimators"] |= {"ppo-max": PPO_MAX, "dapo": DAPO}
    experiment = parse_experiment(data, "reduced")
    run = next(
        run
        for run in experiment.runs()
        if (run.task, run.trust_region, run.estimator) == ("chains", trust_region, estimator)
    )
    config = resolve(experiment, run).model_dump()
    config["validate_on"] = validate_on or {}
    config["training"] |= {"rollout_batches": 8, "max_response_tokens": 12} | changes
    write_run_file(out / "run.yaml", RunConfig.model_validate(config))
    return out


def command(out, base, data, *options):
    troll = ["troll"] if VARIABLE in os.environ else [sys.executable, "-m", "troll.cli"]
    troll += ["--log", str(out / "log"), "job", "train", str(out / "run.yaml")]
    return [*troll, "--base", str(base), "--data", str(data), "--suites", str(data / "suites"), *options]


def metrics(out):
    """The lines of metrics.jsonl without their times."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert row.pop("time")["wall_s"] > 0
    return rows


def weights(out):
    return (out / "checkpoint" / "model.safetensors").read_bytes()
