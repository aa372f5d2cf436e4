"""Run directories with known numbers, shaped like those of a real experiment."""

import json
import math
import re
from typing import Any

import numpy as np
import yaml

from troll.analysis.claims.verdicts import Claim
from troll.analysis.data.runs import checked, read_directories, write_whole
from troll.common.numerics import NUMERICS
from troll.experiment.files import parse_experiment
from troll.operations.outputs import entries_of

DIGESTS = {"environment": "e" * 64, "data": "d" * 64, "base_model": "b" * 64}
TASKS = ("chains", "functions")
CONDITIONS = ("gentle", "stale")
ESTIMATORS = ("grpo", "dr-grpo")
METHODS = ("clip", "troll")
# Success at the end of training by (condition, trust region); stale clip falls, as in a real collapse.
ENDS = {
    ("gentle", "clip"): 0.74,
    ("gentle", "troll"): 0.78,
    ("stale", "clip"): 0.22,
    ("stale", "troll"): 0.58,
}
MINI_BATCHES = {"gentle": 8, "stale": 32}
LEARNING_RATE = {"gentle": 1e-4, "stale": 1e-4}
KL_BOUND = 0.05
CLAIM = {
    "id": "c",
    "sentence": "S",
    "source": "P",
    "trust_region": "troll",
    "baseline": "clip",
    "metric": "pass@1",
    "direction": "higher",
}
"""The shortest claim, as a file has it; tests change keys of it."""


def claim(**changes):
    return Claim.model_validate(CLAIM | changes)


EXPERIMENT: dict[str, Any] = {
    "experiment": "e",
    "seeds": [0, 1],
    "tasks": {"chains": {}},
    "models": {"tiny": {}},
    "trust_regions": {"clip": {"rule": "clip"}},
    "estimators": {"grpo": {"rule": "grpo"}},
    "conditions": {"c": {}},
    "training": {"max_response_tokens": 48},
}
"""The shortest experiment, as a file has it."""


def entries_planned(kind, **changes):
    """Names of the tables or figures of `EXPERIMENT` with some of its keys changed."""
    experiment = parse_experiment(EXPERIMENT | changes, "file")
    return {entry.name for entry in entries_of(kind, experiment, experiment.runs())}


def collect(run_dirs, out, base_dirs=(), **options):
    """Finished directories as the tables of an experiment."""
    tidy = checked(read_directories(run_dirs, base_dirs), **options)
    write_whole(tidy, out)
    return tidy


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def grades(task, table, data="7" * 64, **metrics):
    """grades.json of a boolean table [problems, samples]."""
    samples = table.shape[1]
    miss = (
        [math.comb(samples - int(c), 8) / math.comb(samples, 8) for c in table.sum(1)] if samples >= 8 else []
    )
    scores = {"pass@1": float(table.mean())} | ({"pass@8": 1 - float(np.mean(miss))} if miss else {})
    if task == "functions":
        scores |= {"base/pass@1": min(1.0, scores["pass@1"] + 0.02), "base/pass@8": 0.95}
    problems = {
        f"{task}/test/{i}": {
            "passed": [bool(x) for x in row],
            "status": ["passed" if x else "wrong" for x in row],
        }
        for i, row in enumerate(table)
    }
    return {
        "task": task,
        "metrics": scores | metrics,
        "problems": problems,
        "versions": {"lm_eval": "0.4.13"},
        "data_sha256": data,
    }


def passes(rng, rate, problems=40, samples=8):
    """Passes of problems of varying difficulty whose mean rate is about ``rate``."""
    rate = min(max(rate, 0.02), 0.98)
    each = rng.beta(4 * rate, 4 * (1 - rate), size=(problems, 1))
    return rng.random((problems, samples)) < each


def solved(count, problems=60):
    """Passes of problems of which so many are solved by all of eight samples."""
    return np.repeat(np.arange(problems) < count, 8).reshape(problems, 8)


def metrics(rng, condition, method, batches):
    """A learning curve: rises towards the end value; stale clip rises a little, then falls."""
    lines, step, wall = [], 0, 0.0
    end, start, shift = ENDS.get((condition, method.split("-")[0]), 0.5), 0.35, rng.normal(0, 0.02)
    for batch in range(batches):
        t = batch / max(batches - 1, 1)
        rise = start + (end - start) * (1 - math.exp(-3 * t)) / (1 - math.exp(-3)) + shift * t
        if (condition, method) == ("stale", "clip"):
            rise += 0.12 * math.exp(-((t - 0.12) ** 2) / 0.01)
        for mini in range(MINI_BATCHES[condition]):
            step += 1
            wall += 0.05
            grown = (mini / MINI_BATCHES[condition]) ** 1.5 * (8 if condition == "stale" else 1)
            kl = grown * (0.03 if method == "clip" else 0.008) * math.exp(rng.normal(0, 0.15)) * (0.4 + t)
            line: dict[str, Any] = {
                "step": step,
                "rollout_batch": batch,
                "loss": rng.normal(0, 0.01),
                "grad_norm": math.exp(rng.normal(-1, 0.2)),
                "learning_rate": 1e-4,
                "entropy": (0.9 if method == "clip" else 1.0) - 0.5 * t + rng.normal(0, 0.02),
                "kl_to_old": kl,
                "kl_to_old_max": 20 * kl,
                "ratio_max": 1 + 10 * kl,
                "clip_fraction": min(0.9, 2 * kl),
                "kept_mass": 1 - 1e-5 * math.exp(rng.normal(0, 0.3)),
                "kept_mass_min": 0.998 + 0.001 * rng.random(),
                "time": {"wall_s": wall, "rollout_s": 0.02, "reward_s": 0.01, "update_s": 0.02},
            }
            if method.startswith("troll"):
                line |= {
                    "kl_projected_max": min(20 * kl, KL_BOUND),
                    "kl_violation_max": 1e-7 * (batch + 1) / batches,
                    "solver_residual_max": 2e-7,
                    "solver_evaluations": 6.0,
                    "step_size": 1 - min(0.9, 2 * kl) * 0.3,
                    "regression": kl * 0.1,
                }
            if mini == 0:
                line |= {
                    "success": float(np.clip(rise + rng.normal(0, 0.025), 0, 1)),
                    "response_length": 24 + 10 * t + rng.normal(0, 0.5),
                    "truncated": 0.01,
                }
                if batch % 3 == 0:
                    line["validation_success"] = float(np.clip(rise + rng.normal(0, 0.03), 0, 1))
            lines.append(line)
    return lines


def write_run(
    root,
    task,
    method,
    estimator,
    condition,
    seed,
    *,
    batches=6,
    table=None,
    digests=None,
    problems=40,
    rule=None,
    success=None,
):
    """One finished run directory under ``root`` (= results/<experiment>); ``success`` is by rollout batch."""
    run_id = f"tiny/{task}/{method}/{estimator}/{condition}/seed{seed}"
    path = root / "runs" / run_id
    rng = np.random.default_rng([seed, *run_id.encode()])
    path.mkdir(parents=True)
    run: dict[str, Any] = {
        "experiment": root.name,
        "run_id": run_id,
        "model": "tiny",
        "task": task,
        "trust_region": {"name": method, "rule": rule or method.split("-")[0], "settings": {}},
        "estimator": estimator,
        "condition": condition,
        "seed": seed,
        "training": {
            "learning_rate": LEARNING_RATE[condition],
            "mini_batches": MINI_BATCHES[condition],
            "num_iterations": 1,
            "keep": int(varied[1]) if (varied := re.search(r"-k(\d+)", method)) else 64,
            "optimizer": "adamw",
        },
    }
    if method.startswith("troll"):
        bound = re.search(r"-kl([\d.]+)", method)
        run["trust_region"]["settings"] = {"kl_bound": float(bound[1]) if bound else KL_BOUND}
    if method.startswith("clip"):
        size = re.search(r"-eps([\d.]+)", method)
        run["trust_region"]["settings"] = dict.fromkeys(
            ("epsilon_low", "epsilon_high"), float(size[1]) if size else 0.2
        )
    (path / "run.yaml").write_text(yaml.safe_dump(run))
    lines = metrics(rng, condition, method, batches)
    for line in lines if success else ():
        line |= {"success": success[line["rollout_batch"]]} if "success" in line else {}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if table is None:
        table = passes(rng, ENDS.get((condition, method.split("-")[0]), 0.5) + rng.normal(0, 0.02), problems)
    write_json(path / "grades.json", grades(task, table))
    write_json(
        path / "manifest.json",
        {
            "run_id": run_id,
            "config": run,
            "seeds": {"rollouts": 17},
            "git_commit": "0" * 40,
            "numerics": NUMERICS,
            "digests": DIGESTS | (digests or {}),
            "versions": {"torch": "2.13.0"},
            "hardware": {"cpu": "test", "cores": 2},
            "wall_s": lines[-1]["time"]["wall_s"],
            "constraint_check": {"kl_violation_max": 1e-7, "passed": True},
        },
    )
    return path


def configure(run, config):
    """Lets a run have been made with these settings."""
    (run / "run.yaml").write_text(yaml.safe_dump(config))
    write_json(run / "manifest.json", json.loads((run / "manifest.json").read_text()) | {"config": config})


def record(runs, rows, **changes):
    """The tidy table where some rows record other settings, by their path with dots; None leaves one out."""

    def changed(text):
        settings = json.loads(text)
        for path, value in changes.items():
            *blocks, name = path.split(".")
            block = settings
            for one in blocks:
                block = block.setdefault(one, {})
            block.pop(name, None)
            block |= {} if value is None else {name: value}
        return json.dumps(settings, sort_keys=True)

    texts = runs["settings"].astype(str)
    known = {text: changed(text) for text in set(texts[rows]) - {""}}
    return runs.assign(
        settings=texts.mask(rows, texts.map(lambda text: known.get(text, text))).astype("category")
    )


def write_base(root, task, *, table=None, problems=40):
    """The graded base model of a task."""
    path = root / "base" / "tiny" / task
    rng = np.random.default_rng([99, *task.encode()])
    write_json(path / "grades.json", grades(task, passes(rng, 0.35, problems) if table is None else table))
    write_json(
        path / "manifest.json",
        {"digests": DIGESTS | {"data": "0" * 64, "base_model": None}, "numerics": NUMERICS, "wall_s": 100.0},
    )
    return path


def read_solved(root, counts, *, seeds=3, batches=2, base=20):
    """Runs on chains that solve so many of 60 problems, by method and condition, and their base model.

    ``counts`` are those of all ``seeds``, or one for each seed from 0 on.
    """
    dirs = [
        write_run(root, "chains", method, "grpo", condition, seed, batches=batches, table=solved(count))
        for (method, condition), given in counts.items()
        for seed, count in enumerate([given] * seeds if isinstance(given, int) else given)
    ]
    bases = [] if base is None else [write_base(root, "chains", table=solved(base))]
    return read_directories(dirs, bases)


def row_where(frame, **where):
    """The one row of a table that has these values."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, frame
    return frame.iloc[0]


def rising(count, seeds=3):
    """One problem more with each seed."""
    return [count + seed for seed in range(seeds)]


def write_experiment(
    root,
    *,
    tasks=TASKS,
    conditions=CONDITIONS,
    estimators=ESTIMATORS,
    methods=METHODS,
    seeds=3,
    batches=6,
    problems=40,
    keep=lambda *_: True,
):
    """A whole matrix; returns run and base directories."""
    run_dirs = [
        write_run(root, t, m, e, c, s, batches=batches, problems=problems)
        for t in tasks
        for m in methods
        for e in estimators
        for c in conditions
        for s in range(seeds)
        if keep(t, m, e, c, s)
    ]
    return run_dirs, [write_base(root, task, problems=problems) for task in tasks]
