"""Methods over all tasks and estimators of a condition at once, as rliable does for benchmarks of many tasks.

Single settings have few seeds; together they have enough to say more. Source: Agarwal et al. 2021, "Deep RL
at the edge of the statistical precipice": interquartile mean over all runs, probability of improvement as the
mean over settings, intervals from a bootstrap that draws seeds within each setting.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.formats import Style, percent, whole
from troll.analysis.runs import BASE
from troll.analysis.statistics import LEVEL, Array, iqm, probability_of_improvement
from troll.analysis.summaries import (
    BASELINE,
    Cell,
    cell_order,
    cells,
    method_order,
    require_one,
    scores,
    stream,
    variant_of,
)

REPLICATES = 2000


def aggregate_table(items: pd.DataFrame, *, baseline: str = BASELINE) -> pd.DataFrame:
    """Test pass@1 of each method over all settings (tasks and estimators) of a model and condition.

    Only settings that the method shares with ``baseline`` count, so that both are judged on the same ones.

    Args:
        items: the table of test problems of one experiment.
        baseline: what methods are compared with.

    Returns:
        One row per model, condition and method: ``settings``, ``runs``, ``mean``, ``iqm`` (interquartile mean
        over the runs of all settings), ``iqm_baseline`` and ``improvement`` (chance that a random seed of the
        method ends above one of the baseline's, mean over settings), each of the latter three with ``_low``
        and ``_high``: 95 % percentile intervals. Shares between 0 and 1.
    """
    require_one(items)
    by_place: dict[tuple[str, str, str], list[Cell]] = {}
    present = set(cells(items))
    for cell in sorted(present, key=cell_order):
        known = cell.trust_region not in (BASE, baseline) and variant_of(cell.trust_region) is None
        if known and cell.method(baseline) in present:
            by_place.setdefault((cell.model, cell.condition, cell.trust_region), []).append(cell)
    rows = []
    for place, group in sorted(
        by_place.items(), key=lambda entry: (*entry[0][:2], method_order(entry[0][2]))
    ):
        model, condition, method = place
        own = [_by_seed(items, cell) for cell in group]
        other = [_by_seed(items, cell.method(baseline)) for cell in group]
        row: dict[str, Any] = {"model": model, "condition": condition, "trust_region": method}
        row |= {
            "settings": len(group),
            "runs": sum(map(len, own)),
            "mean": float(np.mean(np.concatenate(own))),
        }
        measures: Mapping[str, Callable[[Sequence[Array], Sequence[Array]], float]] = {
            "iqm": lambda first, _: float(iqm(np.concatenate(first))),
            "iqm_baseline": lambda _, second: float(iqm(np.concatenate(second))),
            "improvement": lambda first, second: float(
                np.mean([probability_of_improvement(*pair) for pair in zip(first, second, strict=True)])
            ),
        }
        rng = stream("aggregate", 1, group[0])
        draws = [(_resampled(own, rng), _resampled(other, rng)) for _ in range(REPLICATES)]
        for name, measure in measures.items():
            row[name] = measure(own, other)
            values = [measure(*draw) for draw in draws]
            row[f"{name}_low"], row[f"{name}_high"] = map(
                float, np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            )
        rows.append(row)
    frame = pd.DataFrame(rows)
    frame.attrs["styles"] = {
        "settings": Style("Settings", whole),
        "runs": Style("Runs", whole),
        "mean": Style("Mean (%)", percent),
        "iqm": Style("IQM (%) [interval]", percent),
        "iqm_baseline": Style(f"IQM of {baseline} (%) [interval]", percent),
        "improvement": Style(f"P(above {baseline}) (%) [interval]", percent),
    }
    frame.attrs["notes"] = [
        "Test pass@1 over all tasks and estimators of a condition that the method shares with "
        f"{baseline}. IQM: interquartile mean over their runs. P(above {baseline}): chance that a random "
        f"seed of the method ends above a random seed of {baseline}, ties counted half, mean over settings; "
        f"50 % is no difference. 95 % percentile intervals from {REPLICATES:,} bootstrap draws of seeds "
        "within each setting (Agarwal et al. 2021). They are too narrow where settings have few seeds."
    ]
    if frame.empty:
        frame.attrs["notes"] = [f"No method has a run of {baseline} beside it."]
    return frame


def _by_seed(items: pd.DataFrame, cell: Cell) -> Array:
    """Test pass@1 of every seed [S]."""
    return np.asarray(scores(items, cell).to_numpy().mean(axis=1))


def _resampled(groups: Sequence[Array], rng: np.random.Generator) -> list[Array]:
    return [rng.choice(group, size=len(group)) for group in groups]
