"""Random-effects meta-analysis over settings: pooled average, test of moderators, and power.

Every setting has an effect (the mean paired difference over its seeds) and its sampling variance; beyond it,
effects vary between settings with variance tau². Sources: REML for tau² (Viechtbauer 2005, "Bias and
efficiency of meta-analytic variance estimators"); the Hartung-Knapp interval of the average, Student's
quantile with an estimated scale bounded below by one (Knapp and Hartung 2003; Röver, Knapp and Friede 2015);
prediction interval for a new setting (Higgins, Thompson and Spiegelhalter 2009).

Settings that are compared with the same runs of a baseline have correlated errors (Gleser and Olkin 2009,
"Stochastically dependent effect sizes"); `error_covariance` estimates the covariance from the seeds. REML,
the scale and all standard errors use it. The weights remain those of independent settings,
1 / (variance + tau²): with a covariance estimated from five seeds, optimal weights can be negative. Without
shared runs this is the Hartung-Knapp method of statsmodels, which lacks REML, the bounded scale, moderators,
prediction intervals and covariances.

Axis letters: K settings, P columns of a design matrix.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, stats

from troll.analysis.statistics import LEVEL, POWER, Array, least_enough

PREDICTION = "95 % prediction interval for a new setting"
LEAST_SETTINGS = 3
"""Minimum for an average with an interval: two hardly show how settings differ (Student's t is 12.7)."""
_LEAST_OF_LEVEL = 2
"""Minimum number of settings per level: the effect of one with a single setting is confounded with it."""
_MOST_CORRELATED = 0.99
"""Upper bound of the correlation: perfectly correlated errors would make the covariance singular."""


@dataclass(frozen=True)
class Pooled:
    """The average of an effect over settings."""

    estimate: float
    low: float  # lower end of its interval
    high: float
    predicted_low: float  # lower end of the prediction interval for a new setting; NaN for fewer than three
    predicted_high: float
    between: float  # tau, the standard deviation between settings beyond what seeds explain
    settings: int  # K


def error_covariance(
    differences: Sequence[Mapping[float, float]], baselines: Sequence[Hashable]
) -> tuple[Array, Array]:
    """Returns the covariances ``[K, K]`` of settings' differences for a seed, and of their means over seeds.

    ``differences`` are by seed, at least two in each setting; equal ``baselines`` mean that settings are
    compared with the same runs, None that a setting shares them with no other. All pairs that share runs get
    one correlation, at least zero: the sum of their covariances over common seeds, divided by the sum of the
    products of their standard deviations.
    """
    table = pd.DataFrame(
        {index: pd.Series(by_seed, dtype=float) for index, by_seed in enumerate(differences)}
    )
    covariances = table.cov(min_periods=2).to_numpy()
    products = np.outer(spreads := np.sqrt(covariances.diagonal()), spreads)
    same = np.asarray([[a == b and a is not None for b in baselines] for a in baselines])
    np.fill_diagonal(same, False)
    pairs = same & ~np.isnan(covariances)
    scale = float(products[pairs].sum())
    correlation = np.clip(covariances[pairs].sum() / scale, 0, _MOST_CORRELATED) if scale else 0.0
    one_seed = (np.eye(len(baselines)) + correlation * same) * products
    measured = table.notna().to_numpy(dtype=float)
    counts = measured.sum(axis=0)
    return one_seed, one_seed * (measured.T @ measured) / np.outer(counts, counts)


def reml(effects: ArrayLike, errors: ArrayLike, design: ArrayLike | None = None) -> float:
    """Returns the variance between settings that maximises the restricted likelihood; at least zero.

    ``effects`` are ``[K]``; ``errors`` are the variances ``[K]`` of independent effects or a positive
    definite covariance ``[K, K]``; ``design`` ``[K, P]`` defaults to a column of ones.
    """
    y, v = np.asarray(effects, dtype=np.float64), _matrix(errors)
    x = np.ones((y.size, 1)) if design is None else np.asarray(design, dtype=np.float64)

    def deviance(between: Array) -> Array:  # vectorised over values, [N]
        whole = v + between[:, None, None] * np.eye(y.size)
        weighted = np.linalg.solve(whole, np.column_stack([x, y]))
        information = x.T @ weighted[:, :, :-1]
        rest = y[:, None] - x @ np.linalg.solve(information, x.T @ weighted[:, :, -1:])
        logs = np.linalg.slogdet(whole)[1] + np.linalg.slogdet(information)[1]
        return np.asarray(logs + (rest * np.linalg.solve(whole, rest)).sum(axis=(1, 2)))

    def slope(between: float) -> float:  # of the deviance
        inverse = np.linalg.inv(v + between * np.eye(y.size))
        projection = inverse - inverse @ x @ np.linalg.solve(x.T @ inverse @ x, x.T @ inverse)
        rest = projection @ y
        return float(np.trace(projection) - rest @ rest)

    # The deviance may have several minima: a grid search brackets the lowest. A root of the slope between its
    # neighbours is more precise than direct minimisation.
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 100) * (np.ptp(y) ** 2 + v.diagonal().max())])
    least = int(np.argmin(deviance(grid)))
    low, high = grid[max(least - 1, 0)], grid[min(least + 1, grid.size - 1)]
    if slope(low) < 0 < slope(high):
        return float(optimize.brentq(slope, low, high, xtol=1e-300, rtol=1e-12))
    return float(grid[least])


def pool(effects: ArrayLike, errors: ArrayLike) -> Pooled:
    """Returns the average of ``effects [K]``, K > 1, with its 95 % interval and the 95 % prediction interval.

    ``errors`` are the variances ``[K]`` of independent effects or a covariance ``[K, K]``; a variance may be
    zero, where all seeds agree exactly.
    """
    y, v = _regularised(effects, errors)
    if y.size < 2:
        raise ValueError("an average over settings needs at least two of them")
    between = reml(y, v)
    average, variance = _fit(y, v, np.ones((y.size, 1)), between)
    estimate, error = float(average[0]), math.sqrt(variance[0, 0])
    half = float(stats.t.ppf((1 + LEVEL) / 2, y.size - 1)) * error
    further = math.nan
    if y.size > 2:
        further = float(stats.t.ppf((1 + LEVEL) / 2, y.size - 2)) * math.sqrt(between + error**2)
    ends = estimate - half, estimate + half, estimate - further, estimate + further
    return Pooled(estimate, *ends, math.sqrt(between), y.size)


def moderator_p(effects: ArrayLike, errors: ArrayLike, levels: Sequence[Hashable]) -> float:
    """p-value of the hypothesis that the average is the same at every level of a coordinate.

    F test of a mixed-effects meta-regression with a common tau², on the levels that have at least two
    settings; NaN with fewer than two such levels. ``levels [K]`` is the level of each setting; the other
    arguments are those of `pool`.
    """
    kept = common_levels(levels)
    chosen = np.asarray([level in kept for level in levels], dtype=bool)
    if len(kept) < 2:
        return math.nan
    y, v = _regularised(effects, errors)
    y, v = y[chosen], v[np.ix_(chosen, chosen)]
    x = np.asarray([[float(level == name) for name in kept] for level in levels if level in kept])
    means, covariance = _fit(y, v, x, reml(y, v, x))
    contrasts = np.eye(len(kept))[1:] - np.eye(len(kept))[0]
    differences = contrasts @ means
    f = differences @ np.linalg.solve(contrasts @ covariance @ contrasts.T, differences) / differences.size
    return float(stats.f.sf(f, differences.size, y.size - len(kept)))


def common_levels(levels: Sequence[Hashable]) -> list[Hashable]:
    """Returns the levels that at least two settings have, in order of first appearance."""
    return [level for level in dict.fromkeys(levels) if list(levels).count(level) >= _LEAST_OF_LEVEL]


def seeds_to_decide(
    effects: ArrayLike,
    errors: ArrayLike,
    decides: Callable[[float, float, int], float],
    *,
    least: int,
    most: int = 1000,
) -> int | None:
    """Returns the least seeds per setting with a chance of 80 % of a decision, all else unchanged.

    None if ``most`` are not enough, because settings differ more than seeds. ``errors`` are variances ``[K]``
    or a covariance ``[K, K]`` of the paired differences of a single seed. ``decides`` returns the chance of a
    decision from the average, its standard error and degrees of freedom.
    """
    y, now = _regularised(effects, _matrix(errors) / least)
    between = reml(y, now) if y.size > 1 else 0.0

    def enough(seeds: int) -> bool:
        whole = now * least / seeds + between * np.eye(y.size)
        weight = 1 / whole.diagonal()
        weight /= weight.sum()
        df = y.size - 1 if y.size > 1 else seeds - 1
        return decides(float(weight @ y), math.sqrt(weight @ whole @ weight), df) >= POWER

    return least_enough(enough, least, most)


def clears(distance: float, error: float, df: int, level: float = LEVEL) -> float:
    """Chance that an interval excludes a boundary at this true distance (noncentral t)."""
    critical = stats.t.ppf((1 + level) / 2, df)
    return float(np.nan_to_num(stats.nct.sf(critical, df, distance / error), nan=1.0))


def _matrix(errors: ArrayLike) -> Array:
    v = np.asarray(errors, dtype=np.float64)
    return np.diag(v) if v.ndim == 1 else v


def _regularised(effects: ArrayLike, errors: ArrayLike) -> tuple[Array, Array]:
    """Effects and covariance with variances above zero: a setting of equal seeds would get all the weight."""
    y, v = np.asarray(effects, dtype=np.float64), _matrix(errors)
    scale = float(np.max(np.abs(y), initial=0.0)) ** 2 or 1.0
    return y, v + np.diag(np.maximum(1e-12 * scale - v.diagonal(), 0.0))


def _fit(y: Array, v: Array, x: Array, between: float) -> tuple[Array, Array]:
    """Weighted least-squares coefficients [P] and their scaled covariance [P, P]."""
    whole = v + between * np.eye(y.size)
    weight = 1 / whole.diagonal()
    bread = np.linalg.inv(x.T @ (weight[:, None] * x))
    fitted = bread @ (x.T @ (weight * y))
    rest = y - x @ fitted
    scale = float(rest @ np.linalg.solve(whole, rest)) / (y.size - x.shape[1])
    half = bread @ (x.T * weight)
    return fitted, max(1.0, scale) * (half @ whole @ half.T)
