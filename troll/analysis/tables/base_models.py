"""Differences over base models, and their generalisation to further base models of the same kind.

Runs from one base model say nothing about others: each base model is a separate setting. The prediction
interval of `troll.analysis.pooling` covers a further base model.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from troll.analysis.data.settings import settings_by
from troll.analysis.data.summaries import (
    BASELINE,
    Cell,
    cells,
    condition_order,
    estimator_order,
    method_order,
    paired_scores,
    per_run,
    scores,
    spread,
    variants,
)
from troll.analysis.data.tidy import BASE
from troll.analysis.pooling import LEAST_SETTINGS, PREDICTION, error_covariance, pool
from troll.analysis.render.formats import Style, percent, points, table, whole
from troll.analysis.tables.results import OFFICIAL_METRIC
from troll.experiment.base_seeds import kind_name

ALL = "all"
"""Value of ``task`` or ``model`` in rows over all of them."""


def base_models_table(runs: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """Test pass@1 of every method minus the baseline's, averaged over base models of one kind.

    Returns:
        One row per condition, estimator, method, kind of model and task, and for all tasks and all kinds
        together: ``base_models`` and ``settings`` (pairs of a task and a base model), ``seeds`` (the fewest
        of any setting), pass@1 of ``base``, ``baseline`` and ``method`` (means over settings; on public data
        preceded by the official scores from lm-eval or evalplus, ``official_base`` and so on), ``difference``
        with ``_low`` and ``_high`` (random effects; for at least three settings with two seeds each),
        ``further_low`` and ``further_high`` (the interval of a new setting, clipped to [-1, 1]), ``lowest``
        and ``highest``.
    """
    kinds, compared = kinds_of(runs), compared_cells(runs, items)
    summary, rows = per_run(runs), []
    for place in dict.fromkeys((cell.condition, cell.estimator, cell.trust_region) for cell in compared):
        group = [cell for cell in compared if (cell.condition, cell.estimator, cell.trust_region) == place]
        names = _with_all(dict.fromkeys(kinds[cell.model] for cell in group))
        tasks = _with_all(dict.fromkeys(sorted(cell.task for cell in group)))
        for kind, task in product(names, tasks):
            chosen = [cell for cell in group if kind in (ALL, kinds[cell.model]) and task in (ALL, cell.task)]
            if row := _row(summary, items, chosen):
                fixed = {"condition": place[0], "estimator": place[1], "trust_region": place[2]}
                rows.append(fixed | {"model": kind, "task": task} | row)
    styles = {
        "base_models": Style("Base models", whole),
        "settings": Style("Settings", whole),
        "baseline": Style(f"{BASELINE} (%)", percent),
        "official_baseline": Style(f"{BASELINE}, official (%)", percent),
        "further_low": Style("New setting, from (points)", points),
        "further_high": Style("to (points)", points),
        "lowest": Style("Lowest Δ (points)", points),
        "highest": Style("Highest Δ (points)", points),
    }
    note = (
        f"Base models of a kind differ by their seed alone. Δ: test pass@1 minus that of {BASELINE}, paired "
        "by seed and problem in each setting (a task with a base model), averaged over settings by a "
        "random-effects meta-analysis (REML, Hartung's and Knapp's 95 % interval). It weights settings by "
        "how precisely they are known, so it is not the difference of the two means beside it. New "
        f"setting: {PREDICTION}. Neither is given for fewer than {LEAST_SETTINGS} settings or a "
        "single seed; over three settings they are wide. Seeds: the fewest of any setting. Single rows are "
        "not corrected for how many there are."
    )
    empty = f"No base models that differ by their seed alone have runs of {BASELINE}."
    return table(rows, styles, note, empty=empty)


def compared_cells(runs: pd.DataFrame, items: pd.DataFrame) -> list[Cell]:
    """Returns the cells of base models that differ only by seed and have runs of the baseline, in order.

    Variants of a rule are left out. Kinds of models are sorted by size, layers × width².
    """
    kinds, varied, present = kinds_of(runs), variants(runs), set(cells(items))
    layers, width = (_model_setting(runs, name) for name in ("layers", "width"))

    def order(cell: Cell) -> tuple[object, ...]:
        size = layers.get(cell.model, 0.0) * width.get(cell.model, 0.0) ** 2
        place = (
            condition_order(cell.condition),
            estimator_order(cell.estimator),
            method_order(cell.trust_region),
        )
        return (*place, size, condition_order(cell.model), cell.task)

    return [
        cell
        for cell in sorted((cell for cell in present if cell.model in kinds), key=order)
        if cell.trust_region not in (BASE, BASELINE, *varied) and cell.with_trust_region(BASELINE) in present
    ]


def kinds_of(runs: pd.DataFrame) -> dict[str, str]:
    """Returns the kind of each model with a base seed, for kinds with several models."""
    seeds = _model_setting(runs, "base_seed")
    kinds = {model: kind_name(model, int(seed)) for model, seed in seeds.items()}
    return {model: kind for model, kind in kinds.items() if list(kinds.values()).count(kind) > 1}


def _model_setting(runs: pd.DataFrame, name: str) -> dict[str, float]:
    """Returns a numeric setting of the model, by model."""
    recorded = {model: settings.get(f"model/{name}") for (model,), settings in settings_by(runs, ["model"])}
    return {str(model): float(value) for model, value in recorded.items() if isinstance(value, int | float)}


def _with_all(names: dict[str, None]) -> list[str]:
    return [*names, ALL] if len(names) > 1 else list(names)


def _row(summary: pd.DataFrame, items: pd.DataFrame, chosen: Sequence[Cell]) -> dict[str, Any] | None:
    """Returns the numbers of one row; None if no setting shares a seed and a problem with the baseline."""
    every = {cell: paired_scores(items, cell, cell.with_trust_region(BASELINE)) for cell in chosen}
    pairs = {cell: pair for cell, pair in every.items() if pair is not None}
    if not pairs:
        return None
    differences = [(method_scores - other).mean(axis="columns") for method_scores, other in pairs.values()]
    effects = np.asarray([difference.mean() for difference in differences])
    bases = [table for cell in pairs if len(table := scores(items, cell.base_model()))]
    least = min(map(len, differences))
    row: dict[str, Any] = {
        "base_models": len({cell.model for cell in pairs}),
        "settings": len(pairs),
        "seeds": least,
        **_official(summary, list(pairs)),
        "base": _mean(bases) if bases else np.nan,
        "baseline": _mean([other for _, other in pairs.values()]),
        "method": _mean([method_scores for method_scores, _ in pairs.values()]),
        "difference": float(effects.mean()),
    }
    row |= dict.fromkeys(("difference_low", "difference_high", "further_low", "further_high"), np.nan)
    if len(pairs) >= LEAST_SETTINGS and least > 1:
        by_seed = [dict(zip(map(float, change.index), change, strict=True)) for change in differences]
        pooled = pool(effects, error_covariance(by_seed, [None] * len(by_seed))[1])
        row |= {"difference": pooled.estimate, "difference_low": pooled.low, "difference_high": pooled.high}
        row["further_low"] = max(pooled.predicted_low, -1.0)
        row["further_high"] = min(pooled.predicted_high, 1.0)
    return row | {"lowest": float(effects.min()), "highest": float(effects.max())}


def _mean(tables: Sequence[pd.DataFrame]) -> float:
    return float(np.mean([table.to_numpy().mean() for table in tables]))


def _official(summary: pd.DataFrame, compared: Sequence[Cell]) -> dict[str, float]:
    """Official pass@1, means over settings; empty without public data."""
    if OFFICIAL_METRIC not in summary:
        return {}
    by_role = {
        "base": [cell.base_model() for cell in compared],
        "baseline": [cell.with_trust_region(BASELINE) for cell in compared],
        "method": compared,
    }
    return {
        f"official_{name}": spread(spread(cell.rows(summary)[OFFICIAL_METRIC])[0] for cell in cells)[0]
        for name, cells in by_role.items()
    }
