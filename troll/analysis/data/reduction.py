"""From a value per optimiser step to one per rollout batch, and what only all steps together can tell.

Logs have a value of each metric for every optimiser step. The tidy table keeps one for each rollout batch,
which is an eighth or less, and beside it the numbers of a run that need every step: see `summary_of`.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from troll.analysis.metrics import SUMMARIES, Over
from troll.analysis.statistics import Array, area_under_curve, largest_drop

FINAL_SHARE = 0.1
"""Final values are means over this last share of a run, at least one batch: single batches are noisy."""
LATE_SHARE = 1 / 3
"""Late values (KL to the old policy) are means over this last share of a run."""
SUMMARY = "summary"
"""Source of the rows that `summary_of` gives, and before a slash the beginning of their metrics' names."""
_TIME = "time/"
_CLOCK = "time/cpu_s"
"""Processor seconds since the run began: read off at a batch's first step, as its wall-clock time is."""


class Curve(NamedTuple):
    """One metric of a run by optimiser step: arrays of the same length, NaN where a number is missing."""

    step: Array
    rollout_batch: Array
    wall_s: Array
    value: Array

    def mean(self, chosen: NDArray[np.bool_], otherwise: int) -> float:
        """Over what is chosen, or of the row ``otherwise`` where nothing is; missing values are left out."""
        values = self.value[chosen] if chosen.any() else self.value[[otherwise]]
        present = values[~np.isnan(values)]
        return float(present.sum() / len(present)) if len(present) else math.nan


def by_batch(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a run with one for each metric and rollout batch in place of one for each optimiser step.

    A reduced row is at the first step of its batch that logs the metric. Its value is the largest where the
    metric's name ends in ``max``, the least where it ends in ``min``, else the mean. The summary follows.
    Rows of validation, and those that belong to no batch, stay as they are.
    """
    every = list(rows)
    train = [row for row in every if row["source"] == "train"]
    reduced = [dict(row) for row in every if row["source"] != "train"]
    curves = curves_of(train)
    for metric, curve in curves.items():
        in_batch = ~np.isnan(curve.rollout_batch)
        for index in np.flatnonzero(~in_batch):
            reduced.append(_row(metric, curve, int(index), float(curve.value[index])))
        batches, firsts = np.unique(curve.rollout_batch[in_batch], return_index=True)
        places = np.flatnonzero(in_batch)[firsts]
        for batch, place in zip(batches, places, strict=True):
            values = curve.value[curve.rollout_batch == batch]
            reduced.append(_row(metric, curve, int(place), _reduced(metric, values)))
    summary = summary_of(curves)
    last = int(summary.get("steps", 0))
    reduced += [
        {"step": last, "metric": f"{SUMMARY}/{name}", "value": value, "source": SUMMARY}
        for name, value in summary.items()
    ]
    return reduced


def _row(metric: str, curve: Curve, index: int, value: float) -> dict[str, Any]:
    batch = curve.rollout_batch[index]
    return {
        "step": int(curve.step[index]),
        "rollout_batch": None if math.isnan(batch) else int(batch),
        "wall_s": float(curve.wall_s[index]),
        "metric": metric,
        "value": value,
        "source": "train",
    }


def _reduced(metric: str, values: Array) -> float:
    present = values[~np.isnan(values)]
    if not len(present):
        return math.nan
    if metric == _CLOCK:
        return float(present[0])
    if metric.endswith("max"):
        return float(present.max())
    if metric.endswith("min"):
        return float(present.min())
    return float(present.mean())


def curves_of(train: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """The metrics of a run's training as curves."""
    columns: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in train:
        batch = math.nan if row["rollout_batch"] is None else float(row["rollout_batch"])
        numbers = (float(row["step"]), batch, float(row["wall_s"]), float(row["value"]))
        columns.setdefault(str(row["metric"]), []).append(numbers)
    return {metric: Curve(*np.asarray(numbers, dtype=np.float64).T) for metric, numbers in columns.items()}


def summary_of(curves: Mapping[str, Curve]) -> dict[str, float]:
    """The numbers of a run that need every optimiser step; empty without curves.

    ``steps`` (the last), ``batches`` (how many), ``train_s`` and ``cpu_s`` (wall-clock and processor seconds
    at the last step), ``mean/<metric>`` of every metric and, where the metric is logged, ``kl`` (KL to the
    old policy: mean of the last third), ``kl_max`` (largest of any token), ``entropy``, ``response_length``,
    ``final`` (success; means of the last tenth), ``entropy_start`` (of the first batch), ``peak`` (best
    success of a batch), ``drop`` (its largest fall below the best so far) and ``area`` (its mean height).
    """
    if not curves:
        return {}
    steps = np.concatenate([curve.step for curve in curves.values()])
    batches = np.concatenate([curve.rollout_batch for curve in curves.values()])
    walls = np.concatenate([curve.wall_s for curve in curves.values()])
    last, span = int(steps.max()), int(steps.max() - steps.min()) + 1
    summary: dict[str, float] = {
        "steps": last,
        "batches": len(np.unique(batches[~np.isnan(batches)])),
        "train_s": float(np.fmax.reduce(walls)),
    }
    if _CLOCK in curves:
        summary["cpu_s"] = float(np.fmax.reduce(curves[_CLOCK].value))
    for metric, curve in curves.items():
        summary[f"mean/{metric}"] = curve.mean(np.ones(len(curve.step), dtype=bool), 0)
    for name, entry in SUMMARIES.items():
        if entry.of in curves:
            summary[entry.stored or name] = _summarised(curves[entry.of], entry.over, last, span)
    return summary


def _summarised(curve: Curve, over: Over, last: int, span: int) -> float:
    """A curve as one number; ``last`` and ``span`` are the run's last step and its number of steps."""
    match over:
        case "late" | "final":
            share = LATE_SHARE if over == "late" else FINAL_SHARE
            return curve.mean(curve.step > last - share * span, -1)
        case "first batch":
            return curve.mean(curve.rollout_batch == np.fmin.reduce(curve.rollout_batch), 0)
        case "drawdown":
            return largest_drop(curve.value)
        case "auc":
            return area_under_curve(curve.step, curve.value)
    return float(np.fmax.reduce(curve.value))


def digest_of_log(rows: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 of every number that a run logged, step by step, without its times.

    Two runs with the same digest are equal to the last bit, of which values per batch alone would not tell.
    """
    numbers = [
        [row["step"], row["metric"], float(row["value"]).hex()]
        for row in rows
        if not row["metric"].startswith(_TIME)
    ]
    return hashlib.sha256(json.dumps(sorted(numbers)).encode()).hexdigest()
