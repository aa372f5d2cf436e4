"""Claims about a line of conditions: how a metric changes with a setting, or where it is good enough.

Two statistics reduce a line to one number per seed, so that methods are compared seed by seed as in other
claims: the slope along the setting, and the number of decades of the setting that are usable.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field

from troll.analysis.claims.fields import own_k
from troll.analysis.data.axes import AXES, Axis
from troll.analysis.data.summaries import Cell, scores, values_by_seed
from troll.analysis.statistics import Array
from troll.common.settings import StrictModel


class Across(StrictModel):
    """A statistic over conditions that differ only in one setting."""

    setting: Literal["learning_rate", "staleness", "policy_lag"] = Field(
        description="staleness: optimiser steps for each batch of rollouts"
    )
    statistic: Literal["slope", "usable"] = Field(
        description="slope: change for each doubling, or for each batch of policy lag, which may be zero; "
        "usable: decades of the setting in which a share of the best gain over the base model is reached"
    )
    share: float = Field(default=0.8, gt=0, lt=1, description="of the best gain, for usable")

    @property
    def unit(self) -> str:
        """The denominator of a slope's unit."""
        return f"per {'doubling' if self.doubling else 'batch behind'}"

    @property
    def doubling(self) -> bool:
        """Whether slopes are per doubling, for settings that cannot be zero."""
        return self.setting != "policy_lag"

    @property
    def axis(self) -> Axis:
        """The axis of the setting."""
        return next(axis for axis in AXES if axis.name == self.setting)


def slope(values: Sequence[float], measured: Array, *, doubling: bool = True) -> Array:
    """Least-squares slopes ``[S]`` of ``measured [S, P]`` per doubling, or per unit, of ``values [P]``."""
    x = np.asarray(values, dtype=float)
    x = np.log2(x) if doubling else x
    x = x - x.mean()
    return np.asarray(measured @ x / (x @ x))


def usable_decades(values: Sequence[float], measured: Array, threshold: float) -> Array:
    """Decades ``[S]`` in which each seed's line is at or above the threshold.

    Lines are interpolated linearly between ``measured [S, P]``; the setting's ``values [P]`` are positive and
    ascending, and nothing beyond them counts.
    """
    widths = np.diff(np.log10(np.asarray(values, dtype=float)))
    left, right = measured[:, :-1] - threshold, measured[:, 1:] - threshold
    above, below = np.maximum(left, right), np.minimum(left, right)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.where(above > below, above / (above - below), 1.0)
    shares = np.where(below >= 0, 1.0, np.where(above < 0, 0.0, crossing))
    return np.asarray(shares @ widths)


def seed_values(metric: str, summary: pd.DataFrame, items: pd.DataFrame, cell: Cell) -> pd.Series:
    """Returns a metric of a cell's runs by seed: pass@k from test problems, others from ``summary``."""
    k = own_k(metric)
    if k is not None:
        table = scores(items, cell, k)
        return table.mean(axis=1) if len(table) else pd.Series(dtype=float)
    return values_by_seed(summary, cell, metric)


def across_differences(
    across: Across,
    metric: str,
    line: Mapping[float, Cell],
    baseline: str,
    summary: pd.DataFrame,
    items: pd.DataFrame,
) -> dict[float, float]:
    """Returns the statistic of a method minus its baseline's, for seeds with runs at every point.

    Empty if a point lacks runs of either method, or if usable decades are asked for and the base model has no
    samples or nothing was learned.
    """
    baseline_line = {x: cell.with_trust_region(baseline) for x, cell in line.items()}
    of_method, of_baseline = (
        pd.DataFrame({x: seed_values(metric, summary, items, cell) for x, cell in points.items()}).dropna()
        for points in (line, baseline_line)
    )
    seeds = of_method.index.intersection(of_baseline.index)
    if of_method.shape[1] != len(line) or seeds.empty:
        return {}
    values, first, second = list(line), of_method.loc[seeds].to_numpy(), of_baseline.loc[seeds].to_numpy()
    if across.statistic == "slope":
        doubling = across.doubling
        change = slope(values, first, doubling=doubling) - slope(values, second, doubling=doubling)
    else:
        base = seed_values(metric, summary, items, next(iter(line.values())).base_model())
        if base.empty:
            return {}
        start, best = float(base.mean()), float(max(first.mean(axis=0).max(), second.mean(axis=0).max()))
        if best <= start:  # nothing was learned at any value
            return {}
        threshold = start + across.share * (best - start)
        change = usable_decades(values, first, threshold) - usable_decades(values, second, threshold)
    return dict(zip(map(float, seeds), change.tolist(), strict=True))
