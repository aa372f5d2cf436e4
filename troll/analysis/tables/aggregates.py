"""Methods aggregated over all tasks and estimators of a condition, as rliable does for many-task benchmarks.

Single settings have few seeds; aggregation uses all of them. Source: Agarwal et al. 2021, "Deep RL at the
edge of the statistical precipice": interquartile mean over all runs, probability of improvement as the mean
over settings, intervals from a bootstrap stratified by setting. As there, scores are first normalised by task
(0 is the base model, 1 the ceiling) to be comparable between tasks.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.summaries import (
    BASELINE,
    Cell,
    cell_order,
    cells,
    condition_order,
    method_order,
    scores,
    stream,
    variants,
)
from troll.analysis.data.tidy import BASE
from troll.analysis.render.formats import Style, percent, table, whole
from troll.analysis.statistics import LEVEL, Array, iqm, probability_of_improvement

REPLICATES = 2000


def aggregate_table(items: pd.DataFrame) -> pd.DataFrame:
    """Normalised test pass@1 of each method over all settings of a model and condition.

    Normalised scores are (pass@1 - base) / (1 - base), with the base model's pass@1 on the task: at most 1,
    negative below the base model. Only settings (tasks and estimators) count that the method shares with
    `BASELINE` and in which the base model was graded.

    Returns:
        One row per model, condition and method: ``settings``, ``runs``, ``mean``, ``iqm`` (interquartile mean
        over the runs of all settings), ``iqm_baseline`` and ``improvement`` (chance that a random seed of the
        method ends above one of the baseline, mean over settings); the last three have 95 % percentile
        intervals, ``_low`` and ``_high``.
    """
    by_place: dict[tuple[str, str, str], list[Cell]] = {}
    present, varied = set(cells(items)), variants(items)
    for cell in sorted(present, key=cell_order):
        is_method = cell.trust_region not in (BASE, BASELINE) and cell.trust_region not in varied
        if is_method and {cell.with_trust_region(BASELINE), cell.base_model()} <= present:
            by_place.setdefault((cell.model, cell.condition, cell.trust_region), []).append(cell)
    rows = []
    places = sorted(by_place, key=lambda place: (place[0], condition_order(place[1]), method_order(place[2])))
    for model, condition, method in places:
        group = by_place[model, condition, method]
        method_scores = [_normalised(items, cell) for cell in group]
        other = [_normalised(items, cell.with_trust_region(BASELINE)) for cell in group]
        row: dict[str, Any] = {
            "model": model,
            "condition": condition,
            "trust_region": method,
            "settings": len(group),
            "runs": sum(map(len, method_scores)),
            "mean": float(np.mean(np.concatenate(method_scores))),
        }
        rng = stream("aggregate", 1, group[0])
        draws = [(_resampled(method_scores, rng), _resampled(other, rng)) for _ in range(REPLICATES)]
        # By setting: the first row is the observed sample, the others are resampled.
        first = [np.array(draw) for draw in zip(method_scores, *(drawn for drawn, _ in draws), strict=True)]
        second = [np.array(draw) for draw in zip(other, *(drawn for _, drawn in draws), strict=True)]
        pairs = zip(first, second, strict=True)
        improvement = np.stack([probability_of_improvement(*pair) for pair in pairs], axis=-1)
        for name, values in (
            ("iqm", iqm(np.concatenate(first, axis=1))),
            ("iqm_baseline", iqm(np.concatenate(second, axis=1))),
            ("improvement", improvement.mean(axis=-1)),
        ):
            row[name] = float(values[0])
            ends = np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            # A single seed is always drawn unchanged: its interval would wrongly have no width.
            single = max(map(len, [*method_scores, *other])) < 2
            row[f"{name}_low"], row[f"{name}_high"] = (math.nan,) * 2 if single else map(float, ends)
        rows.append(row)
    styles = {
        "settings": Style("Settings", whole),
        "runs": Style("Runs", whole),
        "mean": Style("Mean, normalised (%)", percent),
        "iqm": Style("IQM, normalised (%) [interval]", percent),
        "iqm_baseline": Style(f"IQM of {BASELINE}, normalised (%) [interval]", percent),
        "improvement": Style(f"P(above {BASELINE}) (%) [interval]", percent),
    }
    note = (
        "Test pass@1 over all tasks and estimators of a condition that the method shares with "
        f"{BASELINE}, normalised by task: 0 % is the base model, 100 % every sample right. IQM: inter"
        f"quartile mean over their runs. P(above {BASELINE}): chance that a random seed of the method ends "
        f"above a random seed of {BASELINE}, ties counted half, mean over settings; 50 % is no difference. "
        f"95 % percentile intervals from {REPLICATES:,} bootstrap draws of seeds within each setting "
        "(Agarwal et al. 2021). They are too narrow where settings have few seeds."
    )
    empty = f"No method has a run of {BASELINE} and a graded base model beside it."
    return table(rows, styles, note, empty=empty)


def _normalised(items: pd.DataFrame, cell: Cell) -> Array:
    """Test pass@1 of every seed [S], scaled to 0 for the base model and 1 for the ceiling."""
    trained, base = (scores(items, part).to_numpy().mean(axis=1) for part in (cell, cell.base_model()))
    room = 1 - float(base.mean())
    return np.asarray((trained - base.mean()) / room if room else np.zeros_like(trained))


def _resampled(groups: Sequence[Array], rng: np.random.Generator) -> list[Array]:
    # The same draws as `rng.choice`, without its overhead.
    return [group[rng.integers(0, len(group), len(group))] for group in groups]
