"""Rehearses an experiment: looks at its plan, runs it small through the workflow, looks at what came out."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from troll.common.digests import digest_of_json
from troll.common.errors import UserError
from troll.common.files import read_json, write_json, write_text
from troll.common.progress import clock, say
from troll.experiment.experiment import Experiment, Run
from troll.experiment.groups import runs_of
from troll.operations.rehearsal.checks import Check, failed
from troll.operations.rehearsal.cover import selection
from troll.operations.rehearsal.report import REPORT, digest_of, root_of
from troll.operations.rehearsal.shrink import shrink
from troll.operations.targets import skipped_tasks
from troll.operations.workflow import in_checkout, run_workflow

_FILE = "experiment.yaml"
_LOG = "rehearsal.log"
_SUBSTITUTES = "substitutes"
_RAW = (
    "runs",
    "base",
    "data",
    "suites",
    "public",
    "logs",
    "benchmarks",
    "resumed",
    _SUBSTITUTES,
    "runs.csv.gz",
)
_NEVER_COVERED = (
    "vLLM",
    "NCCL and sharding",
    "CUDA kernels",
    "memory and time at full length",
    "whether a checkpoint is written in the time between SLURM's warning and the limit",
)


@dataclass(frozen=True)
class Options:
    """What a rehearsal is asked for."""

    only: Sequence[str] = ()  # groups of runs; none for all
    full: bool = False  # every run instead of a pairwise cover
    keep: bool = False  # leave runs, base models and data of a passed rehearsal where they are
    plan_only: bool = False  # look at the plan, and run nothing
    cores: int = 1  # of this machine
    # directory of the Snakemake profile with the partitions that the jobs must fit
    profile: Path = Path("workflow/profiles/slurm")


def rehearse(experiment: Experiment, results: Path, options: Options) -> list[Check]:
    """Rehearses an experiment, says what it finds line by line, and writes rehearsal.json."""
    from troll.operations.rehearsal.figures import check_figures
    from troll.operations.rehearsal.partitions import check_partitions
    from troll.operations.rehearsal.sources import check_data, check_models, check_templates

    begun = time.monotonic()
    root = root_of(experiment.experiment, results)
    if not options.plan_only:
        _check_place(root)
    planned = runs_of(experiment, list(options.only))
    tasks = {run.task for run in planned}
    skipped = {task: why for task, why in skipped_tasks(experiment).items() if task in tasks}
    runs = selection(experiment, options.only, full=options.full)
    runs = [run for run in runs if run.task not in skipped]
    said: list[Check] = []

    def tell(checks: Sequence[Check]) -> None:
        said.extend(checks)
        for check in checks:
            say(check.line())

    say(f"rehearsal of {experiment.experiment}: {len(runs)} of {len(planned)} runs, in {root}")
    tell([Check("tasks", "note", f"left out, {why}", f"tasks.{task}") for task, why in skipped.items()])
    tell(check_models(experiment, planned))
    tell(check_templates(experiment, planned))
    data = check_data(experiment, planned)
    tell(data.checks)
    tell(check_partitions(experiment, options.profile))
    tell(check_figures(experiment))
    if runs and not options.plan_only:
        small, environment = _prepare(experiment, runs, root, data.absent)
        broken = _workflow(small, root, environment, options.cores)
        for check in _outcome(small, root, environment):
            tell([check])
        if not failed(said):  # otherwise they say why it ended
            tell(broken)
    left_out = not_covered(experiment, runs, planned, data.absent, plan_only=options.plan_only)
    say(f"not covered here: {', '.join(left_out)}")
    report = {
        "experiment": experiment.experiment,
        "digest": digest_of(experiment),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": 0 if options.plan_only else len(runs),
        "planned": len(planned),
        "only": list(options.only),
        "passed": not failed(said),
        "checks": [asdict(check) for check in said],
        "not_covered": left_out,
        "seconds": round(time.monotonic() - begun),
    }
    write_json(root / REPORT, report)
    if not (failed(said) or options.keep or options.plan_only):
        _clean(root)
    bad = len(failed(said))
    words = f"{bad} check{'s' if bad != 1 else ''} failed" if bad else "all checks passed"
    say(f"{words} in {clock(time.monotonic() - begun)}: {root / REPORT}")
    return said


def _check_place(root: Path) -> None:
    """Before anything else: the workflow runs in a checkout, and writes below its results/."""
    in_checkout("rehearse")
    if root.parent.resolve() != Path("results").resolve():
        raise UserError(f"--results: the workflow writes to results/, not to {root.parent}; leave it out")


def not_covered(
    experiment: Experiment,
    runs: Sequence[Run],
    planned: Sequence[Run],
    absent: Sequence[str],
    *,
    plan_only: bool,
) -> list[str]:
    """What a rehearsal cannot show, in words."""
    from troll.operations.rehearsal.sources import hubs_of, source_of

    gaps = ["every run: only the plan was looked at"] if plan_only else []
    gaps += list(_NEVER_COVERED)
    hubs = hubs_of(experiment, planned)
    strangers = [name for name, hub in hubs.items() if source_of(hub.id).directory is None]
    if strangers:
        gaps.append(f"real tokenizers of {len(strangers)} of {len(hubs)} models")
    if absent:
        gaps.append(f"real rows of {', '.join(absent)}")
    if len(runs) < len(planned) and not plan_only:
        gaps.append(
            f"{len(planned) - len(runs)} of {len(planned)} runs, because other runs cover all their pairs"
        )
    if experiment.tracking not in ("none", "tensorboard"):
        gaps.append(experiment.tracking)
    if experiment.public_data is not None and experiment.public_data.audit != "none":
        gaps.append("the audit of the graders")
    return gaps


def _prepare(
    experiment: Experiment, runs: Sequence[Run], root: Path, absent: Sequence[str]
) -> tuple[Experiment, dict[str, str]]:
    """Writes the small experiment and what replaces models and data.

    Leftovers of a rehearsal of other settings or other source are removed; those of one that was interrupted
    are gone on with.
    """
    from troll.common.hub import MIRROR
    from troll.common.lock_file import LOCK_VARIABLE
    from troll.experiment.files import parse_experiment
    from troll.operations.rehearsal.rows import write_rows
    from troll.operations.rehearsal.substitutes import write_models
    from troll.tasks import testbed
    from troll.tasks.datasets.load import STAND_INS
    from troll.training.manifest import source_digest

    contents = shrink(experiment, runs)
    small = parse_experiment(contents, f"{root / _FILE}")
    identity = {"experiment": contents, "source": source_digest(), "absent": list(absent)}
    state = root / _SUBSTITUTES / "identity.json"
    if not (state.exists() and read_json(state) == {"digest": digest_of_json(identity)}):
        _remove(root)
    models, rows = root / _SUBSTITUTES / "models", root / _SUBSTITUTES / "rows"
    write_text(root / _FILE, yaml.safe_dump(contents, sort_keys=False, allow_unicode=True))
    for name in absent:
        write_rows(name, rows)
    write_models(models, experiment, runs, testbed.TOKENIZER_TASKS)
    lock = root / _SUBSTITUTES / "data.lock.json"
    write_json(lock, _data_lock())
    write_json(state, {"digest": digest_of_json(identity)})
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


def _data_lock() -> dict[str, Any]:
    """What the lock file says of data sets: of models it says what their substitutes are not."""
    from troll.common.lock_file import MODELS, lock_path

    path = lock_path()
    lock = read_json(path) if path.exists() else {}
    return {name: entry for name, entry in lock.items() if not name.startswith(MODELS)}


def _remove(root: Path) -> None:
    if not root.exists():
        return
    if not (root / _FILE).exists() and not (root / REPORT).exists():
        raise UserError(f"{root}: is not a rehearsal's; move it out of the way")
    shutil.rmtree(root)


def _clean(root: Path) -> None:
    for name in _RAW:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in root.glob("groups/*/runs.csv.gz"):
        path.unlink()


def _workflow(small: Experiment, root: Path, environment: dict[str, str], cores: int) -> list[Check]:
    """Runs the workflow on the small experiment, its output in a log; gives a failed check if it fails."""
    log = root / _LOG
    say(f"the workflow: {len(small.runs())} runs, log in {log}")
    targets = ["all", *small.groups()]
    ended = run_workflow(root / _FILE, targets, log, cores=cores, environment=environment, keep_going=True)
    if not ended.status:
        return []
    return [Check("workflow", "failed", f"ended with status {ended.status}: {ended.last}", str(log))]


def _outcome(small: Experiment, root: Path, environment: dict[str, str]) -> Iterator[Check]:
    from troll.operations.rehearsal.outcome import checks_of, finished
    from troll.operations.rehearsal.resume import check_resuming

    yield from checks_of(small, root)
    yield from check_resuming(finished(small, root), environment)
