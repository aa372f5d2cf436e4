"""How far running jobs are inside: the optimiser steps that runs and base models write as they train."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from troll.experiment.experiment import Experiment
from troll.experiment.looks import with_further_seeds
from troll.operations.progress_line.logs import tail
from troll.operations.status import pace_of

_PROGRESS = re.compile(r"\[train\] .+: step (\d+)/(\d+), .+, ([\d:]+) left$")
"""What `troll.training.callbacks.ProgressCallback` prints."""


@dataclass(frozen=True)
class Steps:
    """The optimiser steps of a run."""

    done: int  # so far
    total: int  # of the whole run
    pace_s: float | None  # seconds of one step; None where it is not known yet


def totals(experiment: Experiment, root: Path) -> dict[str, int]:
    """Optimiser steps of a whole run, by its id."""
    runs = with_further_seeds(experiment, root).runs()
    one_of_each = {run.group_id: run for run in runs}
    steps = {setting: experiment.training_of(run).steps for setting, run in one_of_each.items()}
    return {run.run_id: steps[run.group_id] for run in runs}


def read_steps(
    directory: Path, total: int, running_s: float, *, now: Callable[[], float] = time.time
) -> Steps | None:
    """The steps of a running job; None where this attempt has written none yet."""
    path = directory / "metrics.jsonl"
    try:
        if path.stat().st_mtime < now() - running_s:
            return None
    except OSError:
        return None
    done, pace_s = pace_of(path)
    return Steps(min(done, total), total, pace_s) if done else None


def steps_in_log(log: Path, running_s: float, *, now: Callable[[], float] = time.time) -> Steps | None:
    """The steps of a base model that is being trained, from the last line of progress in its job's log."""
    try:
        if log.stat().st_mtime < now() - running_s:
            return None
    except OSError:
        return None
    lines = [match for line in tail(log) if (match := _PROGRESS.match(line))]
    if not lines:
        return None
    done, total = int(lines[-1][1]), int(lines[-1][2])
    left_s = sum(int(part) * 60**power for power, part in enumerate(reversed(lines[-1][3].split(":"))))
    return Steps(min(done, total), total, left_s / (total - done) if done < total else None)


def read_all(
    jobs: Mapping[int, tuple[str, float]], totals: Mapping[str, int], root: Path
) -> dict[int, Steps]:
    """The steps of running jobs by number; ``jobs`` are the run that each trains, and its seconds so far."""
    progress = {}
    for number, (run_id, running_s) in jobs.items():
        if total := totals.get(run_id):
            steps = read_steps(root / "runs" / run_id, total, running_s)
            if steps is not None:
                progress[number] = steps
    return progress
