"""Ranking: each rule is compared separately with the baseline, with interim looks for futility.

At a look after some of its fresh seeds, a rule stops and counts as undecided if its predictive power is low,
that is, if the remaining seeds are unlikely to show a difference (Spiegelhalter, Freedman and Blackburn 1986,
"Monitoring clinical trials: conditional or predictive power?"). Stopping only for futility does not add false
positives. Other rules continue to the last seed and are tested once. Intervals and tests include the
uncertainty of the tuning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from troll.analysis.data.results import Results
from troll.analysis.data.summaries import Cell, cells, paired_scores
from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.leaderboard.settings import Ranking
from troll.analysis.render.formats import Style, listed, points
from troll.analysis.statistics import LEVEL, Array, holm
from troll.common.errors import UserError

UNDECIDED = "no difference shown"


@dataclass(frozen=True)
class Outcome:
    """A mean difference over seeds, with interval and p-value that include the uncertainty of the tuning."""

    difference: float
    low: float
    high: float
    p: float


def student(differences: ArrayLike, spread: float, *, level: float = LEVEL) -> Outcome:
    """Student's test of a mean over [S] seeds, S > 1; ``spread`` is the expectation's standard deviation."""
    values = np.asarray(differences, dtype=float)
    sampled = values.var(ddof=1) / len(values)
    whole = sampled + spread**2
    mean = float(values.mean())
    if whole == 0:
        return Outcome(mean, mean, mean, float(mean == 0))
    freedom = (len(values) - 1) * (whole / sampled) ** 2 if sampled else np.inf
    distribution = stats.t(freedom) if np.isfinite(freedom) else stats.norm
    half = distribution.ppf((1 + level) / 2) * np.sqrt(whole)
    p_value = 2 * float(distribution.sf(abs(mean) / whole**0.5))
    return Outcome(mean, float(mean - half), float(mean + half), p_value)


def predictive_power(differences: ArrayLike, seeds: int, spread: float = 0.0) -> Array:
    """Chance that the test at the last seed shows a difference, predicted from the seeds so far ``[..., S]``.

    Assumes a flat prior of the expectation and an unchanged standard deviation.
    """
    values = np.asarray(differences, dtype=float)
    now, mean, deviation = values.shape[-1], values.mean(axis=-1), values.std(axis=-1, ddof=1)
    sampled = np.maximum(deviation**2, 1e-12) / seeds
    whole = sampled + spread**2
    needed = stats.t.ppf((1 + LEVEL) / 2, (seeds - 1) * (whole / sampled) ** 2) * np.sqrt(whole)
    step = np.sqrt(sampled * seeds * (seeds - now) / (seeds * now))  # of the final mean about that so far
    above, below = ((needed - mean) / step, (-needed - mean) / step)
    return np.asarray(stats.t.sf(above, now - 1) + stats.t.cdf(below, now - 1))


def goes_on(differences: ArrayLike, seeds: int, ranking: Ranking, spread: float) -> NDArray[np.bool_]:
    """Whether a rule with these differences [..., S] continues to the next seeds."""
    return np.asarray(predictive_power(differences, seeds, spread) >= ranking.power)


def seeds_wanted(differences: pd.Series, protocol: Protocol) -> int:
    """How many of the protocol's seeds a rule gets, given its differences so far."""
    ranking = protocol.ranking
    assert ranking is not None
    spread = ranking.spread_of_difference(len(protocol.experiment["tasks"]))
    seeds = protocol.seeds
    for look in ranking.looks:
        reached = len(differences) >= look
        if not (reached and goes_on(differences.loc[seeds[:look]], len(seeds), ranking, spread)):
            return look
    return len(seeds)


def seeds_of_rules(protocol: Protocol, final: Sequence[Results]) -> dict[str, int]:
    """How many fresh seeds each rule gets next: all, or with a ranking those of its next look."""
    counts = dict.fromkeys(protocol.rules, len(protocol.seeds))
    if protocol.ranking is not None:
        for name in (rule for rule in counts if rule != protocol.baseline):
            differences = differences_of(final, protocol, name)
            counts[name] = seeds_wanted(differences.mean(axis=1), protocol)
    return counts


def seeds_there(protocol: Protocol, final: Sequence[Results], name: str) -> int:
    """The smallest number of fresh seeds of a rule on any task."""
    counts = [
        cell.rows(results.items)["seed"].nunique()
        for results in final
        for cell in cells(results.items)
        if cell.trust_region == name
    ]
    return min(counts, default=0)


def differences_of(final: Sequence[Results], protocol: Protocol, name: str) -> pd.DataFrame:
    """A rule's differences from the baseline in test pass@1: a row per seed, a column per task."""
    differences: dict[str, pd.Series] = {}
    for results in final:
        for cell in (member for member in cells(results.items) if member.trust_region == name):
            values = _paired(results, cell, protocol)
            differences[cell.task if cell.task not in differences else f"{cell.task} ({cell.model})"] = values
    counts = {label: len(values) for label, values in differences.items()}
    if len(set(counts.values())) > 1:
        by_task = listed([f"{count} on {label}" for label, count in counts.items()])
        raise UserError(f"{name}: has {by_task} fresh seeds; finish them on all tasks first")
    return pd.DataFrame(differences)


def _paired(results: Results, cell: Cell, protocol: Protocol) -> pd.Series:
    seeds, baseline_seeds = (
        {int(seed) for seed in part.rows(results.items)["seed"].dropna()}
        for part in (cell, cell.with_trust_region(protocol.baseline))
    )
    expected = protocol.seeds[: len(seeds)]
    if differing := sorted(seeds ^ set(expected)):
        raise UserError(
            f"{cell.trust_region}: {cell.task}: its fresh seeds are not the first of the protocol's "
            f"({'no' if differing[0] in expected else 'has'} seed {differing[0]}); finish them in order"
        )
    if lacking := sorted(seeds - baseline_seeds):
        raise UserError(
            f"{protocol.baseline}: {cell.task}: no fresh run with seed {lacking[0]}, which "
            f"{cell.trust_region} has; finish those of the baseline first"
        )
    pair = paired_scores(results.items, cell, cell.with_trust_region(protocol.baseline))
    assert pair is not None
    values = (pair[0] - pair[1]).mean(axis=1)
    return values.set_axis(values.index.astype(int)).loc[expected]


def ranking_table(final: Sequence[Results], protocol: Protocol) -> pd.DataFrame:
    """The outcome of each rule, which is a separate family of comparisons.

    Returns:
        A row for each rule with fresh seeds, except the baseline, and analysis: the mean of the tasks, which
        is primary, and each task alone, corrected by Holm over the tasks of the rule. Columns
        ``trust_region``, ``analysis``, ``seeds``, ``difference`` with its interval, ``p`` and ``reading``.
        Interval and p are NaN for a rule that stopped early.
    """
    ranking = protocol.ranking
    assert ranking is not None
    rows: list[dict[str, Any]] = []
    present = {cell.trust_region for results in final for cell in cells(results.items)}
    for name in (rule for rule in protocol.rules if rule in present and rule != protocol.baseline):
        by_task = differences_of(final, protocol, name)
        mean = by_task.mean(axis=1)
        seeds_needed = seeds_wanted(mean, protocol)
        if seeds_needed != len(mean):
            raise UserError(
                f"{name}: has {len(mean)} fresh seeds, but gets {seeds_needed} by the protocol's looks; "
                f"{'finish them first' if seeds_needed > len(mean) else 'it stopped there'}"
            )
        whole = seeds_needed == len(protocol.seeds)
        about = {"trust_region": name, "seeds": seeds_needed}
        tasks = by_task.shape[1]
        rows.append(about | {"analysis": "mean of the tasks"} | _read(mean, ranking, tasks, whole=whole))
        alone = {
            task: _read(values, ranking, 1, whole=whole, family=tasks) for task, values in by_task.items()
        }
        corrected = holm([line["p"] for line in alone.values()]) if whole else [np.nan] * len(alone)
        for (task, row), p_value in zip(alone.items(), corrected, strict=True):
            read = row | _reading(row["difference"], float(p_value))
            rows.append(about | {"analysis": f"{task} alone"} | read)
    frame = pd.DataFrame(rows, columns=[*_COLUMNS])
    frame.attrs["styles"] = {
        "analysis": Style("Analysis"),
        "difference": Style("Δ (points)", points),
        "reading": Style("Outcome"),
    }
    frame.attrs["notes"] = [notes_of(protocol)]
    return frame


_COLUMNS = (
    *("trust_region", "analysis", "seeds"),
    *("difference", "difference_low", "difference_high", "p", "reading"),
)


def _read(values: pd.Series, ranking: Ranking, tasks: int, *, whole: bool, family: int = 1) -> dict[str, Any]:
    """The numbers of a row; intervals of a ``family`` of several rows hold simultaneously (Bonferroni)."""
    if not whole:
        ends = dict.fromkeys(("difference_low", "difference_high", "p"), np.nan)
        said = f"{UNDECIDED}; stopped after {len(values)} seeds"
        return {"difference": float(values.mean())} | ends | {"reading": said}
    test = student(values, ranking.spread_of_difference(tasks), level=1 - (1 - LEVEL) / family)
    ends = {"difference": test.difference, "difference_low": test.low, "difference_high": test.high}
    return ends | _reading(test.difference, test.p)


def _reading(difference: float, p_value: float) -> dict[str, Any]:
    if np.isnan(p_value):
        return {}
    side = "above" if difference > 0 else "below"
    return {"p": p_value, "reading": side if p_value < 1 - LEVEL else UNDECIDED}


def notes_of(protocol: Protocol) -> str:
    """A note that explains how rules are compared."""
    ranking = protocol.ranking
    assert ranking is not None
    looks = ", ".join(map(str, ranking.looks))
    return (
        f"Each rule is compared with {protocol.baseline} for itself. After {looks} fresh seeds it stops "
        f"where the predictive power is below {100 * ranking.power:g} %; else it is tested once, at "
        f"{len(protocol.seeds)}. Intervals and p include the uncertainty of the tuning (a standard deviation "
        f"of {100 * ranking.tuning_spread:g} points of each rule on each task). Tasks alone: Holm over the "
        "tasks of the rule, intervals that hold together."
    )
