"""Determines the state of every run of an experiment from its files, and from SLURM's queue if there is one.

Nothing here imports torch, so it is fast on a login node too. A run is running if a process holds the file
lock of its directory, which the operating system releases when the process ends.
"""

import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from troll.common.files import LOCK, is_locked, parse_json
from troll.common.progress import clock
from troll.experiment.experiment import BASE, Experiment, Run
from troll.operations.changed_settings import changed_setting
from troll.operations.outputs import reusable_runs
from troll.operations.slurm_queue import Queue

State = Literal["done", "running", "pending", "failed", "stopped", "trained", "missing"]
STATES: dict[State, str] = {
    "running": "a process is training it",
    "pending": "its job waits in SLURM's queue, for the reason that SLURM gives",
    "failed": "its last attempt ended with an error",
    "stopped": "its last attempt was interrupted; the same command resumes from the last checkpoint",
    "trained": "the model is trained, but not yet sampled and graded",
    "missing": "not started",
    "done": "trained, sampled and graded",
}
"""Meaning of each state, in display order."""

_TAIL_BYTES = 65_536
_RECENT_STEPS = 50
_QUIET_S = 300.0
_LOG_STAGES = ("sample", "grade", "sample_suites", "grade_suites")
_SUITES = "suites/graded.json"
_FROM_FILES = ("stopped", "failed", "trained", "done")  # states of runs that have files
_UNEVENTFUL = ("trained", "missing", "done")  # states of runs that need no attention
_MOST_LINES = 40  # with more runs, only those that need attention are listed, up to `_MOST_OF_A_STATE`
_MOST_OF_A_STATE = 10
_LARGEST = 2**63  # larger numbers in a metrics file are damage; below it, arithmetic cannot overflow
_ERROR = re.compile(r"^error: (.+?)(?: \(log: [^)]*\))?$", re.MULTILINE)


@dataclass(frozen=True)
class RunStatus:
    """The progress of one run or base model."""

    name: str  # the run's id; ``base/<model>/<task>`` for a base model
    state: State  # see `STATES`
    step: int = 0  # optimiser steps done
    steps: int = 0  # optimiser steps of the whole run; 0 for a base model
    # remaining seconds of training, from the pace of the last steps; None if unknown
    left_s: float | None = None
    success: float | None = None  # of the newest rollout batch, in [0, 1]; None if unknown
    reason: str = ""  # the last error, or since when there was no step; empty if there is no problem
    log: Path | None = None  # the log with the error


def last_text(path: Path, size: int = _TAIL_BYTES) -> str:
    """Returns the last ``size`` bytes of a file, which may begin within a line; empty if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the last rows of a metrics file, without incomplete or damaged lines."""
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
    """Returns a recorded number, which is never negative; None for any other value."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST:
        return float(value)
    return None


def _wall_s(row: dict[str, Any]) -> float | None:
    return _number(row["time"].get("wall_s")) if isinstance(row.get("time"), dict) else None


def is_held(directory: Path) -> bool | None:
    """Whether a process holds the lock of a directory; None if the file system does not support locks."""
    # A shared lock, released at once, does not block other readers, and a writer only for an instant.
    return is_locked(directory / LOCK, fcntl.LOCK_SH)


def _error_in(log: Path) -> str:
    """Returns the last error in a log; empty if there is none."""
    errors = _ERROR.findall(last_text(log))
    return str(errors[-1]).strip() if errors else ""


def _pace(rows: list[dict[str, Any]]) -> float | None:
    """Returns the mean seconds per step over the last steps; None if unknown."""
    recent = rows[-_RECENT_STEPS:]
    if len(recent) == 1 and (since := _wall_s(recent[0])) is not None and recent[0]["step"]:
        return since / recent[0]["step"]  # the time before the first step counts, as nothing else is known
    if len(recent) < 2:
        return None
    began, ended = _wall_s(recent[0]), _wall_s(recent[-1])
    steps = recent[-1]["step"] - recent[0]["step"]
    return (ended - began) / steps if began is not None and ended is not None and steps else None


def is_graded(directory: Path, *, suites: bool) -> bool:
    """Whether a trained model was graded, with ``suites`` on the further data sets too."""
    graded = (directory / "grades.json").exists() and (not suites or (directory / _SUITES).exists())
    return graded and (directory / "manifest.json").exists()


def status_of_run(root: Path, run: Run, steps: int, *, suites: bool = False) -> RunStatus:
    """Determines the state of one run; with ``suites`` it is done once those are graded too."""
    directory, log = root / "runs" / run.run_id, root / "logs/train" / f"{run.run_id}.log"
    if (directory / "manifest.json").exists():
        if is_graded(directory, suites=suites):
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
        left = pace * max(steps - step, 0) if pace is not None else None
        reason = f"no new step for {clock(quiet)}" if quiet is not None and quiet > _QUIET_S else ""
        return RunStatus(run.run_id, "running", step, steps, left, success, reason)
    reason = _error_in(log)
    if reason:
        return RunStatus(run.run_id, "failed", step, steps, success=success, reason=reason, log=log)
    if rows:
        return RunStatus(run.run_id, "stopped", step, steps, success=success)
    return RunStatus(run.run_id, "missing", 0, steps)


def status_of(
    experiment: Experiment, results: Path, only: Sequence[str] = (), *, compare: bool = False
) -> list[RunStatus]:
    """Returns the states of an experiment's base models and runs in file order; ``only`` selects groups.

    With ``compare``, runs whose run.yaml differs from the experiment file are missing: they are made again.
    """
    root = results / experiment.experiment
    runs, reusable = experiment.runs(only), reusable_runs(experiment, root)
    statuses = []
    for model, task in dict.fromkeys((run.model, run.task) for run in runs):
        settings, name = experiment.models[model], f"{BASE}/{model}/{task}"
        # A pretrained model that is only linked takes no work, and gets no line.
        if settings.pretrained is None or settings.supervised_steps is not None:
            log = root / "logs/base_model" / model / f"{task}.log"
            if name in reusable or (root / name / "manifest.json").exists():
                statuses.append(RunStatus(name, "done"))
            elif reason := _error_in(log):
                statuses.append(RunStatus(name, "failed", reason=reason, log=log))
            else:
                statuses.append(RunStatus(name, "missing"))
    for run in runs:
        steps, suites = experiment.training_of(run).steps, bool(experiment.tasks[run.task].evaluate_on)
        if run.run_id in reusable:
            statuses.append(RunStatus(run.run_id, "done", steps, steps))
        else:
            status = status_of_run(root, run, steps, suites=suites)
            changed = ""
            if compare and status.state in _FROM_FILES:
                changed = changed_setting(experiment, run, root / "runs" / run.run_id / "run.yaml")
            if changed:
                reason = f"{changed}; the workflow makes it again"
                status = RunStatus(run.run_id, "missing", 0, steps, reason=reason)
            statuses.append(status)
    return statuses


def _line(status: RunStatus) -> str:
    left = "" if status.left_s is None else f"{clock(status.left_s)} left"
    success = "" if status.success is None else f"{100 * status.success:.0f} %"
    progress = f"{status.step:>6}/{status.steps:<6} {left:13} {success:5}" if status.steps else " " * 34
    return f"{status.state:8} {progress} {status.name}".rstrip()


def with_queue(statuses: Iterable[RunStatus], queue: Queue) -> list[RunStatus]:
    """Returns the states with what SLURM's queue says: runs whose jobs wait, or run without a step yet."""
    updated = []
    for status in statuses:
        job = queue.job_of(status.name) if status.state not in ("done", "running") else None
        if job is None:
            updated.append(status)
        elif job.pending:
            before = f"; the attempt before it: {status.reason}" if status.reason else ""
            updated.append(replace(status, state="pending", reason=f"{job.words()}{before}"))
        elif status.state == "trained":  # it is being sampled or graded
            updated.append(replace(status, reason=job.words()))
        else:
            updated.append(replace(status, state="running", reason=job.words(), log=None))
    return updated


def show(
    statuses: Sequence[RunStatus],
    title: str,
    groups: Mapping[str, Sequence[Run]] | None = None,
    *,
    every: bool = False,
) -> list[str]:
    """Formats the states as lines of text: a summary, then a line for each, in the order of `STATES`.

    Columns: state, steps done/total, time left, success of the newest rollout batch, name. Reason and log
    follow on lines of their own. With more than `_MOST_LINES`, and unless ``every`` is set, a table of groups
    and states takes the place of the runs that need no attention.
    """
    order = list(STATES)
    ordered = sorted(statuses, key=lambda status: order.index(status.state))
    runs = [status for status in ordered if status.steps]
    counts = Counter(status.state for status in runs)
    parts = ", ".join(f"{counts[state]} {state}" for state in reversed(order) if counts[state])
    lines = [f"{title}: {len(runs)} runs: {parts}"]
    if every or len(ordered) <= _MOST_LINES:
        return lines + [line for status in ordered for line in _lines(status)]
    lines += _table(runs, groups or {})
    for state in order:
        members = [status for status in ordered if status.state == state]
        if state in _UNEVENTFUL:
            members = [status for status in members if status.reason]
        lines += [line for status in members[:_MOST_OF_A_STATE] for line in _lines(status)]
        if (more := len(members) - _MOST_OF_A_STATE) > 0:
            lines.append(f"{'':9}and {more} more {state}")
    return [*lines, "every run: --runs"]


def _lines(status: RunStatus) -> Iterator[str]:
    yield _line(status)
    if status.reason:
        yield f"{'':9}{status.reason}"
    if status.log is not None:
        yield f"{'':9}log: {status.log}"


def _table(runs: Sequence[RunStatus], groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Returns the numbers of runs by group and state; empty without groups."""
    if not groups:
        return []
    state_of = {status.name: status.state for status in runs}
    shown = [state for state in reversed(STATES) if state in state_of.values()]
    width = max(map(len, ("group", *groups)))
    lines = [f"  {'group':{width}}{'runs':>8}" + "".join(f"{state:>9}" for state in shown)]
    for name, members in groups.items():
        counts = Counter(state_of[run.run_id] for run in members if run.run_id in state_of)
        if total := counts.total():
            numbers = "".join(f"{counts[state] or '-':>9}" for state in shown)
            lines.append(f"  {name:{width}}{total:>8}{numbers}")
    return lines
