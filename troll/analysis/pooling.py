"""One average over many settings: random-effects meta-analysis, a test of what it depends on, and its power.

Every setting has an effect (the mean paired difference over its seeds) with a variance; settings differ from
each other by more than that, with variance tau². Sources: REML for tau² (Viechtbauer 2005, "Bias and
efficiency of meta-analytic variance estimators"); Hartung's and Knapp's interval of the average, Student's
quantile with an estimated scale that is not let below one (Knapp and Hartung 2003; Röver, Knapp and Friede
2015); prediction interval of a further setting (Higgins, Thompson and Spiegelhalter 2009). Weighted least
squares with an estimated scale, which is Hartung's and Knapp's method, is statsmodels'; its own meta-analysis
lacks REML, the bounded scale, moderators and prediction intervals.

Axis letters: K settings, P columns of a design.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from troll.analysis.statistics import LEVEL, Array

_LEAST_OF_LEVEL = 2
"""A level of a coordinate that is known from one setting cannot be told from that setting."""


@dataclass(frozen=True)
class Pooled:
    """The average of an effect over settings.

    Attributes:
        estimate: the average.
        low: lower end of its interval.
        high: upper end.
        predicted_low: lower end of the interval for one further setting; NaN for fewer than three settings.
        predicted_high: upper end.
        between: tau, the standard deviation between settings beyond what seeds explain.
        settings: K.
    """

    estimate: float
    low: float
    high: float
    predicted_low: float
    predicted_high: float
    between: float
    settings: int


def reml(effects: ArrayLike, variances: ArrayLike, design: ArrayLike | None = None) -> float:
    """The variance between settings that makes the restricted likelihood largest; at least zero.

    Args:
        effects: ``[K]``.
        variances: of the effects, ``[K]``, positive.
        design: ``[K, P]``; a column of ones by default.
    """
    y, v = np.asarray(effects, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    x = np.ones((y.size, 1)) if design is None else np.asarray(design, dtype=np.float64)

    def deviance(between: float) -> float:
        weight = 1 / (v + between)
        information = x.T @ (weight[:, None] * x)
        rest = y - x @ np.linalg.solve(information, x.T @ (weight * y))
        return float(np.log(v + between).sum() + np.linalg.slogdet(information)[1] + (weight * rest**2).sum())

    # The deviance may have several minima: a grid finds the lowest, a search between its neighbours the rest.
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 100) * (np.ptp(y) ** 2 + v.max())])
    least = int(np.argmin([deviance(between) for between in grid]))
    ends = grid[max(least - 1, 0)], grid[min(least + 1, grid.size - 1)]
    minimum = optimize.minimize_scalar(deviance, bounds=ends, method="bounded", options={"xatol": 1e-12})
    return float(minimum.x) if minimum.fun < deviance(grid[least]) else float(grid[least])


def pool(effects: ArrayLike, variances: ArrayLike, *, level: float = LEVEL) -> Pooled:
    """The average over settings with its interval and the prediction interval.

    Args:
        effects: ``[K]``, at least two.
        variances: of the effects, ``[K]``; zero where all seeds agree to the last digit.
        level: of the average's interval; the prediction interval is one of 95 % always.

    Raises:
        ValueError: there are fewer than two effects.
    """
    y, v = _known(effects, variances)
    if y.size < 2:
        raise ValueError("an average over settings needs at least two of them")
    between = reml(y, v)
    fitted = _fit(y, v, np.ones((y.size, 1)), between)
    low, high = fitted.conf_int(alpha=1 - level)[0]
    estimate, error = float(fitted.params[0]), float(fitted.bse[0])
    half = math.nan
    if y.size > 2:
        half = float(stats.t.ppf((1 + LEVEL) / 2, y.size - 2)) * math.sqrt(between + error**2)
    ends = float(low), float(high), estimate - half, estimate + half
    return Pooled(estimate, *ends, math.sqrt(between), y.size)


def moderator_p(effects: ArrayLike, variances: ArrayLike, levels: Sequence[Hashable]) -> float:
    """p-value of the hypothesis that the average is the same at every level of a coordinate.

    A mixed-effects meta-regression on the levels that have at least two settings, with a common tau².

    Args:
        effects: ``[K]``.
        variances: ``[K]``.
        levels: of the coordinate, one for each setting.

    Returns:
        The p-value of the F test; NaN where fewer than two levels have two settings.
    """
    kept = common_levels(levels)
    chosen = np.asarray([level in kept for level in levels], dtype=bool)
    if len(kept) < 2:
        return math.nan
    y, v = (part[chosen] for part in _known(effects, variances))
    x = np.asarray([[float(level == name) for name in kept] for level in levels if level in kept])
    fitted = _fit(y, v, x, reml(y, v, x))
    contrasts = np.eye(len(kept))[1:] - np.eye(len(kept))[0]
    return float(fitted.f_test(contrasts).pvalue)


def common_levels(levels: Sequence[Hashable]) -> list[Hashable]:
    """The levels that at least two settings have, in the order in which they come."""
    return [level for level in dict.fromkeys(levels) if list(levels).count(level) >= _LEAST_OF_LEVEL]


def seeds_to_decide(
    effects: ArrayLike,
    spreads: ArrayLike,
    decides: Callable[[float, float, int], float],
    *,
    least: int,
    most: int = 1000,
) -> int | None:
    """The seeds in each setting at which the average would probably be decided, if nothing else changed.

    Args:
        effects: ``[K]``.
        spreads: standard deviations of the paired differences between seeds, ``[K]``.
        decides: the chance of a decision given the average, its standard error and degrees of freedom.
        least: seeds that are there.
        most: give up above this many.

    Returns:
        The least number of seeds with a chance of 80 %; None when ``most`` are not enough, because settings
        differ more than seeds.
    """
    y, spread = np.asarray(effects, dtype=np.float64), np.asarray(spreads, dtype=np.float64)
    _, now = _known(y, spread**2 / least)
    between = reml(y, now) if y.size > 1 else 0.0

    def enough(seeds: int) -> bool:
        weight = 1 / (now * least / seeds + between)
        error, df = math.sqrt(1 / weight.sum()), y.size - 1 if y.size > 1 else seeds - 1
        return decides(float((weight * y).sum() / weight.sum()), error, df) >= 0.8

    if not enough(most):
        return None
    few, many = least, most
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def clears(distance: float, error: float, df: int, level: float = LEVEL) -> float:
    """Chance that an interval ends before a boundary at this true distance (noncentral t)."""
    critical = stats.t.ppf((1 + level) / 2, df)
    return float(np.nan_to_num(stats.nct.sf(critical, df, distance / error), nan=1.0))


def _known(effects: ArrayLike, variances: ArrayLike) -> tuple[Array, Array]:
    """Effects, and variances kept above zero: seeds that agree to the last digit would get all the weight."""
    y, v = np.asarray(effects, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    scale = float(np.max(np.abs(y), initial=0.0)) ** 2 or 1.0
    return y, np.maximum(v, 1e-12 * scale)


def _fit(y: Array, v: Array, x: Array, between: float) -> Any:
    from statsmodels.regression.linear_model import WLS  # half a second that most commands can spare

    model = WLS(y, x, weights=1 / (v + between))
    fitted = model.fit()
    if fitted.scale >= 1:
        return fitted
    return model.fit(cov_type="fixed scale", cov_kwds={"scale": 1.0}, use_t=True)
