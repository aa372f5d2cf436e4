"""Data for time estimates: optimiser steps of running jobs, and times of earlier jobs."""

import re
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from troll.experiment.experiment import Experiment
from troll.operations.outputs import made
from troll.operations.plan import earlier_runs, estimate, seconds_in
from troll.operations.status import last_text, pace_of

_PROGRESS = re.compile(r"\[train\] .+: step (\d+)/(\d+), .+, ([\d:]+) left$")
"""The line that `troll.training.callbacks.ProgressCallback` prints."""
_TAIL_LINES, _TAIL_BYTES = 8, 16_384
_MEASURED, _MOST_FILES = ("base_model", "sample", "grade"), 50


@dataclass(frozen=True)
class Steps:
    """The optimiser steps of a run."""

    done: int  # so far
    total: int  # of the whole run
    pace_s: float | None  # seconds per step; None if not yet known


def tail(path: Path) -> list[str]:
    """Returns the last non-empty lines of a job's log."""
    lines = last_text(path, _TAIL_BYTES).splitlines()
    return [line.rstrip() for line in lines if line.strip()][-_TAIL_LINES:]


def _written_by(path: Path, running_s: float) -> bool:
    """Whether a file was written by a job that has run for ``running_s``, and not by an earlier attempt."""
    try:
        return path.stat().st_mtime >= time.time() - running_s
    except OSError:
        return False


def read_steps(directory: Path, total: int, running_s: float) -> Steps | None:
    """Reads the steps of a running job; None if this attempt has not written any yet."""
    path = directory / "metrics.jsonl"
    done, pace_s = pace_of(path) if _written_by(path, running_s) else (0, None)
    return Steps(min(done, total), total, pace_s) if done else None


def steps_in_log(log: Path, running_s: float) -> Steps | None:
    """Reads the steps of a base model in training from the last progress line in its job's log."""
    lines = [match for line in tail(log) if (match := _PROGRESS.match(line))]
    if not lines or not _written_by(log, running_s):
        return None
    done, total = int(lines[-1][1]), int(lines[-1][2])
    left_s = sum(int(part) * 60**power for power, part in enumerate(reversed(lines[-1][3].split(":"))))
    return Steps(min(done, total), total, left_s / (total - done) if done < total else None)


def expected_seconds(experiment: Experiment, root: Path) -> dict[str, float]:
    """Estimates the seconds of a job, by rule, without rules about which nothing is known.

    For training it is the mean estimate of the missing runs, as by `troll check`; for other rules, the median
    of Snakemake's benchmarks in this experiment, or else in another one.
    """
    measured = {rule: seconds for rule in _MEASURED if (seconds := _measured(root, rule)) is not None}
    held = made(experiment, root)
    missing = [
        run
        for run in experiment.runs()
        if run.run_id not in held and not (root / "runs" / run.run_id / "manifest.json").exists()
    ]
    seen = list(earlier_runs(root.parent)) if missing else []
    times = [estimate(experiment, run, experiment.training_of(run), seen) for run in missing]
    estimated = [seconds for seconds in times if seconds is not None]
    if estimated and len(estimated) == len(missing):
        # An estimate covers all jobs of a run.
        others = measured.get("sample", 0.0) + measured.get("grade", 0.0)
        measured["train"] = max(mean(estimated) - others, 1.0)
    return measured


def _measured(root: Path, rule: str) -> float | None:
    for place in (root, *sorted(root.parent.glob("*"))):
        paths = sorted((place / "benchmarks" / rule).rglob("*.jsonl"))[:_MOST_FILES]
        times = [seconds for path in paths if (seconds := seconds_in(path)) is not None]
        if times:
            return median(times)
    return None
