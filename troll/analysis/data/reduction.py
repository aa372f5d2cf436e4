"""Reduction of logs from one value per optimiser step to one per rollout batch, plus summaries of the run.

Logs have a value of each metric for every optimiser step. The tidy table keeps one per rollout batch, an
eighth of the rows or fewer, and in addition the summaries that need every step: see `summary_of`.
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
"""Final values are means over this last share of a run, at least one batch, as single batches are noisy."""
LATE_SHARE = 1 / 3
"""Late values (KL to the old policy) are means over this last share of a run."""
SUMMARY = "summary"
"""Source of the rows from `summary_of`; followed by a slash, the prefix of their metrics' names."""
_TIME = "time/"
_CLOCK = "time/cpu_s"
"""Processor seconds since the run began; like the wall-clock time, taken at a batch's first step."""


class Curve(NamedTuple):
    """One metric of a run by optimiser step: arrays of the same length, NaN for missing values."""

    step: Array
    rollout_batch: Array
    wall_s: Array
    value: Array

    def mean(self, chosen: NDArray[np.bool_], otherwise: int) -> float:
        """Returns the mean of the chosen rows, else of row ``otherwise``; ignores missing values."""
        values = self.value[chosen] if chosen.any() else self.value[[otherwise]]
        present = values[~np.isnan(values)]
        return float(present.sum() / len(present)) if len(present) else math.nan


def by_batch(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Reduces the rows of a run to one per metric and rollout batch, and appends the rows of its summary.

    A reduced row has the first step of its batch that logs the metric. Its value is the maximum if the
    metric's name ends in ``max``, the minimum if it ends in ``min``, else the mean. Validation rows and rows
    without a batch are unchanged.
    """
    rows = list(rows)
    train = [row for row in rows if row["source"] == "train"]
    reduced = [dict(row) for row in rows if row["source"] != "train"]
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
    """Returns the metrics of a run's training as curves."""
    columns: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in train:
        batch = math.nan if row["rollout_batch"] is None else float(row["rollout_batch"])
        numbers = (float(row["step"]), batch, float(row["wall_s"]), float(row["value"]))
        columns.setdefault(str(row["metric"]), []).append(numbers)
    return {metric: Curve(*np.asarray(numbers, dtype=np.float64).T) for metric, numbers in columns.items()}


def summary_of(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Returns the summaries of a run that need every optimiser step; empty without curves.

    ``steps`` (the last step), ``batches`` (their number), ``train_s`` and ``cpu_s`` (wall-clock and processor
    seconds at the last step), ``mean/<metric>`` of every metric and, if the metric is logged: ``kl`` (KL to
    the old policy, mean over the last third); ``kl_max`` (its maximum over tokens); ``entropy``,
    ``response_length`` and ``final`` success (means over the last tenth); ``entropy_start`` (of the first
    batch); ``peak`` (best success of a batch); ``drop`` (largest fall of success below its best so far) and
    ``area`` (mean height of the success curve).
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
    """Reduces a curve to one number; ``last`` is the run's last step, ``span`` its number of steps."""
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
    """SHA-256 of every number that a run logged at every step, except times.

    Two runs with the same digest are equal to the last bit; equal values per batch would not prove it.
    """
    numbers = [
        [row["step"], row["metric"], float(row["value"]).hex()]
        for row in rows
        if not row["metric"].startswith(_TIME)
    ]
    return hashlib.sha256(json.dumps(sorted(numbers)).encode()).hexdigest()
