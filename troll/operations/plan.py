"""Shows an experiment's runs as a table, with their time estimated from earlier runs on this machine."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from troll.common.errors import UserError
from troll.common.files import parse_json
from troll.common.processor import processor_name
from troll.common.progress import clock
from troll.experiment.budget import hours_of
from troll.experiment.experiment import Experiment, Run, resolve_model
from troll.experiment.files import load_experiment
from troll.experiment.settings import Training
from troll.operations.versions import tool

# Training settings that a run's time depends on, besides its rules.
_SIZES = (
    "prompts_per_batch",
    "responses_per_prompt",
    "mini_batches",
    "num_iterations",
    "micro_batches",
    "max_response_tokens",
    "keep",
)
_MOST_LINES = 40
_HEADER = ("model", "task", "trust region", "estimator", "condition", "seeds", "steps", "time of a run")
# What reading a file with arbitrary content may raise.
_BROKEN = (OSError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError)


@dataclass(frozen=True)
class EarlierRun:
    """An earlier run on this machine."""

    run_id: str
    experiment: str
    model: Mapping[str, Any]
    task: str
    trust_region: str
    estimator: str
    sizes: Mapping[str, Any]  # training settings that its time depends on
    seconds_per_batch: float  # one rollout batch and its optimiser steps
    start_s: float  # seconds of its jobs outside training: starting Python, sampling, grading


@cache
def gpu() -> str | None:
    """Returns the first GPU's name, as in manifests; None without a GPU."""
    return tool(("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"))


def _sizes(training: Mapping[str, Any]) -> dict[str, Any]:
    parts = {key: training.get(key) is not None for key in ("critic", "regulariser", "pretraining")}
    return {key: training.get(key) for key in _SIZES} | parts


def _model(settings: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("hub", "wheel", "vocabulary", "layers", "width", "heads", "key_value_heads", "head_width")
    return {key: settings.get(key) for key in keys}


def seconds_in(benchmark: Path) -> float | None:
    """Reads a job's seconds from its Snakemake benchmark file; None if that is missing or damaged."""
    try:
        return _duration(parse_json(benchmark.read_text().splitlines()[-1])["s"])
    except _BROKEN:
        return None


def _duration(value: Any) -> float:
    """Returns recorded seconds; raises an error, one of `_BROKEN`, if the value is not a duration."""
    if not 0 <= value < math.inf:  # raises a TypeError if it is not a number
        raise ValueError(f"{value} seconds")
    return float(value)


def earlier_runs(results: Path) -> Iterator[EarlierRun]:
    """Yields the finished runs, of all experiments, that used the same kind of processor and GPU as here."""
    for path in results.glob("*/runs/*/*/*/*/*/*/manifest.json"):
        try:
            manifest = parse_json(path.read_text(encoding="utf-8"))
            config, hardware, run_id = manifest["config"], manifest["hardware"], manifest["run_id"]
            if (hardware["processor"], next(iter(hardware["gpus"]), None)) != (processor_name(), gpu()):
                continue
            training, wall_s = config["training"], _duration(manifest["wall_s"])
            benchmarks = (f"train/{run_id}", f"sample/runs/{run_id}", f"grade/runs/{run_id}")
            jobs = [seconds_in(path.parents[7] / f"benchmarks/{name}.jsonl") for name in benchmarks]
            known = [seconds for seconds in jobs if seconds is not None]
            # The time before a run was resumed is in the manifest but not in the benchmark.
            start = max(0.0, sum(known) - wall_s) if len(known) == len(jobs) else 0.0
            yield EarlierRun(
                run_id=run_id,
                experiment=config["experiment"],
                model=_model(config["model"]),
                task=config["task"]["name"],
                trust_region=config["trust_region"]["rule"],
                estimator=config["estimator"]["rule"],
                sizes=_sizes(training),
                seconds_per_batch=_duration(wall_s / training["rollout_batches"]),
                start_s=start,
            )
        except _BROKEN:
            continue  # from an older version, damaged or incomplete


def estimate(
    experiment: Experiment, run: Run, training: Training, seen: Sequence[EarlierRun]
) -> float | None:
    """Estimates the seconds that a run will take; None without a similar earlier run.

    Uses the mean over the most similar earlier runs with the same model, task and sizes: the same run; else
    the same rules; else the same estimator; else any. Assumes time proportional to rollout batches.
    """
    sizes = _sizes(training.model_dump())
    model = _model(resolve_model(experiment, run.model, run.task).model_dump())
    like = [s for s in seen if (s.task, s.sizes, s.model) == (run.task, sizes, model)]
    rule = experiment.trust_regions[run.trust_region].rule
    estimator = experiment.estimators[run.estimator].rule
    choices = (
        [s for s in like if (s.run_id, s.experiment) == (run.run_id, experiment.experiment)],
        [s for s in like if (s.trust_region, s.estimator) == (rule, estimator)],
        [s for s in like if s.estimator == estimator],
        like,
    )
    best = next((choice for choice in choices if choice), None)
    if best is None:
        return None
    return mean(s.seconds_per_batch for s in best) * training.rollout_batches + mean(s.start_s for s in best)


def _budgeted(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Returns the GPU-hours of a run, estimated without runs here; "unknown" for from-scratch models."""
    if not experiment.training_of(runs[0]).gpus and experiment.models[runs[0].model].wheel is not None:
        return "unknown"  # the estimates are for GPUs, and this run trains on a CPU
    hours = hours_of(experiment, runs[0])
    return "unknown" if hours is None else f"{hours} GPU-hours (troll check --cost)"


def plan(experiment: Experiment, results: Path) -> list[str]:
    """Formats the expanded matrix as lines of text: one for all seeds of a combination, and the total.

    With more than `_MOST_LINES` combinations there is a line for each group of runs instead.
    """
    seen = list(earlier_runs(results))
    combinations: dict[str, list[Run]] = {}
    for run in experiment.runs():
        combinations.setdefault(run.group_id, []).append(run)
    known, unknown = 0.0, 0
    rows: list[tuple[str, ...]] = []
    for group_id, runs in combinations.items():
        training = experiment.training_of(runs[0])
        times = [estimate(experiment, run, training, seen) for run in runs]
        estimates = [value for value in times if value is not None]
        known += sum(estimates)
        unknown += len(times) - len(estimates)
        shown = f"about {clock(mean(estimates))}" if estimates else _budgeted(experiment, runs)
        rows.append((*group_id.split("/"), str(len(runs)), str(training.steps), shown))
    if len(rows) > _MOST_LINES:
        lines = _table(("group", "combinations", "runs", "steps of a run"), _by_group(experiment))
        lines += ["", "every run: --names"]
    else:
        lines = [*_table(_HEADER, rows), ""]
    count, bases = sum(map(len, combinations.values())), experiment.bases()
    total = f"{count} runs from {len(bases)} base model{'s' if len(bases) != 1 else ''}"
    if unknown == count:
        total += f"; time unknown: no finished run of this kind from this machine under {results}/"
    else:
        total += f"; about {clock(known)} on one core, estimated from earlier runs on this machine"
        total += f"; time of {unknown} unknown" if unknown else ""
    return [*lines, total]


def _by_group(experiment: Experiment) -> Iterator[tuple[str, ...]]:
    """Yields a row for each group of runs, and one for all runs."""
    for name, members in {**experiment.groups(), "all": experiment.runs()}.items():
        steps = [experiment.training_of(run).steps for run in members]
        shown = f"{min(steps)} to {max(steps)}" if min(steps) < max(steps) else str(steps[0])
        yield name, str(len({run.group_id for run in members})), str(len(members)), shown


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells)
    return ["  ".join(row).rstrip() for row in padded]


def kept_aggregations(experiment: Experiment) -> list[str]:
    """Returns a line for each trust region that uses its own aggregation instead of the one configured."""
    from troll.algorithms.aggregation import RELEASED
    from troll.algorithms.trust_regions import TRUST_REGIONS

    wanted = {(run.trust_region, experiment.training_of(run).aggregation or "") for run in experiment.runs()}
    return [
        f"trust_regions.{name}: {region.rule} uses its own aggregation, {own}, instead of {other}"
        for name, region in experiment.trust_regions.items()
        if (own := TRUST_REGIONS[region.rule].aggregation)
        for other in sorted(
            other for of_name, other in wanted if of_name == name and other not in ("", own, RELEASED)
        )
    ]


def plan_of(file: Path, results: Path, *, names: bool = False) -> list[str]:
    """Checks an experiment file and returns its plan; with ``names``, its run ids."""
    from troll.operations.claims_ahead import claims_in_words, claims_of
    from troll.operations.gpu_fit import refuse_impossible
    from troll.operations.hub_context import hub_context_problems

    experiment = load_experiment(file)
    claims = claims_of(experiment)
    for problem in hub_context_problems(experiment):
        raise UserError(f"{file}: {problem}")
    refuse_impossible(experiment, experiment.runs(), file)
    if names:
        return [run.run_id for run in experiment.runs()]
    return [*plan(experiment, results), *kept_aggregations(experiment), claims_in_words(claims, experiment)]
