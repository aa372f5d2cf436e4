"""Rehearses an experiment: checks its plan, and runs a small version through the workflow."""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import yaml

from troll.common.digests import digest_of_json
from troll.common.errors import UserError
from troll.common.files import read_json, write_json, write_text
from troll.common.progress import clock, say
from troll.experiment.experiment import Experiment, Run
from troll.operations.gpu_fit import PROFILE
from troll.operations.rehearsal.partitions import check_partitions
from troll.operations.rehearsal.report import REPORT, Check, digest_of, failed, root_of
from troll.operations.rehearsal.shrink import selection, shrink
from troll.operations.rehearsal.sources import check_data, check_models, check_templates, sources_of
from troll.operations.targets import skipped_tasks
from troll.operations.workflow import in_checkout, run_workflow

_FILE = "experiment.yaml"
_LOG = "rehearsal.log"
_SUBSTITUTES = "substitutes"
_RAW = ("runs", "base", "data", "suites", "public", "logs", "benchmarks", _SUBSTITUTES)
_NEVER_COVERED = (
    "vLLM",
    "NCCL and sharding",
    "CUDA kernels",
    "memory and time at full length",
    "whether a checkpoint is written in the time between SLURM's warning and the limit",
)


def rehearse(
    experiment: Experiment,
    results: Path,
    *,
    only: Sequence[str] = (),
    full: bool = False,
    keep: bool = False,
    plan_only: bool = False,
    cores: int = 1,
    profile: Path = PROFILE,
) -> list[Check]:
    """Rehearses an experiment, prints a line for each check, and writes rehearsal.json.

    ``only`` are groups of runs, empty for all runs; ``full`` takes every run instead of a pairwise cover;
    ``keep`` does not delete runs, base models and data if all checks pass; ``plan_only`` skips the workflow;
    ``profile`` is the Snakemake profile with the partitions that the jobs must fit.
    """
    from troll.operations.rehearsal.figures import check_figures

    begun = time.monotonic()
    root = root_of(experiment.experiment, results)
    if not plan_only:  # the workflow runs in a checkout, and writes to its results/
        in_checkout("rehearse")
        if results.resolve() != Path("results").resolve():
            raise UserError(f"--results: the workflow writes to results/, not to {results}; leave it out")
    planned = experiment.runs(only)
    tasks = {run.task for run in planned}
    skipped = {task: why for task, why in skipped_tasks(experiment).items() if task in tasks}
    runs = [run for run in selection(experiment, only, full=full) if run.task not in skipped]
    checks_done: list[Check] = []

    def tell(checks: Sequence[Check]) -> None:
        checks_done.extend(checks)
        for check in checks:
            say(check.line())

    say(f"rehearsal of {experiment.experiment}: {len(runs)} of {len(planned)} runs, in {root}")
    tell([Check("tasks", "note", f"skipped: {why}", f"tasks.{task}") for task, why in skipped.items()])
    tell(check_models(experiment, planned))
    tell(check_templates(experiment, planned))
    checks, absent = check_data(experiment, planned)
    tell(checks)
    tell(check_partitions(experiment, planned, profile))
    tell(check_figures(experiment, planned))
    if runs and not plan_only:
        from troll.operations.rehearsal.outcome import check_runs

        small, environment = _prepare(experiment, runs, root, absent)
        log = root / _LOG
        say(f"the workflow: {len(small.runs())} runs, log in {log}")
        targets = ["all", *small.groups()]
        ended = run_workflow(
            root / _FILE, targets, log, cores=cores, environment=environment, keep_going=True
        )
        tell(check_runs(small, root))
        if ended.status and not failed(checks_done):  # a failed check explains the status
            words = f"ended with status {ended.status}: {ended.last}"
            tell([Check("workflow", "failed", words, str(log))])
    left_out = not_covered(experiment, runs, planned, absent, plan_only=plan_only)
    say(f"not covered here: {', '.join(left_out)}")
    report = {
        "experiment": experiment.experiment,
        "digest": digest_of(experiment),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": 0 if plan_only else len(runs),
        "planned": len(planned),
        "only": list(only),
        "passed": not failed(checks_done),
        "checks": [asdict(check) for check in checks_done],
        "not_covered": left_out,
        "seconds": round(time.monotonic() - begun),
    }
    write_json(root / REPORT, report)
    bad = len(failed(checks_done))
    if not (bad or keep or plan_only):
        for directory in filter(Path.exists, (root / name for name in _RAW)):
            shutil.rmtree(directory)
        for path in (root / "runs.csv.gz", *root.glob("groups/*/runs.csv.gz")):
            path.unlink(missing_ok=True)
    words = f"{bad} check{'s' if bad != 1 else ''} failed" if bad else "all checks passed"
    say(f"{words} in {clock(time.monotonic() - begun)}: {root / REPORT}")
    return checks_done


def not_covered(
    experiment: Experiment,
    runs: Sequence[Run],
    planned: Sequence[Run],
    absent: Sequence[str],
    *,
    plan_only: bool,
) -> list[str]:
    """Lists in words what a rehearsal does not cover."""
    gaps = ["every run: only the plan was checked"] if plan_only else []
    gaps += list(_NEVER_COVERED)
    substituted = [source.directory is None for _, source in sources_of(experiment, planned).values()]
    if any(substituted):
        gaps.append(f"real tokenizers of {sum(substituted)} of {len(substituted)} models")
    if absent:
        gaps.append(f"real rows of {', '.join(absent)}")
    if len(runs) < len(planned) and not plan_only:
        gaps.append(f"{len(planned) - len(runs)} of {len(planned)} runs, as others cover all their pairs")
    if experiment.tracking not in ("none", "tensorboard"):
        gaps.append(experiment.tracking)
    if experiment.public_data is not None and experiment.public_data.audit != "none":
        gaps.append("the audit of the graders")
    return gaps


def _prepare(
    experiment: Experiment, runs: Sequence[Run], root: Path, absent: Sequence[str]
) -> tuple[Experiment, dict[str, str]]:
    """Writes the small experiment and the substitutes for models and data; returns it and the environment.

    Removes the files of an earlier rehearsal with other settings or other source code; resumes one that was
    interrupted.

    Raises:
        UserError: if the directory is not a rehearsal's.
    """
    from troll.common.hub import MIRROR
    from troll.common.lock_file import LOCK_VARIABLE, MODELS, lock_path
    from troll.experiment.files import parse_experiment
    from troll.operations.rehearsal.substitutes import write_models, write_rows
    from troll.tasks import testbed
    from troll.tasks.datasets.load import STAND_INS
    from troll.training.manifest import source_digest

    contents = shrink(experiment, runs)
    small = parse_experiment(contents, f"{root / _FILE}")
    identity = {"experiment": contents, "source": source_digest(), "absent": list(absent)}
    state = root / _SUBSTITUTES / "identity.json"
    made_from = {"digest": digest_of_json(identity)}
    if root.exists() and not (state.exists() and read_json(state) == made_from):
        if not (root / _FILE).exists() and not (root / REPORT).exists():
            raise UserError(f"{root}: is not the directory of a rehearsal; move it away")
        shutil.rmtree(root)
    models, rows = root / _SUBSTITUTES / "models", root / _SUBSTITUTES / "rows"
    write_text(root / _FILE, yaml.safe_dump(contents, sort_keys=False, allow_unicode=True))
    for name in absent:
        write_rows(name, rows)
    write_models(models, experiment, runs, testbed.TOKENIZER_TASKS)
    lock = root / _SUBSTITUTES / "data.lock.json"
    pinned = read_json(lock_path()) if lock_path().exists() else {}
    # Without the pins of models, which do not apply to their substitutes.
    write_json(lock, {name: pinned[name] for name in pinned if not name.startswith(MODELS)})
    write_json(state, made_from)
    environment = os.environ | {
        "TROLL_ALLOW_CPU": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        MIRROR: str(models.resolve()),
        STAND_INS: str(rows.resolve()),
        LOCK_VARIABLE: str(lock.resolve()),
    }
    return small, environment
