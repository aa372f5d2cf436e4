"""Means, intervals and comparisons of scores over seeds and items.

Axis letters: S seeds, I items (test problems). Score matrices are ``[S, I]``: the mean success of seed s on
item i, with the same items in the same order for every seed, as in a fixed test split. This module depends on
neither files nor metric names.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Array = NDArray[np.float64]
LEVEL, POWER = 0.95, 0.8


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    estimate: float
    low: float
    high: float  # upper end; both are NaN if the spread cannot be estimated
    level: float  # confidence level in (0, 1)
    seeds: int  # S, the number of seeds
    items: int  # I, the number of items; 1 if scores are per seed

    def columns(self, name: str) -> dict[str, float]:
        """Returns estimate and interval as table columns: ``name``, ``name_low`` and ``name_high``."""
        return {name: self.estimate, f"{name}_low": self.low, f"{name}_high": self.high}

    def reading(self) -> str:
        """Classifies the interval of a difference.

        "higher" if the whole interval is above zero, "lower" if it is below zero, otherwise "no clear
        difference" (also without an interval). "one seed only" for a single seed, whose interval does not
        cover other training runs.
        """
        if self.seeds < 2:
            return "one seed only"
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "no clear difference"


def interval_columns(name: str, interval: Interval | None) -> dict[str, float]:
    """`Interval.columns`, or NaN in each of them without an interval."""
    parts = (name, f"{name}_low", f"{name}_high")
    return dict.fromkeys(parts, math.nan) if interval is None else interval.columns(name)


def sd(values: ArrayLike) -> float:
    """Sample standard deviation (divisor S - 1); NaN for fewer than two values."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.std(array, ddof=1)) if array.size > 1 else math.nan


def iqm(values: Array) -> Array:
    """Interquartile mean over the last axis: the mean after dropping floor(S / 4) values at either end.

    Source: Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice";
    ``scipy.stats.trim_mean(values, 0.25)`` as in rliable's ``aggregate_iqm``.
    """
    return np.asarray(stats.trim_mean(values, 0.25, axis=-1))


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Array:
    """Unbiased pass@k with c of n samples passing: 1 - C(n - c, k) / C(n, k); NaN where n < k.

    Source: Chen et al. 2021, "Evaluating large language models trained on code", equation 1.
    """
    samples, passing = np.asarray(n, dtype=np.float64), np.asarray(c, dtype=np.float64)
    failing = samples - passing
    with np.errstate(all="ignore"):
        ways = special.binom(samples, k)
        missed = special.binom(failing, k) / ways
        # From about a thousand samples on, the number of ways to draw k of them overflows.
        all_samples = special.gammaln(samples + 1) - special.gammaln(samples - k + 1)
        all_failing = special.gammaln(failing + 1) - special.gammaln(failing - k + 1)
        missed = np.where(np.isinf(ways), np.exp(all_failing - all_samples), missed)
    result = np.where(failing < k, 1.0, 1.0 - missed)
    return np.where(samples < k, np.nan, result)


def seed_interval(scores: ArrayLike, *, level: float = LEVEL) -> Interval:
    """Student's interval of a mean over seeds; scores are ``[S, I]``, or ``[S]`` with one number per seed.

    Each seed contributes its mean over the items, so the noise of samples and items enters once, through the
    spread between seeds. The estimand is the expectation over training seeds on this test split. Chosen by
    simulation (``workflow/benchmarks/interval_coverage.py``): coverage is nominal where seeds differ
    normally, and the interval is a third narrower than that of a two-level bootstrap where they are alike.
    With one seed the interval is over items and does not cover other training runs.

    Raises:
        ValueError: the scores are empty, have more than two axes or contain NaN.
    """
    matrix = _matrix(scores)
    seeds, items = matrix.shape
    values = matrix.mean(axis=1) if seeds > 1 else matrix[0]
    estimate = float(matrix.mean())
    if values.size < 2:
        return Interval(estimate, math.nan, math.nan, level, seeds, items)
    half = float(stats.t.ppf((1 + level) / 2, values.size - 1) * stats.sem(values))
    return Interval(estimate, estimate - half, estimate + half, level, seeds, items)


def paired_difference(scores: ArrayLike, baseline: ArrayLike) -> Interval:
    """Interval of ``scores - baseline``, both ``[S, I]`` with the same seeds and items.

    Pairing removes variation that both methods share: the seed's rollout prompts and each item's difficulty.
    """
    first, second = _matrix(scores), _matrix(baseline)
    if first.shape != second.shape:
        raise ValueError(f"paired scores must have the same shape, got {first.shape} and {second.shape}")
    return seed_interval(first - second)


def probability_of_improvement(scores: ArrayLike, baseline: ArrayLike) -> Array:
    """Chance that a random seed of the method beats a random seed of the baseline; ties count half.

    P = mean over pairs (s, b) of [x_s > y_b] + 0.5 [x_s = y_b], the Mann-Whitney U over S_x * S_y. Seeds are
    the last axis, ``[..., S]``; leading axes are compared elementwise. Source: Agarwal et al. 2021; rliable's
    ``probability_of_improvement`` for one task.
    """
    first, second = np.asarray(scores, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if not first.size or not second.size:
        return np.full(first.shape[:-1], math.nan)
    pairs = first[..., :, None] - second[..., None, :]
    return np.asarray(np.mean((pairs > 0) + 0.5 * (pairs == 0), axis=(-2, -1)))


def area_under_curve(steps: ArrayLike, values: ArrayLike) -> float:
    """Returns the mean height of a curve: trapezoid rule over the steps, divided by their range.

    The value itself for a single point; NaN for none.
    """
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.size < 2:
        return float(y[0]) if y.size else math.nan
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def steps_to(steps: ArrayLike, values: ArrayLike, target: float, *, window: int = 1) -> float:
    """First step at which the mean of the last ``window`` values reaches ``target``; NaN if none does."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if y.size < window:
        return math.nan
    smooth = np.convolve(y, np.full(window, 1 / window), mode="valid")
    # The tolerance keeps rounding of the convolution from missing a value that equals the target.
    reached = np.flatnonzero(smooth >= target - 1e-12)
    return float(x[reached[0] + window - 1]) if reached.size else math.nan


def largest_drop(values: ArrayLike) -> float:
    """Largest fall of a curve below its best so far: max over t of (max of values up to t) - value at t."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.max(np.maximum.accumulate(array) - array)) if array.size else math.nan


def paired_p_value(differences: ArrayLike) -> float:
    """Two-sided p-value of Student's paired test over seeds; NaN for fewer than two seeds."""
    array = np.asarray(differences, dtype=np.float64)
    if array.size < 2:
        return math.nan
    if np.ptp(array) == 0:  # no spread: Student's statistic is 0 / 0 or infinite
        return 1.0 if array[0] == 0 else 0.0
    return float(stats.ttest_1samp(array, 0.0).pvalue)


def equivalence_p_value(differences: ArrayLike, margin: float) -> float:
    """Returns the larger p of two one-sided tests that the mean of differences ``[S]`` is within the margin.

    Computed by statsmodels; NaN for fewer than two seeds. Below 0.025 if the 95 % interval is within the
    margin. Source: Schuirmann 1987.
    """
    from statsmodels.stats.weightstats import DescrStatsW  # half a second, which most commands need not pay

    array = np.asarray(differences, dtype=np.float64)
    if array.size < 2:
        return math.nan
    if np.ptp(array) == 0:  # no spread: Student's statistics are infinite
        return float(abs(array[0]) >= margin)
    return float(DescrStatsW(array).ttost_mean(-margin, margin)[0])


def trimmed_mean(values: ArrayLike, share: float) -> tuple[Interval, float]:
    """Returns a trimmed mean over ``[S]`` seeds with its interval, and the p-value of a mean of 0.

    Student's interval from the winsorised variance, computed by scipy; ``share`` of the seeds, rounded down
    to a whole number, is dropped at either end. NaN if fewer than two remain. Source: Yuen 1974; for one
    sample Tukey and McLaughlin 1963.
    """
    array, limits = np.asarray(values, dtype=np.float64), (share, share)
    kept = array.size - 2 * int(share * array.size)
    estimate = float(stats.trim_mean(array, share)) if array.size else math.nan
    low, high, p_value = math.nan, math.nan, math.nan
    if kept >= 2:
        error = float(stats.mstats.trimmed_stde(array, limits))
        low, high = map(float, stats.mstats.trimmed_mean_ci(array, limits, alpha=1 - LEVEL))
        p_value = float(2 * stats.t.sf(abs(estimate) / error, kept - 1) if error else estimate == 0)
    return Interval(estimate, low, high, LEVEL, array.size, 1), p_value


def holm(p_values: ArrayLike) -> Array:
    """Holm's step-down adjustment of p-values (Holm 1979), by statsmodels; NaN entries are ignored and kept.

    Controls the chance of any false finding in a family of comparisons.
    """
    from statsmodels.stats.multitest import multipletests  # half a second, which most commands need not pay

    adjusted = np.array(p_values, dtype=np.float64)
    present = ~np.isnan(adjusted)
    if present.any():
        adjusted[present] = multipletests(adjusted[present], method="holm")[1]
    return adjusted


def seeds_needed(spread: float, difference: float, *, most: int = 1000) -> int | None:
    """Least number of seeds, at least 2, at which Student's paired test detects a difference with `POWER`.

    ``spread`` is the standard deviation of the paired differences over seeds, in the same unit; the power is
    that of `paired_power`. None if ``most`` seeds are not enough or the spread is NaN.
    """
    if math.isnan(spread):
        return None
    return least_enough(lambda seeds: paired_power(spread, difference, seeds) >= POWER, 1, most)


def least_enough(enough: Callable[[int], bool], few: int, many: int) -> int | None:
    """Returns the least number above ``few`` that is enough, by bisection; None if ``many`` is not enough."""
    if not enough(many):
        return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def paired_power(spread: float, difference: float, seeds: int) -> float:
    """Chance that Student's paired test over ``seeds`` seeds detects a true difference.

    P(|T| > t_crit) for T noncentral t with S - 1 degrees of freedom and noncentrality
    difference * sqrt(S) / spread.
    """
    if spread == 0:
        return 1.0
    critical = stats.t.ppf((1 + LEVEL) / 2, seeds - 1)
    shift = abs(difference) * math.sqrt(seeds) / spread
    # Far in the tail scipy's noncentral t is NaN; the chance of the wrong sign is zero there.
    wrong = float(np.nan_to_num(stats.nct.cdf(-critical, seeds - 1, shift)))
    return float(stats.nct.sf(critical, seeds - 1, shift)) + wrong


def spread_interval(spread: float, seeds: int) -> tuple[float, float]:
    """95 % interval of the standard deviation of normal values: spread * sqrt((S - 1) / chi2 quantile).

    NaN for fewer than two seeds.
    """
    if seeds < 2 or math.isnan(spread):
        return math.nan, math.nan
    tails = stats.chi2.ppf([(1 + LEVEL) / 2, (1 - LEVEL) / 2], seeds - 1)
    low, high = spread * np.sqrt((seeds - 1) / tails)
    return float(low), float(high)


def _matrix(scores: ArrayLike) -> Array:
    matrix = np.asarray(scores, dtype=np.float64)
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"scores must be a non-empty matrix [S, I], got shape {matrix.shape}")
    if np.isnan(matrix).any():
        raise ValueError("scores contain NaN")
    return matrix
