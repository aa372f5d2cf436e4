"""Grades of the further data sets of a run, as rows of the tidy table."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import read_json
from troll.tasks.datasets.catalogue import MATH_EVAL


def read_suites(directory: Path, step: int) -> tuple[list[dict[str, Any]], str]:
    """Metrics of the data sets beside a run's own test problems, and a digest of their problems.

    A row per data set and metric, named ``<data set>/pass@1``; and ``math-eval/pass@1``, the mean of the
    paper's seven mathematics sets, where all of them are there, likewise ``math-eval/official/pass@1``.
    """
    path = directory / "suites" / "graded.json"
    if not path.exists():
        return [], ""
    grades = read_json(path)
    try:
        sizes = {name: len(entry["problems"]) for name, entry in grades.items()}
        metrics = {
            name: {key: float(value) for key, value in entry["metrics"].items()}
            for name, entry in grades.items()
        }
        data = {name: str(entry["data_sha256"]) for name, entry in grades.items()}
        mean = _math_eval(metrics, sizes, step)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}: not a file of grades ({type(error).__name__}: {error})") from None
    rows = [
        _row(f"{name}/{key}", value, step, sizes[name])
        for name, values in metrics.items()
        for key, value in values.items()
    ]
    return rows + mean, hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _math_eval(
    metrics: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int], step: int
) -> list[dict[str, Any]]:
    """The mean over the sets, each of which counts alike whatever its size."""
    if not set(MATH_EVAL) <= set(metrics):
        return []
    rows = []
    for metric in ("pass@1", "official/pass@1"):
        if metric == "pass@1" or all(metric in metrics[name] for name in MATH_EVAL):
            mean = sum(metrics[name][metric] for name in MATH_EVAL) / len(MATH_EVAL)
            rows.append(_row(f"math-eval/{metric}", mean, step, sum(sizes[name] for name in MATH_EVAL)))
    return rows


def _row(metric: str, value: float, step: int, items: int) -> dict[str, Any]:
    return {"step": step, "metric": metric, "value": value, "n_items": items, "source": "test"}
