"""How long an experiment's runs still take: the only estimate of remaining time.

A running run's time comes from the pace of its last steps. A run that has not begun takes as long as similar
earlier runs on this machine (`troll.operations.plan.estimate`), or else as long as a running one of the same
model and task with as many steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from troll.experiment.experiment import Experiment
from troll.operations.plan import earlier_runs, estimate
from troll.operations.status import RunStatus


@dataclass(frozen=True)
class TimeLeft:
    """Remaining seconds of an experiment's runs."""

    total_s: float  # of all of them, one after the other
    longest_s: float  # of the one that has most
    runs: int  # their number


def time_left(experiment: Experiment, results: Path, statuses: Sequence[RunStatus]) -> TimeLeft | None:
    """Estimates what is left of the runs in these states; None if the time of one is unknown."""
    pending = {one.name: one for one in statuses if one.steps and one.state not in ("done", "trained")}
    runs = {run.run_id: run for run in experiment.runs() if run.run_id in pending}
    whole_run: dict[tuple[str, str, int], float] = {}  # seconds of a whole run, by model, task and steps
    for name, status in pending.items():
        if status.left_s is not None and status.step < status.steps:
            seconds = status.left_s * status.steps / (status.steps - status.step)
            key = (runs[name].model, runs[name].task, status.steps)
            whole_run[key] = max(seconds, whole_run.get(key, 0.0))
    begun = all(status.left_s is not None for status in pending.values())
    seen = [] if begun else list(earlier_runs(results))
    seconds_left = []
    for name, status in pending.items():
        run, left = runs[name], status.left_s
        if left is None:
            expected = estimate(experiment, run, experiment.training_of(run), seen)
            expected = whole_run.get((run.model, run.task, status.steps)) if expected is None else expected
            if expected is None:
                return None
            left = expected * max(1 - status.step / status.steps, 0.0)
        seconds_left.append(left)
    return TimeLeft(sum(seconds_left), max(seconds_left, default=0.0), len(seconds_left))
