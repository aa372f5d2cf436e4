"""Made-up runs of the paper's matrix, with numbers shaped like the published ones; tests only."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.tidy import ITEM_COLUMNS, RUN_COLUMNS

BATCHES, VALIDATE_EVERY, STEPS_PER_BATCH = 1001, 10, 8
GSM8K_BATCHES = 580  # 20 epochs of 7,473 problems
LOGGED_EVERY = 5  # real runs log every batch, which would only make tests slower
SIZES = {  # clip and TROLL on DAPO Train, DAPO Eval and MATH Eval
    "Qwen3-0.6B": (0.24, 0.335, 0.212, 0.296, 0.261, 0.277),
    "Qwen3-1.7B": (0.475, 0.51, 0.435, 0.473, 0.403, 0.422),
    "Qwen3-4B": (0.64, 0.70, 0.615, 0.676, 0.521, 0.556),
    "Qwen3-8B": (0.67, 0.73, 0.632, 0.688, 0.531, 0.54),
    "Qwen3-14B": (0.75, 0.79, 0.725, 0.757, 0.593, 0.613),
}
VARIANTS = {"troll-kl0.01": 0.449, "troll-kl0.25": 0.426, "troll-k16": 0.424, "troll-k256": 0.453}
FAMILIES = {
    ("Apertus-8B-Instruct-2509", "gsm8k"): (0.688, 0.824),
    ("Llama-3.2-3B", "gsm8k"): (0.589, 0.668),
    ("Llama-3.1-8B", "gsm8k"): (0.0, 0.759),
    ("SmolLM3-3B", "dapo"): (0.58, 0.606),
}


@cache
def made_up(*, validated=True, batches=BATCHES):
    """Runs and items of one seed; ``validated``: whether named data sets were solved in training."""
    rng = np.random.default_rng(0)
    rows = [row for run in _runs() for row in _rows(run, rng, validated=validated, batches=batches)]
    frame = pd.DataFrame(rows)
    kinds: dict[str, Any] = {"bool": False, "category": ""}
    missing = {name: kinds.get(kind, pd.NA) for name, kind in RUN_COLUMNS.items() if name not in frame}
    runs = frame.assign(**missing).astype(dict(RUN_COLUMNS))
    items = pd.DataFrame({name: pd.Series(dtype="object") for name in ITEM_COLUMNS})
    return runs, items.astype(dict(ITEM_COLUMNS))


def _runs():
    for model, (train, train_troll, own, own_troll, suites, suites_troll) in SIZES.items():
        hours = {"Qwen3-1.7B": 47.0, "Qwen3-14B": 95.0}.get(model, 84.0)
        yield _run(model, "dapo", "clip", train, own, suites, hours=0.9 * hours)
        yield _run(model, "dapo", "troll", train_troll, own_troll, suites_troll, hours=hours)
        yield _run(model, "eurus-code", "clip", 0.9 * train, 0.9 * own)
        yield _run(model, "eurus-code", "troll", 0.9 * train_troll, 0.9 * own_troll)
    for estimator in ("dr-grpo", "ppo"):
        yield _run("Qwen3-8B", "dapo", "clip", 0.66, 0.65, 0.54, estimator=estimator)
        yield _run("Qwen3-8B", "dapo", "troll", 0.70, 0.68, 0.55, estimator=estimator)
    yield _run("Qwen3-8B", "dapo", "gspo-clip", 0.04, 0.02, 0.05)
    yield _run("Qwen3-8B", "dapo", "troll-seq", 0.73, 0.71, 0.58)
    for variant, success in VARIANTS.items():
        yield _run("Qwen3-1.7B", "dapo", variant, 0.5, 0.47, success, hours=47.0)
    for (model, task), values in FAMILIES.items():
        for method, value in zip(("clip", "troll"), values, strict=True):
            yield _run(model, task, method, value, value)
    for condition, share in (("stale4x", 4), ("stale16x", 16)):
        yield _run("Qwen3-4B", "dapo", "clip", 0.5, 0.5, 0.45, condition=condition, share=share)
        yield _run("Qwen3-4B", "dapo", "troll", 0.68, 0.67, 0.55, condition=condition, share=share)


def _run(
    model,
    task,
    method,
    train,
    own,
    suites=None,
    *,
    hours=80.0,
    estimator="grpo",
    condition="stale1x",
    share=1,
):
    """The ends of one run's curves; ``share``: by how much its rollout batches are larger, so fewer."""
    place = {"model": model, "task": task, "trust_region": method, "estimator": estimator}
    place |= {"condition": condition, "seed": 0, "rule": method, "experiment": "made-up", "numerics": 1}
    place |= {"run_id": f"{model}/{task}/{method}/{estimator}/{condition}/seed0"}
    return {"place": place, "ends": (train, own, suites), "hours": hours, "share": share}


def _rows(run, rng, *, validated, batches):
    train, own, suites = run["ends"]
    longest = min(batches, GSM8K_BATCHES) if run["place"]["task"] == "gsm8k" else batches
    count, per_batch = -(-longest // run["share"]), STEPS_PER_BATCH * run["share"]
    last = count * per_batch

    def row(metric, value, step, source, batch=None):
        wall = None if batch is None else run["hours"] * 3600 * (batch + 1) / count
        return run["place"] | {
            **{"metric": metric, "value": value, "step": step, "source": source},
            **{"rollout_batch": batch, "wall_s": wall, "n_items": 100},
        }

    for batch in range(count):
        learned = 1 - np.exp(-batch * run["share"] / 60)
        step = batch * per_batch + 1
        if batch % LOGGED_EVERY == 0 or batch == count - 1:
            yield row("success", 0.3 + (train - 0.3) * learned + rng.normal(0, 0.02), step, "train", batch)
            yield row("entropy", 0.38 - 0.18 * learned, step, "train", batch)
        ends = {"success": own - 0.05}
        if run["place"]["task"] == "eurus-code":
            ends |= {"reward": own, "reward/eurus-code": own + 0.05 if validated else None}
        if validated:
            ends |= {f"success/{run['place']['task']}": own, "success/math-eval": suites}
        # A validation is in the line of the next update, and the last one in the line of the last update.
        places = [step] if batch % max(1, VALIDATE_EVERY // run["share"]) == 0 else []
        for at in [*places, last] if batch == count - 1 else places:
            for name, end in ends.items():
                if end is not None:
                    yield row(f"validation_{name}", 0.3 + (end - 0.3) * learned, at, "validation", batch)
    for metric, value in (("train_s", run["hours"] * 3600), ("final", train), ("entropy", 0.2)):
        yield row(f"summary/{metric}", value, last, "summary")
    yield row("summary/batches", count, last, "summary")
    yield row("pass@1", own, last, "test")
    if run["place"]["task"] == "eurus-code":
        yield row("reward", own + 0.05, last, "test")
    if suites is not None:
        yield row("math-eval/pass@1", suites, last, "test")
    yield row("peak_gib", 35.5, last, "manifest")
