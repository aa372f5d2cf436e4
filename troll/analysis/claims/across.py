"""Claims about a line of conditions: how a number changes with a setting, or where it is good enough.

Two statistics turn a line into one number for each seed, so that two methods are compared seed by seed as
everywhere else: the slope along the setting, and how many decades of the setting are usable.
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
    """A statistic over conditions that differ in one setting and in nothing else."""

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
        """What a slope is per, behind the metric's own unit."""
        return f"per {'doubling' if self.doubling else 'batch behind'}"

    @property
    def doubling(self) -> bool:
        """Whether slopes are for each doubling: of what cannot be zero."""
        return self.setting != "policy_lag"

    @property
    def axis(self) -> Axis:
        """The setting as runs record it."""
        return next(axis for axis in AXES if axis.name == self.setting)


def slope(values: Sequence[float], measured: Array, *, doubling: bool = True) -> Array:
    """Least-squares slopes ``[S]`` of ``measured [S, P]``, by doubling or by unit of ``values [P]``."""
    x = np.asarray(values, dtype=float)
    x = np.log2(x) if doubling else x
    x = x - x.mean()
    return np.asarray(measured @ x / (x @ x))


def usable_decades(values: Sequence[float], measured: Array, threshold: float) -> Array:
    """Decades ``[S]`` in which each seed's line, straight between points, is at the threshold or above.

    The setting's ``values [P]`` are positive and ascending, and what is beyond them does not count;
    ``measured`` is ``[S, P]``.
    """
    widths = np.diff(np.log10(np.asarray(values, dtype=float)))
    left, right = measured[:, :-1] - threshold, measured[:, 1:] - threshold
    above, below = np.maximum(left, right), np.minimum(left, right)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.where(above > below, above / (above - below), 1.0)
    shares = np.where(below >= 0, 1.0, np.where(above < 0, 0.0, crossing))
    return np.asarray(shares @ widths)


def seed_values(metric: str, summary: pd.DataFrame, items: pd.DataFrame, cell: Cell) -> pd.Series:
    """A metric of a cell's runs by seed: pass@k from the test problems, others from the table of runs."""
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
    """By seed, the statistic of a method minus its baseline's, where both have the seed at every point.

    Empty where a point has no runs of one of the two, or where the base model, which usable decades are
    measured from, has no samples.
    """
    of_baseline = {x: cell.with_trust_region(baseline) for x, cell in line.items()}
    of_method, other = (
        pd.DataFrame({x: seed_values(metric, summary, items, cell) for x, cell in points.items()}).dropna()
        for points in (line, of_baseline)
    )
    seeds = of_method.index.intersection(other.index)
    if of_method.shape[1] != len(line) or seeds.empty:
        return {}
    values, first, second = list(line), of_method.loc[seeds].to_numpy(), other.loc[seeds].to_numpy()
    if across.statistic == "slope":
        first, second = (slope(values, one, doubling=across.doubling) for one in (first, second))
        change = first - second
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
