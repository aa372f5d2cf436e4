"""Reading and validation of the files of a finished run or a graded base model."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import BaseModel, Field

from troll.common.errors import UserError
from troll.common.explain import validated
from troll.common.files import read_json, read_jsonl, read_yaml
from troll.tasks.datasets.catalogue import MATH_EVAL

COORDINATES = ("experiment", "run_id", "model", "task", "trust_region", "estimator", "condition", "seed")
_NOT_A_METRIC = {"step", "rollout_batch", "time"}
_VALIDATION = "validation_success"
_LARGEST = 2**63  # exclusive bound of integers in a table
_SHOWN = 100  # characters of a value that a message quotes


@dataclass(frozen=True)
class Grades:
    """The grades of a run's test problems and of its further data sets."""

    rows: list[dict[str, Any]]  # metrics on test problems: rows of the tidy table without coordinates
    items: list[dict[str, Any]]  # ``c`` of ``n`` graded samples of problem ``task_id`` passed
    test_data: str  # digest of the test problems
    prompts: str  # digest of the token ids of their prompts; empty in older files


@dataclass(frozen=True)
class RunFiles:
    """The contents of the files of a run, or of a base model, which has only a manifest and grades."""

    manifest: dict[str, Any]
    numerics: int  # the version of the numerics that the manifest records; 0 without one
    digests: dict[str, str]  # the digests in the manifest
    grades: Grades
    settings: dict[str, Any] = field(default_factory=dict)  # of run.yaml
    coordinates: dict[str, Any] = field(default_factory=dict)
    # of metrics.jsonl: rows of the tidy table without coordinates
    metrics: list[dict[str, Any]] = field(default_factory=list)
    last_step: int = 0  # the last optimiser step


def read_run_files(path: Path) -> RunFiles:
    """Reads the directory of a finished run."""
    settings = read_yaml(path / "run.yaml")
    if not isinstance(settings, dict):
        raise UserError(f"{path / 'run.yaml'}: expected a mapping, found {type(settings).__name__}")
    coordinates = _coordinates(path / "run.yaml", settings)
    manifest, numerics, digests = _read_manifest(path / "manifest.json", required=True)
    if manifest.get("run_id") != coordinates["run_id"]:
        raise UserError(
            f"{path / 'manifest.json'}: run_id: {manifest.get('run_id')!r} is not the "
            f"{coordinates['run_id']!r} of run.yaml"
        )
    made_with = manifest.get("config", settings)
    if made_with != settings:
        made_from = made_with if isinstance(made_with, dict) else {}
        key = next((key for key in settings if settings[key] != made_from.get(key)), "a key is missing")
        raise UserError(
            f"{path / 'run.yaml'}: {key}: differs from the configuration in {path / 'manifest.json'}; "
            "run it again"
        )
    metrics = list(_metric_rows(path / "metrics.jsonl"))
    last_step = metrics[-1]["step"]
    grades = _read_grades(path / "grades.json", last_step)
    return RunFiles(manifest, numerics, digests, grades, settings, coordinates, metrics, last_step)


def read_base_files(path: Path) -> RunFiles:
    """Reads the directory of a graded base model."""
    manifest = _read_manifest(path / "manifest.json", required=False)
    return RunFiles(*manifest, _read_grades(path / "grades.json", 0))


def _coordinates(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    coordinates: dict[str, Any] = {}
    for name in COORDINATES:
        value = settings.get(name)
        if isinstance(value, dict):  # a resolved block: name and settings
            value = value.get("name")
        expected_type = int if name == "seed" else str
        if not isinstance(value, expected_type) or isinstance(value, bool):
            raise UserError(
                f"{path}: {name}: {value!r} must be {'an integer' if expected_type is int else 'text'}"
            )
        coordinates[name] = value
    return coordinates


def _read_manifest(path: Path, *, required: bool) -> tuple[dict[str, Any], int, dict[str, str]]:
    """Returns a manifest, its version of the numerics and its digests, both of which may be ``required``."""
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("digests", {}), dict):
        raise UserError(f"{path}: expected a JSON object with an object `digests`")
    if not isinstance(manifest.get("hardware") or {}, dict):
        raise UserError(f"{path}: hardware: expected an object, found {manifest['hardware']!r}")
    digests = {}
    for name in ("environment", "data", "base_model"):
        value = manifest.get("digests", {}).get(name)
        if isinstance(value, str) and value:
            digests[name] = value
        elif required or value is not None:
            raise UserError(f"{path}: digests.{name}: {value!r} must be a digest (text)")
    numerics = manifest.get("numerics")
    if numerics is None and not required:
        numerics = 0
    if not _is_count(numerics):
        raise UserError(f"{path}: numerics: {_shown(numerics)} must be an integer of 0 or more")
    return manifest, numerics, digests


def _metric_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields one row per step and metric; steps must increase, or a resumed run has written a step twice."""
    lines = read_jsonl(path)
    if not lines:
        raise UserError(f"{path}: empty, expected one line per optimiser step")
    previous, has_values = -1, False
    for number, line in enumerate(lines, start=1):
        where, step, batch = f"{path}:{number}", line.get("step"), line.get("rollout_batch")
        if not _is_count(step) or step <= previous:
            raise UserError(f"{where}: step: {_shown(step)} must be an integer above {max(previous, 0)}")
        if batch is not None and not _is_count(batch):
            raise UserError(f"{where}: rollout_batch: {_shown(batch)} must be an integer of 0 or more")
        previous = step
        time = line.get("time", {})
        if not isinstance(time, dict):
            raise UserError(f"{where}: time: {time!r} must be an object")
        wall_s = _number(time.get("wall_s", math.nan), f"{where}: time.wall_s")
        common = {"step": step, "rollout_batch": batch, "wall_s": wall_s}
        values = {name: value for name, value in line.items() if name not in _NOT_A_METRIC}
        values |= _math_eval_success(values)
        values |= {f"time/{name}": value for name, value in time.items() if name != "wall_s"}
        for name, value in values.items():
            if value is None:
                continue
            source = "validation" if name.startswith("validation_") else "train"
            value = _number(value, f"{where}: {name}")
            yield common | {"metric": name, "value": value, "source": source}
            has_values = True
    if not has_values:
        raise UserError(f"{path}: no line has a metric besides its step and times")


def _math_eval_success(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the mean of a validation over the paper's mathematics sets, if it has all of them."""
    shares = [values.get(f"{_VALIDATION}/{name}") for name in MATH_EVAL]
    found = [float(share) for share in shares if isinstance(share, int | float)]
    return {f"{_VALIDATION}/math-eval": sum(found) / len(found)} if len(found) == len(MATH_EVAL) else {}


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float):
        raise UserError(f"{where}: {value!r} must be a number")
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise UserError(f"{where}: {_shown(value)} is larger than any number of a run")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class _Problem(BaseModel, strict=True):
    passed: list[bool] = Field(min_length=1)
    status: list[str]


class _Suite(BaseModel, strict=True):
    """What `troll.evaluation.grading.grade` writes of a data set; further keys are ignored."""

    metrics: dict[str, float]
    problems: dict[str, Any]
    data_sha256: str


class _TestProblems(_Suite):
    """What it writes of a run's test problems."""

    problems: dict[str, _Problem] = Field(min_length=1)
    prompts_sha256: str = ""


def _read_grades(path: Path, step: int) -> Grades:
    grades = validated(_TestProblems, read_json(path), path)
    items: list[dict[str, Any]] = []
    statuses: list[str] = []
    for task_id, problem in sorted(grades.problems.items()):
        if len(problem.passed) != len(problem.status):
            raise UserError(
                f"{path}: problems.{task_id}: {len(problem.passed)} results and {len(problem.status)} "
                "statuses; expected one status per result"
            )
        # An infrastructure failure says nothing about the model: it is left out, not counted as wrong.
        pairs = zip(problem.passed, problem.status, strict=True)
        usable = [passed for passed, status in pairs if status != "infrastructure"]
        items.append({"task_id": task_id, "n": len(usable), "c": sum(usable)})
        statuses += problem.status
    metrics = grades.metrics
    if "pass@1" in metrics and "infrastructure" not in statuses:
        counted = sum(item["c"] / item["n"] for item in items) / len(items)
        if not abs(counted - metrics["pass@1"]) <= 1e-6:  # nor NaN
            raise UserError(
                f"{path}: metrics.pass@1: {metrics['pass@1']:.6f}, but its problems give {counted:.6f}"
            )
    shares = {f"status/{name}": statuses.count(name) / len(statuses) for name in sorted(set(statuses))}
    rows = [_test_row(name, value, step, len(items)) for name, value in (metrics | shares).items()]
    suites, others = read_suites(path.parent, step)
    return Grades(rows + suites, items, f"{grades.data_sha256}{others}", grades.prompts_sha256)


def read_suites(directory: Path, step: int) -> tuple[list[dict[str, Any]], str]:
    """Metrics of further data sets besides a run's test problems, and a digest of their problems.

    A row per data set and metric, named ``<data set>/pass@1``. If all seven of the paper's mathematics sets
    are present, also their means ``math-eval/pass@1`` and ``math-eval/official/pass@1``.
    """
    path = directory / "suites" / "graded.json"
    if not path.exists():
        return [], ""
    grades = read_json(path)
    if not isinstance(grades, dict):
        raise UserError(f"{path}: expected grades by data set, found {_shown(grades)}")
    suites = {name: validated(_Suite, graded, f"{path}: {name}") for name, graded in grades.items()}
    rows = [
        _test_row(f"{name}/{metric}", value, step, len(suite.problems))
        for name, suite in suites.items()
        for metric, value in suite.metrics.items()
    ]
    data = {name: suite.data_sha256 for name, suite in suites.items()}
    return rows + _math_eval(suites, step), hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _math_eval(suites: Mapping[str, _Suite], step: int) -> list[dict[str, Any]]:
    """Returns the unweighted means over the mathematics sets, of metrics that all of them have."""
    if not set(MATH_EVAL) <= set(suites):
        return []
    members, rows = [suites[name] for name in MATH_EVAL], []
    for metric in ("pass@1", "official/pass@1"):
        if all(metric in suite.metrics for suite in members):
            mean = sum(suite.metrics[metric] for suite in members) / len(members)
            problems = sum(len(suite.problems) for suite in members)
            rows.append(_test_row(f"math-eval/{metric}", mean, step, problems))
    return rows


def _test_row(metric: str, value: float, step: int, items: int) -> dict[str, Any]:
    return {"step": step, "metric": metric, "value": value, "n_items": items, "source": "test"}
