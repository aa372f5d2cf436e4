"""How a claim is decided: reduces paired differences in every setting to one verdict with its evidence.

The verdict is the first of these that applies:

- not run: no setting has runs of both methods.
- inconclusive: some setting has fewer seeds than the claim requires.
- supported everywhere: the 95 % interval of every setting is on the claimed side of the margin. All must hold
  at once (an intersection-union test), so many settings need no correction.
- depends on a coordinate (model, task, estimator or method): the averages at its levels are on different
  sides of the margin, and the levels differ significantly (meta-regression; p < 0.05 after Holm's correction
  over the coordinates). Only levels with at least two settings count.
- supported on average: the interval of the average over settings is on the claimed side of the margin.
  Settings where the claim is not shown are named.
- the contrary holds: the interval of the average is entirely on the other side of the margin (for claims of
  equivalence, outside the margin on one side), or every setting shows the contrary (see "not shown").
- depends on a coordinate: some settings show the claim and others its contrary, each at level
  1 - 0.05 / number of settings (Bonferroni); the coordinate is one of which no level has both.
- not shown: at least two settings show the contrary at that level (or one, if there is no average), no
  setting shows the claim even at 95 %, and the average, if any, does not decide. One of many settings is not
  evidence against a claim.
- inconclusive: everything else, with the number of seeds that would probably decide.

The average is estimated by REML with the Hartung-Knapp interval (``troll.analysis.pooling``), for three or
more settings; settings that are compared with the same runs of a baseline are not treated as independent. The
meta-regression does not test the condition, because claims name the conditions they are about.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np

from troll.analysis.pooling import (
    LEAST_SETTINGS,
    Pooled,
    clears,
    common_levels,
    error_covariance,
    moderator_p,
    pool,
    seeds_to_decide,
)
from troll.analysis.statistics import LEVEL, POWER, Array, Interval, holm, seed_interval

Direction = Literal["higher", "lower", "equivalent"]
Verdict = Literal[
    "supported everywhere",
    "supported on average",
    "depends",
    "the contrary holds",
    "not shown",
    "inconclusive",
    "not run",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
UNDECIDED: tuple[Verdict, ...] = ("inconclusive", "not run")
Deciding = Literal["average", "contrary", "claim"]
"""What further seeds would decide first: the average, the contrary in some settings, or the claim in all."""
MODERATORS = ("task", "estimator", "model", "method")
MOST_SEEDS = 1000
"""Upper limit of the recommended number of seeds."""


@dataclass(frozen=True)
class PairedDifferences:
    """One setting's paired differences."""

    name: str
    coordinates: Mapping[str, str]  # model, task, condition, estimator and method
    differences: Array  # one for each seed, ``[S]``
    seed_numbers: tuple[float, ...] = ()  # the seeds, in the order of the differences; 0 to S - 1 by default
    # identifies the baseline's runs, which other settings may share; None if none can
    baseline: Hashable = None

    @property
    def by_seed(self) -> dict[float, float]:
        """The differences by seed."""
        return dict(zip(self.seed_numbers or range(self.seeds), self.differences.tolist(), strict=True))

    @property
    def seeds(self) -> int:
        """S, the number of seeds."""
        return int(self.differences.size)

    @property
    def effect(self) -> float:
        """Mean over seeds."""
        return float(self.differences.mean())

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; NaN for one."""
        return float(self.differences.std(ddof=1)) if self.seeds > 1 else math.nan

    def interval(self, level: float = LEVEL) -> Interval:
        """Student's interval over seeds."""
        return seed_interval(self.differences, level=level)


@dataclass(frozen=True)
class Decision:
    """A verdict and its evidence."""

    verdict: Verdict
    settings: tuple[PairedDifferences, ...] = ()  # the settings with runs of both methods
    shown_in: tuple[bool, ...] = ()  # by setting, whether it alone shows the claim
    refuted_in: tuple[bool, ...] = ()  # by setting, whether it shows the contrary, at the strict level
    pooled: Pooled | None = None  # the average over settings; None for fewer than three, or too few seeds
    coordinate: str = ""  # of the verdict "depends": a coordinate, or "setting"
    levels: Mapping[str, float] | None = None  # unweighted mean over settings at each of its levels
    p: float = math.nan  # of the test that the levels differ; NaN if single settings show claim and contrary
    seeds: int | None = None  # seeds in each setting that would probably decide; None if more would not
    deciding: Deciding | None = None  # what that number of seeds would decide; None if it is not known
    # whether some number of seeds up to `MOST_SEEDS` would probably decide the average
    average_decidable: bool = False

    @property
    def label(self) -> str:
        """The verdict for display."""
        return f"depends on {self.coordinate}" if self.verdict == "depends" else self.verdict


@dataclass(frozen=True)
class Side:
    """The claimed side of a margin."""

    direction: Direction
    margin: float

    def shown(self, low: float, high: float) -> bool:
        """Returns whether an interval is on the claimed side."""
        if self.direction == "higher":
            return low > self.margin
        if self.direction == "lower":
            return high < -self.margin
        return -self.margin <= low and high <= self.margin

    def refuted(self, low: float, high: float) -> bool:
        """Returns whether an interval is entirely on the other side."""
        if self.direction == "higher":
            return high < self.margin
        if self.direction == "lower":
            return low > -self.margin
        return low > self.margin or high < -self.margin

    def chance(self, average: float, error: float, df: int, level: float = LEVEL) -> float:
        """Chance that an interval will show or refute the claim, given the true average."""
        if error == 0:
            return 1.0
        if self.direction != "equivalent":
            boundary = self.margin if self.direction == "higher" else -self.margin
            return clears(abs(average - boundary), error, df, level)
        if abs(average) > self.margin:
            return clears(abs(average) - self.margin, error, df, level)
        within = (clears(self.margin + sign * average, error, df, level) for sign in (1, -1))
        return max(0.0, sum(within) - 1)


def decide(side: Side, settings: Sequence[PairedDifferences], least_seeds: int) -> Decision:
    """Returns the verdict on a claim."""
    if not settings:
        return Decision("not run")
    present = tuple(settings)
    shown_in = tuple(_reads(side.shown, setting, LEVEL) for setting in present)
    strict = _strict(len(present))
    refuted_in = tuple(_reads(side.refuted, setting, strict) for setting in present)
    if any(setting.seeds < least_seeds for setting in present):
        return Decision("inconclusive", present, shown_in, refuted_in, seeds=least_seeds)
    pooled = pool(*_effects(present)) if len(present) >= LEAST_SETTINGS else None
    evidence = (present, shown_in, refuted_in, pooled)
    if all(shown_in):
        return Decision("supported everywhere", *evidence)
    name, p = _moderator(side, present)
    if name:
        return Decision("depends", *evidence, name, _levels(present, name), p)
    # The average decides before single settings are allowed to disagree.
    if pooled and side.shown(pooled.low, pooled.high):
        return Decision("supported on average", *evidence)
    if pooled and side.refuted(pooled.low, pooled.high):
        return Decision("the contrary holds", *evidence)
    holds = tuple(_reads(side.shown, setting, strict) for setting in present)
    if any(refuted_in) and any(holds):
        name = _separates(present, holds, refuted_in)
        return Decision("depends", *evidence, name, _levels(present, name))
    if sum(refuted_in) >= least_refuted(present) and not any(shown_in):
        return Decision("the contrary holds" if all(refuted_in) else "not shown", *evidence)
    seeds, deciding, decidable = _forecast(side, present)
    return Decision("inconclusive", *evidence, seeds=seeds, deciding=deciding, average_decidable=decidable)


def _strict(settings: int) -> float:
    """Returns the level for conclusions from one of several settings (Bonferroni)."""
    return 1 - (1 - LEVEL) / settings


def _reads(reading: Callable[[float, float], bool], setting: PairedDifferences, level: float) -> bool:
    """Returns whether a setting's interval from at least two seeds shows or refutes a claim."""
    interval = setting.interval(level)
    return setting.seeds > 1 and reading(interval.low, interval.high)


def _effects(settings: Sequence[PairedDifferences]) -> tuple[Array, Array]:
    """Effects [K] and the covariance of their errors [K, K]."""
    return np.asarray([setting.effect for setting in settings]), _errors(settings)[1]


def _errors(settings: Sequence[PairedDifferences]) -> tuple[Array, Array]:
    return error_covariance(
        [setting.by_seed for setting in settings], [setting.baseline for setting in settings]
    )


def _levels(settings: Sequence[PairedDifferences], name: str) -> dict[str, float]:
    effects: dict[str, list[float]] = {}
    for setting in settings:
        effects.setdefault(setting.coordinates.get(name, setting.name), []).append(setting.effect)
    return {level: float(np.mean(of_level)) for level, of_level in effects.items()}


def _moderator(side: Side, settings: Sequence[PairedDifferences]) -> tuple[str, float]:
    """Returns the coordinate with the smallest p-value whose levels are on different sides, with that p."""
    effects, errors = _effects(settings)
    by_name = {name: [setting.coordinates[name] for setting in settings] for name in MODERATORS}
    p_values = holm([moderator_p(effects, errors, values) for values in by_name.values()])
    corrected = dict(zip(MODERATORS, map(float, p_values), strict=True))
    tests = []
    for name, p in corrected.items():
        kept = common_levels(by_name[name])
        sides = {side.shown(mean, mean) for level, mean in _levels(settings, name).items() if level in kept}
        if p < 1 - LEVEL and len(sides) > 1:
            tests.append((p, name))
    p, name = min(tests, default=(math.nan, ""))
    return name, p


def _separates(settings: Sequence[PairedDifferences], holds: Sequence[bool], fails: Sequence[bool]) -> str:
    """Returns the first coordinate without a level where some settings hold and others are wrong."""
    for name in ("condition", *MODERATORS):
        values = [setting.coordinates[name] for setting in settings]
        right, left = (
            {value for value, flag in zip(values, flags, strict=True) if flag} for flags in (holds, fails)
        )
        if not right & left:
            return name
    return "setting"


def _forecast(side: Side, settings: Sequence[PairedDifferences]) -> tuple[int | None, Deciding | None, bool]:
    """Seeds that would probably decide, what they would decide, and whether any number decides the average.

    Decisions by levels of a coordinate are not predicted.
    """
    effects, one_seed = np.asarray([setting.effect for setting in settings]), _errors(settings)[0]
    least = min(setting.seeds for setting in settings)
    counts: dict[Deciding, int | None] = {}
    if len(settings) != 2:
        counts["average"] = seeds_to_decide(effects, one_seed, side.chance, least=least, most=MOST_SEEDS)
    spreads = np.sqrt(one_seed.diagonal())
    chances: dict[Deciding, Callable[[int], float]] = {
        "contrary": partial(_enough_refuted, side, settings, spreads)
    }
    if all(side.shown(effect, effect) for effect in effects):
        chances["claim"] = partial(_all_shown, side, effects, spreads)
    singles = np.unique(np.geomspace(least + 1, MOST_SEEDS, 200).astype(int))  # to a few percent
    for name, chance in chances.items():
        counts[name] = next((int(n) for n in singles if chance(int(n)) >= POWER), None)
    found = {name: count for name, count in counts.items() if count is not None}
    first = min(found, key=found.__getitem__, default=None)
    return found.get(first) if first else None, first, counts.get("average") is not None


def least_refuted(settings: Sequence[PairedDifferences]) -> int:
    """Returns how many settings must show the contrary to be evidence against a claim."""
    return 2 if len(settings) >= LEAST_SETTINGS else 1


def _enough_refuted(side: Side, settings: Sequence[PairedDifferences], spreads: Array, seeds: int) -> float:
    """Chance that at least `least_refuted` settings will show the contrary at the strict level."""
    exactly = np.zeros(least_refuted(settings) + 1)  # chances of exactly 0, 1, ...; the last: or more
    exactly[0] = 1.0
    for setting, spread in zip(settings, spreads, strict=True):
        if side.refuted(setting.effect, setting.effect):
            error, level = float(spread) / math.sqrt(seeds), _strict(len(settings))
            chance = side.chance(setting.effect, error, seeds - 1, level)
            moved = exactly[:-1] * chance
            exactly[:-1] -= moved
            exactly[1:] += moved
    return float(exactly[-1])


def _all_shown(side: Side, effects: Array, spreads: Array, seeds: int) -> float:
    pairs = zip(effects, spreads / math.sqrt(seeds), strict=True)
    return float(np.prod([side.chance(effect, error, seeds - 1) for effect, error in pairs]))
