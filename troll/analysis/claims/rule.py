"""The rule of the verdicts: from paired differences in every setting to one word, and why.

In this order:

- not run: no setting has runs of both methods.
- inconclusive: some setting has fewer seeds than the claim asks for.
- supported everywhere: the 95 % interval of every setting is on the claimed side of the margin. All have to
  hold at once (an intersection-union test), so looking at many settings needs no correction.
- depends on a coordinate (model, task, estimator or method): the averages at its levels are on different
  sides of the margin, and a test finds that the levels differ (meta-regression; p < 0.05 after Holm over the
  coordinates). Only levels that two settings have count.
- supported on average: the interval of the average over settings is on the claimed side of the margin.
  Settings where the claim is not shown are named.
- the contrary holds: the interval of the average is wholly on the other side of the margin; where methods
  are claimed to be within a margin, outside of it on one side. Or every setting shows it.
- depends on a coordinate, also: single settings show the claim and others its contrary, each at level
  1 - 0.05 / number of settings (Bonferroni); the coordinate is one whose levels never have both.
- not shown: two settings show the contrary (at that level), or one where no average is taken, and none shows
  the claim, not at 95 % either; the average, if there is one, does not decide. One of many settings says
  nothing against a claim.
- inconclusive: everything else, with the number of seeds that would probably decide.

The average is REML's with Hartung's and Knapp's interval (``troll.analysis.pooling``), from three settings
on; settings that are compared with the same runs of a baseline are not taken as independent. The condition
is not a coordinate of the first test: claims say which conditions they speak of.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
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
MODERATORS = ("task", "estimator", "model", "method")
MOST_SEEDS = 1000
"""More than this are not asked for."""


@dataclass(frozen=True)
class PairedDifferences:
    """One setting's paired differences."""

    name: str
    coordinates: Mapping[str, str]  # model, task, condition, estimator and method
    differences: Array  # one for each seed, ``[S]``
    level: float = LEVEL  # of its intervals; above 95 % where it is looked at more than once
    conditions: tuple[str, ...] = ()  # those whose runs it rests on
    seed_numbers: tuple[float, ...] = ()  # the seeds, in the order of the differences; 0 to S - 1 by default
    # names the runs that it is compared with, where other settings may be compared with the same; None where
    # none can be
    baseline: Hashable = None
    against: str = ""  # the trust region that it is compared with; empty for a number

    @property
    def by_seed(self) -> dict[float, float]:
        """The difference of every seed."""
        return dict(zip(self.seed_numbers or range(self.seeds), self.differences.tolist(), strict=True))

    @property
    def seeds(self) -> int:
        """S."""
        return int(self.differences.size)

    @property
    def effect(self) -> float:
        """Mean over seeds."""
        return float(self.differences.mean())

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; NaN for one."""
        return float(self.differences.std(ddof=1)) if self.seeds > 1 else math.nan

    def first(self, seeds: int) -> "PairedDifferences":
        """The same with its first seeds alone."""
        return replace(self, differences=self.differences[:seeds], seed_numbers=self.seed_numbers[:seeds])

    def interval(self, level: float | None = None) -> Interval:
        """Student's interval over seeds, by default at the setting's level."""
        return seed_interval(self.differences, level=self.level if level is None else level)

    def strict(self, settings: int) -> float:
        """The level at which one of several settings may speak for itself (Bonferroni)."""
        return 1 - (1 - self.level) / settings


@dataclass(frozen=True)
class Decision:
    """A verdict and what it rests on."""

    verdict: Verdict
    settings: tuple[PairedDifferences, ...] = ()  # the settings with runs of both methods
    held: tuple[bool, ...] = ()  # by setting, whether it alone shows the claim
    wrong: tuple[bool, ...] = ()  # by setting, whether it shows the contrary, at the strict level
    pooled: Pooled | None = None  # the average over settings; None for fewer than three, or too few seeds
    coordinate: str = ""  # what a verdict that depends depends on: a coordinate, or "setting"
    levels: Mapping[str, float] | None = None  # the plain mean over settings at each level of it
    p: float = math.nan  # of the test that the levels differ; NaN where single settings show both
    seeds: int | None = None  # how many in each setting would probably decide; None when more seeds would not

    @property
    def label(self) -> str:
        """The verdict as people read it."""
        return f"depends on {self.coordinate}" if self.verdict == "depends" else self.verdict


@dataclass(frozen=True)
class Side:
    """What a claim says of a difference: on which side of its margin it lies."""

    direction: Direction
    margin: float

    def shown(self, low: float, high: float) -> bool:
        """Whether an interval is on the claimed side."""
        if self.direction == "higher":
            return low > self.margin
        if self.direction == "lower":
            return high < -self.margin
        return -self.margin <= low and high <= self.margin

    def refuted(self, low: float, high: float) -> bool:
        """Whether an interval is wholly on the other side."""
        if self.direction == "higher":
            return high < self.margin
        if self.direction == "lower":
            return low > -self.margin
        return low > self.margin or high < -self.margin

    def chance(self, average: float, error: float, df: int, level: float = LEVEL) -> float:
        """Chance that an interval will show or refute the claim, if the average is what it seems."""
        if error == 0:
            return 1.0
        if self.direction != "equivalent":
            boundary = self.margin if self.direction == "higher" else -self.margin
            return clears(abs(average - boundary), error, df, level)
        if abs(average) > self.margin:
            return clears(abs(average) - self.margin, error, df, level)
        within = (clears(self.margin + sign * average, error, df, level) for sign in (1, -1))
        return max(0.0, sum(within) - 1)


def decide(
    side: Side, settings: Sequence[PairedDifferences], least_seeds: int, *, level: float = LEVEL
) -> Decision:
    """The verdict on a claim; ``level`` is above 95 % where this is one of several looks."""
    if not settings:
        return Decision("not run")
    present = tuple(settings)
    held = tuple(_reads(side.shown, setting, setting.level) for setting in present)
    wrong = tuple(_reads(side.refuted, setting, setting.strict(len(present))) for setting in present)
    if any(setting.seeds < least_seeds for setting in present):
        return Decision("inconclusive", present, held, wrong, seeds=least_seeds)
    pooled = pool(*_effects(present), level=level) if len(present) >= LEAST_SETTINGS else None
    evidence = (present, held, wrong, pooled)
    if all(held):
        return Decision("supported everywhere", *evidence)
    name, p = _moderator(side, present, 1 - level)
    if name:
        return Decision("depends", *evidence, name, _levels(present, name), p)
    if pooled and side.shown(pooled.low, pooled.high):
        return Decision("supported on average", *evidence)
    if pooled and side.refuted(pooled.low, pooled.high):
        return Decision("the contrary holds", *evidence)
    holds = tuple(_reads(side.shown, setting, setting.strict(len(present))) for setting in present)
    if any(wrong) and any(holds):
        name = _separates(present, holds, wrong)
        return Decision("depends", *evidence, name, _levels(present, name))
    if sum(wrong) >= _least_wrong(present) and not any(held):
        return Decision("the contrary holds" if all(wrong) else "not shown", *evidence)
    return Decision("inconclusive", *evidence, seeds=_seeds(side, present))


def _reads(reading: Callable[[float, float], bool], setting: PairedDifferences, level: float) -> bool:
    """Whether a setting's interval, of two seeds or more, shows or refutes a claim."""
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


def _moderator(side: Side, settings: Sequence[PairedDifferences], alpha: float) -> tuple[str, float]:
    """The coordinate whose levels are on different sides and differ most surely, with its p-value."""
    effects, errors = _effects(settings)
    by_name = {name: [setting.coordinates[name] for setting in settings] for name in MODERATORS}
    p_values = holm([moderator_p(effects, errors, values) for values in by_name.values()])
    corrected = dict(zip(MODERATORS, map(float, p_values), strict=True))
    tests = []
    for name, p in corrected.items():
        kept = common_levels(by_name[name])
        sides = {side.shown(mean, mean) for level, mean in _levels(settings, name).items() if level in kept}
        if p < alpha and len(sides) > 1:
            tests.append((p, name))
    p, name = min(tests, default=(math.nan, ""))
    return name, p


def _separates(settings: Sequence[PairedDifferences], holds: Sequence[bool], wrong: Sequence[bool]) -> str:
    """The first coordinate none of whose levels has both settings that hold and settings that are wrong."""
    for name in ("condition", *MODERATORS):
        values = [setting.coordinates[name] for setting in settings]
        right, left = (
            {value for value, flag in zip(values, flags, strict=True) if flag} for flags in (holds, wrong)
        )
        if not right & left:
            return name
    return "setting"


def _seeds(side: Side, settings: Sequence[PairedDifferences]) -> int | None:
    """Seeds that would probably decide: by the average, by every setting, or by those that show the contrary.

    How the levels of a coordinate might come to differ is not foreseen.
    """
    effects, one_seed = np.asarray([setting.effect for setting in settings]), _errors(settings)[0]
    least = min(setting.seeds for setting in settings)
    counts: list[int | None] = []
    if len(settings) != 2:
        counts.append(seeds_to_decide(effects, one_seed, side.chance, least=least, most=MOST_SEEDS))
    spreads = np.sqrt(one_seed.diagonal())
    chances = [partial(_enough_refuted, side, settings, spreads)]
    if all(side.shown(effect, effect) for effect in effects):
        chances.append(partial(_all_shown, side, effects, spreads))
    singles = np.unique(np.geomspace(least + 1, MOST_SEEDS, 200).astype(int))  # to a few percent
    counts += [next((int(n) for n in singles if chance(int(n)) >= POWER), None) for chance in chances]
    return min((count for count in counts if count is not None), default=None)


def _least_wrong(settings: Sequence[PairedDifferences]) -> int:
    """How many settings have to show the contrary before they speak against a claim."""
    return 2 if len(settings) >= LEAST_SETTINGS else 1


def _enough_refuted(side: Side, settings: Sequence[PairedDifferences], spreads: Array, seeds: int) -> float:
    """Chance that as many settings as it takes will show the contrary at the strict level."""
    exactly = np.zeros(_least_wrong(settings) + 1)  # chances of none, one, ..., that many or more
    exactly[0] = 1.0
    for setting, spread in zip(settings, spreads, strict=True):
        if side.refuted(setting.effect, setting.effect):
            error, level = float(spread) / math.sqrt(seeds), setting.strict(len(settings))
            chance = side.chance(setting.effect, error, seeds - 1, level)
            moved = exactly[:-1] * chance
            exactly[:-1] -= moved
            exactly[1:] += moved
    return float(exactly[-1])


def _all_shown(side: Side, effects: Array, spreads: Array, seeds: int) -> float:
    pairs = zip(effects, spreads / math.sqrt(seeds), strict=True)
    return float(np.prod([side.chance(effect, error, seeds - 1) for effect, error in pairs]))
