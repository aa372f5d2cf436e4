"""The state of every run of an experiment, read from its files alone.

Nothing here imports torch or asks a scheduler, so that it answers at once on a login node too. A run is alive
if its process holds the lock of its directory; the lock is the operating system's and dies with the process.
"""

import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from troll.common.files import LOCK, parse_json
from troll.common.progress import clock
from troll.experiment.experiment import BASE, Experiment, Run
from troll.operations.outputs import made

State = Literal["done", "running", "failed", "stopped", "trained", "missing"]
STATES: dict[State, str] = {
    "running": "a process is training it",
    "failed": "its last attempt ended with an error",
    "stopped": "its last attempt was interrupted; the same command continues from the last checkpoint",
    "trained": "the model is ready, its samples or grades are not",
    "missing": "nothing was done yet",
    "done": "trained, sampled and graded",
}
"""In the order in which people want to see them."""

_TAIL_BYTES = 65_536
_RECENT_STEPS = 50
_QUIET_S = 300.0
_LOG_STAGES = ("sample", "grade", "sample_suites", "grade_suites")
_SUITES = "suites/graded.json"
_LARGEST = 2**63  # no step, second or share is beyond it, and arithmetic below it cannot overflow
_ERROR = re.compile(r"^error: (.+?)(?: \(log: [^)]*\))?$", re.MULTILINE)


@dataclass(frozen=True)
class RunStatus:
    """How far one run, or one base model, is."""

    name: str  # the run's id; ``base/<model>/<task>`` for a base model
    state: State  # see `STATES`
    step: int = 0  # optimiser steps done
    steps: int = 0  # optimiser steps of the whole run; 0 for a base model
    # seconds that training will still take, from the pace of its last steps; None where unknown
    left_s: float | None = None
    success: float | None = None  # of the newest rollout batch, in [0, 1]; None where unknown
    reason: str = ""  # the last error, or why there is nothing yet; empty where all is well
    log: Path | None = None  # the log with the error


def last_text(path: Path, size: int = _TAIL_BYTES) -> str:
    """The end of a file, maybe from within a line on; empty if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of a metrics file; one that is half there, or is damaged, is left out."""
    rows = []
    for line in last_text(path).splitlines():
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int) and _number(row["step"]) is not None:
            rows.append(row)
    return rows


def _number(value: Any) -> float | None:
    """A measured number, none of which is below 0; None for anything else that a line may hold."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST:
        return float(value)
    return None


def _wall_s(row: dict[str, Any]) -> float | None:
    return _number(row["time"].get("wall_s")) if isinstance(row.get("time"), dict) else None


def is_held(directory: Path) -> bool | None:
    """Whether a living process writes in a directory; None where the file system does not say."""
    try:
        handle = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared and let go at once: another reader is not in the way, and a writer that starts just now waits
        # for no longer than this line.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


def _error_in(log: Path) -> str:
    """The last error of a log; empty if it names none."""
    errors = _ERROR.findall(last_text(log))
    return str(errors[-1]).strip() if errors else ""


def _pace(rows: list[dict[str, Any]]) -> float | None:
    """Seconds of a step, over the last steps."""
    recent = rows[-_RECENT_STEPS:]
    if len(recent) < 2:
        return None
    began, ended = _wall_s(recent[0]), _wall_s(recent[-1])
    steps = recent[-1]["step"] - recent[0]["step"]
    return (ended - began) / steps if began is not None and ended is not None and steps else None


def pace_of(metrics: Path) -> tuple[int, float | None]:
    """The optimiser steps that a run has written, and seconds of one; of a first step alone, of that one."""
    rows = _last_rows(metrics)
    if not rows:
        return 0, None
    step, pace, since = rows[-1]["step"], _pace(rows), _wall_s(rows[-1])
    if pace is None and since is not None and step:
        pace = since / step
    return step, pace


def status_of_run(root: Path, run: Run, steps: int, *, suites: bool = False) -> RunStatus:
    """The state of one run."""
    directory, log = root / "runs" / run.run_id, root / "logs/train" / f"{run.run_id}.log"
    if (directory / "manifest.json").exists():
        if (directory / "grades.json").exists() and (not suites or (directory / _SUITES).exists()):
            return RunStatus(run.run_id, "done", steps, steps)
        for stage in _LOG_STAGES:
            log = root / "logs" / stage / "runs" / f"{run.run_id}.log"
            reason = _error_in(log)
            if reason:
                return RunStatus(run.run_id, "failed", steps, steps, reason=f"{stage}: {reason}", log=log)
        return RunStatus(run.run_id, "trained", steps, steps)
    metrics = directory / "metrics.jsonl"
    rows = _last_rows(metrics)
    step = rows[-1]["step"] if rows else 0
    successes = (_number(row.get("success")) for row in reversed(rows))
    success = next((value for value in successes if value is not None), None)
    quiet = time.time() - metrics.stat().st_mtime if rows else None
    held = is_held(directory)
    if held or (held is None and quiet is not None and quiet < _QUIET_S):
        pace = _pace(rows)
        left = pace * (steps - step) if pace is not None else None
        reason = f"no new step for {clock(quiet)}" if quiet is not None and quiet > _QUIET_S else ""
        return RunStatus(run.run_id, "running", step, steps, left, success, reason)
    reason = _error_in(log)
    if reason:
        return RunStatus(run.run_id, "failed", step, steps, success=success, reason=reason, log=log)
    if rows:
        return RunStatus(run.run_id, "stopped", step, steps, success=success)
    return RunStatus(run.run_id, "missing", 0, steps)


def status_of(experiment: Experiment, results: Path, only: Sequence[str] = ()) -> list[RunStatus]:
    """The states of base models and runs of an experiment, or of groups of it, in the order of the file."""
    root = results / experiment.experiment
    runs, held = experiment.runs(only), made(experiment, root)
    statuses = []
    for model, task in dict.fromkeys((run.model, run.task) for run in runs):
        settings, name = experiment.models[model], f"{BASE}/{model}/{task}"
        # What is only linked is no work worth a line.
        if settings.pretrained is None or settings.supervised_steps is not None:
            log = root / "logs/base_model" / model / f"{task}.log"
            if name in held or (root / name / "manifest.json").exists():
                statuses.append(RunStatus(name, "done"))
            elif reason := _error_in(log):
                statuses.append(RunStatus(name, "failed", reason=reason, log=log))
            else:
                statuses.append(RunStatus(name, "missing"))
    for run in runs:
        steps, suites = experiment.training_of(run).steps, bool(experiment.tasks[run.task].evaluate_on)
        if run.run_id in held:
            statuses.append(RunStatus(run.run_id, "done", steps, steps))
        else:
            statuses.append(status_of_run(root, run, steps, suites=suites))
    return statuses


def _line(status: RunStatus) -> str:
    left = "" if status.left_s is None else f"{clock(status.left_s)} left"
    success = "" if status.success is None else f"{100 * status.success:.0f} %"
    progress = f"{status.step:>6}/{status.steps:<6} {left:13} {success:5}" if status.steps else " " * 34
    return f"{status.state:8} {progress} {status.name}".rstrip()


def show(statuses: Iterable[RunStatus], title: str) -> list[str]:
    """The states as lines of text: a summary, the living and the broken first, the reasons below them.

    Columns: state, steps done of all, time left, success of the newest rollout batch, name.
    """
    order = list(STATES)
    ordered = sorted(statuses, key=lambda status: order.index(status.state))
    runs = [status for status in ordered if status.steps]
    counts = Counter(status.state for status in runs)
    parts = ", ".join(f"{counts[state]} {state}" for state in reversed(order) if counts[state])
    lines = [f"{title}: {len(runs)} runs: {parts}"]
    for status in ordered:
        lines.append(_line(status))
        if status.reason:
            lines.append(f"{'':9}{status.reason}")
        if status.log is not None:
            lines.append(f"{'':9}log: {status.log}")
    return lines
