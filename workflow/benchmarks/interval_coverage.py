"""Simulated coverage of confidence intervals, on which the choice of interval is based.

Differences between two methods are drawn as d[s, i] = mean + seed[s] + item[i] + noise[s, i], with spreads
like those of released runs (two-way analysis of variance of TROLL minus clip: 96 problems, 8 samples each).
Several kinds of intervals of the mean are computed from them and compared with the known truth.

Axis letters: N trials, S seeds, I items (test problems), R bootstrap replicates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from scipy import stats

from troll.analysis.pooling import error_covariance, pool
from troll.analysis.render.formats import Style, percent, whole
from troll.analysis.statistics import LEVEL, Array
from troll.common.seeding import derive_seed

TRIALS = 2000
SEEDS = (3, 5, 10)
REPLICATES = 500


@dataclass(frozen=True)
class Scenario:
    """A distribution of differences; all numbers are shares.

    Attributes:
        title: name in the table.
        mean: difference in runs that do not collapse.
        seed: standard deviation between seeds.
        item: standard deviation between problems, the same for every seed.
        noise: standard deviation of the residual, including sampling.
        collapse: probability that the baseline's run of a seed collapses.
        fall: loss of success in a collapse.
        items: I, number of problems.
    """

    title: str
    mean: float
    seed: float
    item: float
    noise: float
    collapse: float = 0.0
    fall: float = 0.0
    items: int = 96

    @property
    def truth(self) -> float:
        """The expected difference over seeds and problems."""
        return self.mean + self.collapse * self.fall

    def draw(self, seeds: int, trials: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draws differences [N, S, I]; also returns the true difference on the drawn problems [N]."""
        item = rng.normal(0, self.item, (trials, 1, self.items))
        seed = rng.normal(0, self.seed, (trials, seeds, 1))
        seed += self.fall * (rng.random((trials, seeds, 1)) < self.collapse)
        noise = rng.normal(0, self.noise, (trials, seeds, self.items))
        return self.mean + seed + item + noise, self.truth + item.mean(axis=(1, 2))


SCENARIOS = (
    Scenario("seeds alike (gentle)", 0.002, 0.005, 0.015, 0.065),
    Scenario("seeds differ (stale)", 0.20, 0.06, 0.07, 0.35),
    Scenario("a quarter of the seeds collapse", 0.10, 0.02, 0.07, 0.35, collapse=0.25, fall=0.40),
)

SETTINGS = 7
BETWEEN = 0.05
SPREADS = (0.02, 0.03, 0.06, 0.06, 0.08, 0.10, 0.15)
"""An average over settings: their number, the spread between them, and that of the seeds of each."""

SHARING = (0.03, 0.03, 0.06) * 2
BASELINE_SPREAD = 0.06
"""An average over variants of a method on two tasks: the spread of seeds of each variant, and of the
baseline, whose runs all variants on a task are compared with."""

Method = Callable[[Array, np.random.Generator], tuple[Array, Array]]
"""Maps differences [N, S, I] to lower and upper ends [N] at level 0.95."""


def _t(means: Array, variance: Array, df: Array | int) -> tuple[Array, Array]:
    half = stats.t.ppf((1 + LEVEL) / 2, df) * np.sqrt(variance)
    return means - half, means + half


def student(scores: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Student's interval from each seed's mean over the problems, as in tables and verdicts."""
    by_seed = scores.mean(axis=-1)
    seeds = by_seed.shape[-1]
    return _t(by_seed.mean(axis=-1), by_seed.var(axis=-1, ddof=1) / seeds, seeds - 1)


def crossed(scores: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Student's interval for crossed seeds and problems, with Satterthwaite's degrees of freedom."""
    _, seeds, items = scores.shape
    by_seed, by_item = scores.mean(axis=2), scores.mean(axis=1)
    centre = by_seed.mean(axis=1)
    rest = scores - by_seed[:, :, None] - by_item[:, None, :] + centre[:, None, None]
    between_seeds = items * by_seed.var(axis=1, ddof=1)
    between_items = seeds * by_item.var(axis=1, ddof=1)
    within = (rest**2).sum(axis=(1, 2)) / ((seeds - 1) * (items - 1))
    total = np.maximum(between_seeds + between_items - within, between_seeds)
    parts = between_seeds**2 / (seeds - 1) + between_items**2 / (items - 1)
    parts += within**2 / ((seeds - 1) * (items - 1))
    return _t(centre, total / (seeds * items), total**2 / parts)


def two_level_bootstrap(scores: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Bootstrap of seeds and problems (Owen 2007, "The pigeonhole bootstrap"), widened for few seeds.

    Deviations between drawn seeds are multiplied by sqrt(S / (S - 1)) t / z (after Hesterberg 2015, "What
    teachers should know about the bootstrap"). The noise of problems is counted twice: in the seeds' means
    and in the drawn problems.
    """
    _, seeds, items = scores.shape
    tail = (1 + LEVEL) / 2
    factor = np.sqrt(seeds / (seeds - 1)) * stats.t.ppf(tail, seeds - 1) / stats.norm.ppf(tail)
    ends = []
    for matrix in scores:
        weights = rng.multinomial(items, np.full(items, 1 / items), size=REPLICATES) / items
        per_seed = weights @ matrix.T
        drawn = np.take_along_axis(per_seed, rng.integers(seeds, size=(REPLICATES, seeds)), axis=1)
        centre = per_seed.mean(axis=1)
        replicated = centre + factor * (drawn.mean(axis=1) - centre)
        ends.append(np.quantile(replicated, [(1 - LEVEL) / 2, tail]))
    low, high = np.asarray(ends).T
    return low, high


def _scipy(kind: str) -> Method:
    def interval(scores: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        by_seed = scores.mean(axis=-1)
        ends = stats.bootstrap(
            (by_seed,), np.mean, axis=-1, method=kind, n_resamples=REPLICATES, rng=rng, confidence_level=LEVEL
        ).confidence_interval
        return np.asarray(ends.low), np.asarray(ends.high)

    return interval


METHODS: Mapping[str, Method] = {
    "Student's t over seeds": student,
    "t over seeds and problems (crossed)": crossed,
    "percentile bootstrap of seeds": _scipy("percentile"),
    "BCa bootstrap of seeds": _scipy("BCa"),
    "two-level bootstrap, stretched": two_level_bootstrap,
}


_POOLED = "REML, Hartung and Knapp"


def _average(seeds: int, trials: int) -> dict[str, object]:
    """Coverage for an average over settings: REML with the Hartung-Knapp interval."""
    rng = np.random.default_rng(derive_seed(purpose="coverage of averages", seeds=seeds))
    ends = []
    for _ in range(trials):
        settings = rng.normal(0, BETWEEN, (SETTINGS, 1))
        values = settings + np.array(SPREADS)[:, None] * rng.normal(size=(SETTINGS, seeds))
        average = pool(values.mean(axis=1), values.var(axis=1, ddof=1) / seeds)
        ends.append((average.low, average.high))
    name = f"average over {SETTINGS} settings that differ"
    return _average_row(name, seeds, _POOLED, np.asarray(ends))


def _averages_of_variants(seeds: int, trials: int) -> list[dict[str, object]]:
    """The same for variants that share a baseline's runs, with and without their covariance."""
    rng = np.random.default_rng(derive_seed(purpose="coverage of averages of variants", seeds=seeds))
    tasks = np.repeat([0, 1], len(SHARING) // 2)
    ends: dict[str, list[tuple[float, float]]] = {_POOLED: [], f"{_POOLED}, as if independent": []}
    for _ in range(trials):
        baseline = BASELINE_SPREAD * rng.normal(size=(2, seeds))[tasks]
        values = np.array(SHARING)[:, None] * rng.normal(size=(len(SHARING), seeds)) - baseline
        by_seed = [{float(seed): value for seed, value in enumerate(row)} for row in values.tolist()]
        for kinds, intervals in zip((tasks.tolist(), [None] * len(SHARING)), ends.values(), strict=True):
            average = pool(values.mean(axis=1), error_covariance(by_seed, kinds)[1])
            intervals.append((average.low, average.high))
    name = f"average over {len(SHARING)} settings, three compared with the same runs"
    return [_average_row(name, seeds, kind, np.asarray(intervals)) for kind, intervals in ends.items()]


def _average_row(scenario: str, seeds: int, interval: str, ends: Array) -> dict[str, object]:
    low, high = ends.T
    covers = float(np.mean((low <= 0) & (high >= 0)))
    row = {"scenario": scenario, "seeds": seeds, "interval": interval, "covers": covers}
    return row | {"covers_population": np.nan, "width": float(np.median(high - low))}


def coverage_table(trials: int = TRIALS) -> pd.DataFrame:
    """Simulates coverage and width of every kind of interval in every scenario.

    Returns:
        One row per scenario, number of seeds and method, and nine rows for averages over settings:
        ``covers`` (share of intervals that contain the true difference on the problems of the test split),
        ``covers_population`` (the same on the population of problems) and ``width`` (median width, as a
        share). All methods use the same draws.
    """
    rows = []
    for scenario, seeds in product(SCENARIOS, SEEDS):
        coordinates: dict[str, str | int] = {"purpose": "coverage", "scenario": scenario.title}
        rng = np.random.default_rng(derive_seed(**coordinates, seeds=seeds))
        scores, on_split = scenario.draw(seeds, trials, rng)
        for name, method in METHODS.items():
            low, high = method(scores, rng)
            rows.append(
                {
                    "scenario": scenario.title,
                    "seeds": seeds,
                    "interval": name,
                    "covers": float(np.mean((low <= on_split) & (on_split <= high))),
                    "covers_population": float(np.mean((low <= scenario.truth) & (scenario.truth <= high))),
                    "width": float(np.median(high - low)),
                }
            )
    few = max(trials // 4, 1)
    rows += [_average(seeds, few) for seeds in SEEDS]
    rows += [row for seeds in SEEDS for row in _averages_of_variants(seeds, few)]
    frame = pd.DataFrame(rows)
    frame.attrs["styles"] = {
        "scenario": Style("Differences", str),
        "seeds": Style("Seeds", whole),
        "interval": Style("95 % interval", str),
        "covers": Style("Covers (%)", percent),
        "covers_population": Style("Covers, new problems (%)", percent),
        "width": Style("Median width (points)", percent),
    }
    frame.attrs["notes"] = [
        f"Share of {trials:,} simulated experiments whose interval holds the truth; 95 % is meant, and "
        f"{100 * 1.96 * np.sqrt(0.95 * 0.05 / trials):.1f} points are chance. Covers: the difference on the "
        "problems of the test split; new problems: on all problems that could have been drawn. Spreads of "
        "seeds, problems and samples are like those of the released runs. Tables and verdicts use Student's "
        "t over seeds. Where a quarter of the seeds collapse, three seeds often show no collapse, and no "
        "interval made from them can know of it. Averages (a quarter as many experiments): what verdicts on "
        "average use, and, where variants of a method are compared with the same runs, what it would be if "
        "they were taken as independent. Made by "
        "`python workflow/benchmarks/measure.py coverage --out results/released/statistics`.",
    ]
    return frame
