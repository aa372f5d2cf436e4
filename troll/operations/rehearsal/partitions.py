"""Checks whether the jobs of an experiment fit into the partitions of a SLURM profile."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from troll.common.errors import UserError
from troll.common.files import read_yaml
from troll.experiment import resources
from troll.experiment.experiment import Experiment, Run
from troll.experiment.resources import ATTEMPTS, FIXED, Request
from troll.operations.gpu_fit import PROFILE
from troll.operations.rehearsal.report import Check, State, failures_or_ok

_NAME = "partitions"
_KEY = "slurm-partition-config"
_LARGE_MB = 64_000  # memory that nearly every cluster node has


def requests(experiment: Experiment, planned: Sequence[Run], attempt: int) -> dict[tuple[str, str], Request]:
    """Returns the largest request of each kind of job, by workflow rule and the key that determines it."""
    by_kind: dict[tuple[str, str], Request] = {}
    for run in planned:
        model, gpus = experiment.models[run.model], experiment.training_of(run).gpus
        source = model.pretrained
        sampled_on = experiment.evaluation.gpus if source and gpus else 0
        wanted = {
            "train": resources.training_request(source, gpus, attempt),
            "sample": resources.sampling_request(source, sampled_on, attempt),
        }
        if model.wheel is not None or model.supervised_steps is not None:
            wanted["hub_model"] = resources.base_request(source, model.supervised_steps, gpus, attempt)
        for rule, request in wanted.items():
            key = (rule, f"models.{run.model}")
            by_kind[key] = max(
                by_kind.get(key, request), request, key=lambda item: (item.memory_mb, item.gpus)
            )
    return by_kind | {(rule, ""): request for rule, request in FIXED.items()}


def _partitions(profile: Path) -> tuple[Path, list[Any]]:
    """Returns the profile's partition file, and its partitions as read by the executor plugin."""
    from snakemake_executor_plugin_slurm.partitions import read_partition_file
    from snakemake_interface_common.exceptions import WorkflowError

    settings = read_yaml(profile / "config.yaml", "profile")
    if not isinstance(settings, dict) or _KEY not in settings:
        raise UserError(f"{profile / 'config.yaml'}: {_KEY} is missing; set it to the partition file")
    path = Path(settings[_KEY])
    try:
        return path, read_partition_file(path)
    except (WorkflowError, TypeError, KeyError) as error:
        raise UserError(f"{path}: {error}") from None


def _fits(partition: Any, rule: str, request: Request) -> bool:
    """Whether the plugin would put a job into a partition; it reads only these attributes of a job."""
    wanted = {"mem_mb": request.memory_mb, "runtime": request.minutes, "gpu": request.gpus}
    job = SimpleNamespace(name=rule, threads=request.threads, resources=wanted)
    return partition.score_job_fit(job) is not None


def _too_small(partition: Any, rule: str, request: Request) -> list[str]:
    """Returns the limits of a partition that, each on its own, keep a job out."""
    limits = partition.limits
    names = [field.name for field in fields(limits) if field.name.startswith("max_")]
    lifted = {name: 10**9 if name == "max_gpu" else inf for name in names}
    return [
        name
        for name in names
        if (limit := getattr(limits, name)) not in (lifted[name], None)
        and not _fits(replace(partition, limits=replace(limits, **lifted | {name: limit})), rule, request)
    ]


def _failures(
    experiment: Experiment, planned: Sequence[Run], path: Path, partitions: list[Any]
) -> Iterator[Check]:
    reported = set()
    for attempt in (1, ATTEMPTS):
        for (rule, key), request in requests(experiment, planned, attempt).items():
            if (rule, key) in reported or any(_fits(partition, rule, request) for partition in partitions):
                continue
            reported.add((rule, key))
            # The closest partition: with GPUs if the job needs some, and with the fewest limits exceeded.
            tight = {item.name: _too_small(item, rule, request) for item in partitions}
            nearest = min(
                partitions,
                key=lambda item: (bool(request.gpus) and not item.limits.max_gpu, len(tight[item.name])),
            )
            limits = "; ".join(
                f"partitions.{nearest.name}.{name} is {getattr(nearest.limits, name):g}"
                for name in tight[nearest.name]
            )
            needs = f"{request.memory_mb:,} MB, {request.minutes:,} minutes, {request.threads} threads"
            needs += f" and {request.gpus} GPUs" if request.gpus else ""
            what = f"{rule} of {key}" if key else rule
            when = f" at attempt {attempt}" if attempt > 1 else ""
            state: State = "failed" if attempt == 1 else "note"
            yield Check(_NAME, state, f"{what} requests {needs}{when}; {limits}", str(path))


def check_partitions(experiment: Experiment, planned: Sequence[Run], profile: Path = PROFILE) -> list[Check]:
    """Checks every kind of job of the planned runs against the partitions, by the plugin's own criteria."""
    try:
        path, partitions = _partitions(profile)
    except ImportError:
        return [Check(_NAME, "note", "not checked: snakemake-executor-plugin-slurm is not installed")]
    by_kind = requests(experiment, planned, 1)
    most = max(request.memory_mb for request in by_kind.values())
    words = f"has no max_mem_mb; jobs request up to {most:,} MB"
    notes = [
        Check(_NAME, "note", f"partitions.{item.name} {words}", str(path))
        for item in partitions
        if item.limits.max_mem_mb == inf and most > _LARGE_MB
    ]
    names = ", ".join(item.name for item in partitions)
    summary = f"{len(by_kind)} kinds of jobs fit into {names}, up to {most:,} MB"
    return failures_or_ok(_NAME, [*notes, *_failures(experiment, planned, path, partitions)], summary)
