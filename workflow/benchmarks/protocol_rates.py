"""Simulates error rate and power of a protocol that ranks rules, with its tuning, looks and test."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.leaderboard.ranking import goes_on
from troll.analysis.render.formats import Style, percent
from troll.analysis.statistics import LEVEL, Array

Flags = NDArray[np.bool_]

WORKING, TRIAL_SPREAD, TUNING_NOISE, FRESH_NOISE = 2 / 3, 0.07, 0.10, 0.13
"""Parameters of `simulated`: the share of a rule's trials that learn, the standard deviation of their
expected success, and of seeds around it in tuning and on fresh seeds. They resemble the board of
leaderboard.yaml and reproduce the observed results of its tuning: 3 points lost, a spread of 4."""


@dataclass(frozen=True)
class Rates:
    """Simulated outcomes of a protocol for a rule that is better than the baseline by an effect.

    Attributes:
        above: rate at which the rule is classified as above the baseline.
        below: rate at which it is classified as below.
        runs: average number of runs of the rule, including tuning.
        regret: mean difference between the best and the chosen trials.
        choice: standard deviation of the chosen trial's expected success.
    """

    above: float
    below: float
    runs: float
    regret: float
    choice: float


def simulated(
    protocol: Protocol, effect: float, *, draws: int = 10_000, seed: int = 0, seeds: int | None = None
) -> Rates:
    """Simulates error rate and power of a protocol, including the tuning of both rules.

    Args:
        protocol: its ranking decides; without one, each task is tested separately, corrected for all rules
            on all tasks.
        effect: how much better every trial of the rule is, as a share of test problems.
        seeds: number of fresh seeds, instead of the protocol's.
    """
    random, tasks = np.random.default_rng(seed), len(protocol.experiment["tasks"])
    learns = round(WORKING * protocol.trials)
    means = np.full((draws, 2, tasks, protocol.trials), -1.0)  # trials that learn nothing are never chosen
    means[..., :learns] = TRIAL_SPREAD * random.standard_normal((draws, 2, tasks, learns))
    means[..., :learns] -= means[..., :learns].max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(means, _chosen(means, protocol, random)[..., None], axis=-1)[..., 0]
    count = seeds or len(protocol.seeds)
    noise = FRESH_NOISE * random.standard_normal((draws, 2, tasks, count))
    fresh = chosen[..., None] + noise
    differences = effect + fresh[:, 0] - fresh[:, 1]  # [draws, tasks, seeds]
    used = np.full(draws, count)
    if protocol.ranking is not None and seeds is None:
        spread = protocol.ranking.spread_of_difference(tasks)
        by_seed = differences.mean(axis=1)
        for look in reversed(protocol.ranking.looks):  # the first stopping look counts
            used[~goes_on(by_seed[:, :look], count, protocol.ranking, spread)] = look
        above, below = _sides(by_seed, spread, 1 - LEVEL)
        above, below = above & (used == count), below & (used == count)
    else:
        family = tasks * (len(protocol.rules) - 1)
        sides = _sides(differences, 0.0, (1 - LEVEL) / family)
        above, below = (np.asarray(side.any(axis=1)) for side in sides)
    tuning = sum(kept * len(stage) for kept, stage in zip(protocol.kept, protocol.stages, strict=True))
    return Rates(
        above=float(above.mean()),
        below=float(below.mean()),
        runs=float(tasks * (tuning + used.mean())),
        regret=float(-chosen.mean()),
        choice=float(chosen.std()),
    )


def _chosen(means: Array, protocol: Protocol, random: np.random.Generator) -> NDArray[np.intp]:
    """Returns the trial that tuning chooses, round by round, by the mean over all its seeds."""
    total, runs = np.zeros(means.shape), 0
    for kept, stage in zip(protocol.kept, protocol.stages, strict=True):
        if runs:
            least = np.sort(total, axis=-1)[..., -kept][..., None]
            total = np.where(total >= least, total, -np.inf)
        noise = TUNING_NOISE * np.sqrt(len(stage)) * random.standard_normal(means.shape)
        total, runs = total + len(stage) * means + noise, runs + len(stage)
    return np.asarray(total.argmax(axis=-1))


def _sides(differences: Array, spread: float, level: float) -> tuple[Flags, Flags]:
    """Tests which differences [..., S] are above 0 and which below, as `leaderboard.ranking.student` does."""
    count = differences.shape[-1]
    sampled = differences.var(axis=-1, ddof=1) / count
    whole = sampled + spread**2
    needed = stats.t.ppf(1 - level / 2, (count - 1) * (whole / sampled) ** 2) * np.sqrt(whole)
    mean = differences.mean(axis=-1)
    return mean > needed, mean < -needed


EFFECTS = (0.0, 0.05, 0.10, 0.15, 0.20)


def rates_table(protocol: Protocol, other: Protocol | None = None, *, draws: int = 10_000) -> pd.DataFrame:
    """Makes a table of `simulated` for several effects."""
    tasks, rows = len(protocol.experiment["tasks"]), []
    for effect in EFFECTS:
        rates = simulated(protocol, effect, draws=draws)
        row = {"effect": effect, **vars(rates)}
        if other is not None:
            row["other"] = simulated(
                other, effect, draws=draws, seeds=_seeds_for(other, rates.runs / tasks)
            ).above
        rows.append(row)
    frame = pd.DataFrame(rows)
    frame.attrs["styles"] = {
        "effect": Style("Better by (points)", percent),
        "above": Style("Read above (%)", percent),
        "below": Style("Read below (%)", percent),
        "runs": Style("Runs", lambda value: f"{value:.1f}"),
        "regret": Style("Lost by tuning (points)", percent),
        "choice": Style("Spread of tuning (points)", percent),
        "other": Style("The other, as many runs: read above (%)", percent),
    }
    return frame


def _seeds_for(protocol: Protocol, runs: float) -> int:
    """Returns the number of fresh seeds with which a rule has at least this many runs on a task."""
    tuning = sum(kept * len(stage) for kept, stage in zip(protocol.kept, protocol.stages, strict=True))
    return max(2, int(np.ceil(runs - tuning)))
