"""Checks the results of a rehearsal: policies moved, rules kept their bounds, a run resumes, and others."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import load_file

from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.algorithms.trust_regions.constraint_check import Thresholds
from troll.analysis.data.summaries import Cell
from troll.analysis.data.tidy import GROUP, table_files
from troll.analysis.render.substitutes import REHEARSAL
from troll.analysis.tables.published import SECTIONS
from troll.common.digests import sha256_of_file
from troll.common.files import read_json, read_jsonl, write_text
from troll.experiment.experiment import BASE, Experiment, Run
from troll.operations.rehearsal.report import Check, failures_or_ok
from troll.operations.rehearsal.shrink import PROCESSES
from troll.operations.status import status_of

# The coordinates that failing runs may have in common, likeliest cause first.
_COORDINATES = ("trust_region", "estimator", "condition", "model", "task")
_LIMIT_S = 600.0
_WEIGHTS = "checkpoint/model.safetensors"
_SHOWN = ("pass@1", "final")
"""Measures in the published tables that every run has."""


@dataclass(frozen=True)
class Done:
    """A finished run."""

    run: Run
    root: Path

    @property
    def directory(self) -> Path:
        """Directory of the run's results."""
        return self.root / "runs" / self.run.run_id

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The run's metrics, one row per optimiser step."""
        return read_jsonl(self.directory / "metrics.jsonl")

    def values(self, name: str) -> list[float]:
        """Returns a metric's values at all steps that have it."""
        return [float(row[name]) for row in self.rows if row.get(name) is not None]


def blamed(bad: Iterable[Run], runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups bad runs by the configuration key that all of them, and no good run, have in common.

    The key is ``training`` if all runs are bad, and the run's name for a run without such a key.
    """
    left = list(bad)
    if len(runs) > 1 and set(left) == set(runs):
        return {"training": list(runs)}
    runs_by_key: dict[str, list[Run]] = {}
    for coordinate in _COORDINATES:
        for name in dict.fromkeys(getattr(run, coordinate) for run in left):
            having = [run for run in runs if getattr(run, coordinate) == name]
            if len(having) < len(runs) and set(having) <= set(left):
                runs_by_key[f"{coordinate}s.{name}"] = having
                left = [run for run in left if run not in having]
    return runs_by_key | {f"run {run.run_id}": [run] for run in left}


def _each(name: str, bad: Mapping[Run, str], runs: Sequence[Run]) -> list[Check]:
    return [
        Check(name, "failed", f"{bad[members[0]]} ({len(members)} run{'s' if len(members) > 1 else ''})", key)
        for key, members in blamed(bad, runs).items()
    ]


def _judged(name: str, bad: Mapping[Run, str], done: Sequence[Done], otherwise: str) -> list[Check]:
    """Returns the result of a check on finished runs, given the reason for each bad run."""
    return failures_or_ok(name, _each(name, bad, [item.run for item in done]), otherwise)


def check_runs(experiment: Experiment, root: Path) -> list[Check]:
    """Checks that all runs and base models are done."""
    runs = experiment.runs()
    reasons = {
        status.name: status.reason or f"is {status.state}"
        for status in status_of(experiment, root.parent)
        if status.state != "done"
    }
    bad = {run: reasons.pop(run.run_id) for run in runs if run.run_id in reasons}
    others = [Check("runs", "failed", reason, name) for name, reason in reasons.items()]
    several = [run for run in runs if run.condition.endswith(PROCESSES)]
    words = f", one of them with {several[0].condition.split('-')[-2]} processes" if several else ""
    summary = f"{len(runs)} trained, sampled and graded{words}"
    return failures_or_ok("runs", [*others, *_each("runs", bad, runs)], summary)


def check_gradients(done: Sequence[Done]) -> list[Check]:
    """Checks that gradients are finite, and not all zero if rewards differ between responses to a prompt."""
    bad: dict[Run, str] = {}
    for item in done:
        norms = item.values("grad_norm")
        if not norms or not all(map(math.isfinite, norms)):
            bad[item.run] = "a gradient is not finite"
        elif max(norms) == 0 and min(item.values("groups_without_signal"), default=0.0) < 1:
            bad[item.run] = "every gradient is zero"
    largest = max((max(item.values("grad_norm"), default=0.0) for item in done), default=0.0)
    return _judged("gradients", bad, done, f"finite, up to {largest:.3g}")


def check_policies(done: Sequence[Done]) -> list[Check]:
    """Checks that the weights differ from the base model's."""
    bad: dict[Run, str] = {}
    for item in done:
        base = item.root / BASE / item.run.model / item.run.task
        before, after = load_file(base / _WEIGHTS), load_file(item.directory / _WEIGHTS)
        if all(before[name].equal(after[name]) for name in before.keys() & after.keys()):
            bad[item.run] = "the policy has not moved"
    return _judged("policies", bad, done, f"{len(done)} moved")


def check_projections(experiment: Experiment, done: Sequence[Done]) -> list[Check]:
    """Checks that rules that project keep the KL within its bound, and that their solver was used."""
    tolerance = Thresholds().kl_violation
    bad: dict[Run, str] = {}
    used: dict[str, float] = {}
    for item in done:
        projected = item.values("kl_projected_max")
        if not projected:
            continue
        name = item.run.trust_region
        used[name] = max([used.get(name, 0.0), *item.values("solver_evaluations")])
        violation = max(item.values("kl_violation_max"), default=0.0)
        if violation > tolerance:
            bad[item.run] = f"the projected KL exceeds its bound by {violation:.2g} nats"
    faults = {
        name: "the solver was never used: no policy left the trust region" for name in used if not used[name]
    } | {
        name: "does not log the projected KL"
        for name in (item.run.trust_region for item in done)
        if _projects(experiment.trust_regions[name].rule) and name not in used
    }
    failures = _each("projections", bad, [item.run for item in done])
    failures += [Check("projections", "failed", why, f"trust_regions.{name}") for name, why in faults.items()]
    summary = f"within their bounds, and the solver used, by {', '.join(used)}"
    return failures_or_ok("projections", failures, summary) if used or failures else []


def _projects(rule: str) -> bool:
    return rule in TRUST_REGIONS and TRUST_REGIONS[rule].function.__module__.endswith(".projected")


def check_endings(done: Sequence[Done]) -> list[Check]:
    """Checks that in every run some responses end before the maximum length."""
    bad = {
        item.run: "every response was truncated"
        for item in done
        if min(item.values("truncated"), default=1.0) >= 1
    }
    return _judged("endings", bad, done, f"responses ended in {len(done) - len(bad)} of {len(done)} runs")


def check_pages(experiment: Experiment, root: Path) -> list[Check]:
    """Checks that the pages of the experiment and of each of its groups exist."""
    places = {"": root, **{f"group {name}": root / "groups" / name for name in experiment.groups()}}
    missing = [
        Check("pages", "failed", f"{place / 'page.html'} is missing; see the log", key or "experiment")
        for key, place in places.items()
        if not (place / "page.html").exists()
    ]
    return failures_or_ok("pages", missing, f"{len(places)} pages with their tables, figures and verdicts")


def check_marks(root: Path) -> list[Check]:
    """Checks that every table and manifest is marked as a rehearsal's."""
    tables = [*root.glob("tables/*.md"), *root.glob("groups/*/tables/*.md")]
    manifests = [*root.glob("runs/*/*/*/*/*/*/manifest.json"), *root.glob("base/*/*/manifest.json")]
    bare = [path for path in tables if REHEARSAL not in path.read_text(encoding="utf-8")]
    bare += [path for path in manifests if not read_json(path)["config"].get("rehearsal")]
    said = "is not marked as a rehearsal's"
    failures = [Check("marks", "failed", said, str(path)) for path in bare[:3]]
    summary = f"{len(tables)} tables and {len(manifests)} manifests are marked as a rehearsal's"
    return failures_or_ok("marks", failures, summary)


def check_published(experiment: Experiment, done: Sequence[Done], root: Path) -> list[Check]:
    """Checks that the tables of published numbers show baselines that were run without their method."""
    if not experiment.published or not table_files(root):
        return []
    cells = [Cell(**{name: getattr(item.run, name) for name in GROUP}) for item in done]
    failures, lone = [], 0
    for name, section in SECTIONS.items():
        path = root / "tables" / f"published_{name}.csv"
        if not path.exists():  # then `check_pages` has failed
            continue
        frame = pd.read_csv(path)
        for row in section.rows():
            methods = {cell.trust_region for cell in cells if row.holds(cell)}
            if row.method in methods or row.baseline not in methods or row.measure not in _SHOWN:
                continue
            if row.method.startswith(row.baseline):  # a variant, which need not be run; its default has rows
                continue
            lone += 1
            rows = frame[(frame["model"] == row.model) & (frame["data"] == row.data.replace("_", " "))]
            rows = rows[rows["estimator"] == row.estimator]
            if rows["baseline"].isna().all():
                summary = f"{row.baseline} of {row.model} on {row.data} was run, but is not shown"
                failures.append(Check("published", "failed", summary, f"tables.published_{name}"))
    summary = f"{len(SECTIONS)} tables; {lone} rows with only a baseline are shown"
    return failures_or_ok("published", failures[:3], summary)


def checks_of(experiment: Experiment, root: Path, environment: Mapping[str, str]) -> Iterator[Check]:
    """Yields the results of all checks."""
    every = [Done(run, root) for run in experiment.runs()]
    done = [item for item in every if (item.directory / "manifest.json").exists()]
    yield from check_runs(experiment, root)
    yield from check_gradients(done)
    yield from check_policies(done)
    yield from check_projections(experiment, done)
    yield from check_endings(done)
    yield from check_pages(experiment, root)
    yield from check_marks(root)
    yield from check_published(experiment, done, root)
    yield from check_resuming(done, environment)


def _chosen(done: Sequence[Done]) -> Done | None:
    """Chooses the run to resume: preferably one with a rule that projects, then one with the most steps."""
    alone = [item for item in done if not item.run.condition.endswith(PROCESSES)]
    return max(alone, key=lambda item: (bool(item.values("kl_projected_max")), len(item.rows)), default=None)


def _train(item: Done, directory: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    base = item.root / BASE / item.run.model / item.run.task / "checkpoint"
    command = [sys.executable, "-m", "troll.cli", "--log", str(directory / "train.log"), "job", "train"]
    command += [str(directory / "run.yaml"), "--base", str(base)]
    command += ["--data", str(item.root / "data" / item.run.task), "--suites", str(item.root / "suites")]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=dict(environment), stdout=quiet, stderr=quiet, process_group=0)


@contextmanager
def _training(
    item: Done, directory: Path, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Yields a training process; kills it and its children at the end if it is still running."""
    process = _train(item, directory, environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check_resuming(done: Sequence[Done], environment: Mapping[str, str]) -> list[Check]:
    """Retrains a run, kills it after its first checkpoint, resumes it, and compares it with the original."""
    item = _chosen(done)
    if item is None:
        return []
    key = f"run {item.run.run_id}"
    directory = item.root / "resumed" / item.run.run_id
    log = directory / "train.log"
    shutil.rmtree(directory, ignore_errors=True)
    write_text(directory / "run.yaml", (item.directory / "run.yaml").read_text(encoding="utf-8"))
    with _training(item, directory, environment) as process:
        deadline = time.monotonic() + _LIMIT_S
        while not any(directory.glob("trainer/checkpoint-*/complete.json")):
            if process.poll() is not None or time.monotonic() > deadline:
                return [Check("resuming", "failed", f"wrote no checkpoint; see {log}", key)]
            time.sleep(0.002)
    if (directory / "manifest.json").exists():
        return [Check("resuming", "note", "the run ended before it could be killed", key)]
    with _training(item, directory, environment) as process, suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_LIMIT_S)
    if process.returncode:
        return [Check("resuming", "failed", f"does not resume; see {log}", key)]
    return [_compared(item, directory, key)]


def _compared(item: Done, directory: Path, key: str) -> Check:
    ours, theirs = (
        [{name: row[name] for name in row if name != "time"} for row in rows]
        for rows in (read_jsonl(directory / "metrics.jsonl"), item.rows)
    )
    if ours != theirs:
        step = next(
            (row["step"] for row, other in zip(theirs, ours, strict=False) if row != other), len(ours)
        )
        return Check("resuming", "failed", f"after a kill, its metrics differ from step {step} on", key)
    if sha256_of_file(directory / _WEIGHTS) != sha256_of_file(item.directory / _WEIGHTS):
        return Check("resuming", "failed", "after a kill, its final weights differ", key)
    return Check("resuming", "ok", f"{item.run.run_id}, killed and resumed, equals the undisturbed run")
