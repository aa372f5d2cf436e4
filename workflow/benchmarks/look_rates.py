"""Simulated error rates of the repeated looks of `troll.analysis.sequential`."""

import math

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from troll.analysis.render.formats import Style, percent, points, whole
from troll.analysis.sequential import Looks

KINDS = ("normal", "a quarter collapses", "a quarter of one method's collapses")


def ends(draws: ArrayLike, looks: Looks, *, plain: bool = False) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Returns the outcomes of simulated experiments that stop at the first look with a difference.

    Args:
        draws: differences by experiment and seed, ``[N, most]``.
        looks: the plan of looks.
        plain: use the uncorrected interval at every look, for comparison.

    Returns:
        By experiment: 1 for "higher", -1 for "lower" and 0 for neither; and the number of seeds used.
    """
    values = np.asarray(draws, dtype=np.float64)
    signs = np.zeros(len(values), dtype=int)
    seeds = np.full(len(values), looks.most)
    for count in range(looks.first, looks.most + 1):
        level = looks.level if plain else looks.level_at(count)
        part = values[:, :count]
        mean, error = part.mean(axis=1), part.std(axis=1, ddof=1) / math.sqrt(count)
        clear = (np.abs(mean) > stats.t.ppf((1 + level) / 2, count - 1) * error) & (signs == 0)
        signs[clear], seeds[clear] = np.sign(mean[clear]).astype(int), count
    return signs, seeds


def looks_table(trials: int = 2000, *, seed: int = 0) -> pd.DataFrame:
    """Simulates the error rates of repeated looks at the difference between two methods' success.

    There are three kinds of seeds: normal ones (standard deviation 4 points); a quarter collapses by 40
    points in either method; or a quarter collapses in one method only, which is otherwise better by as much
    as makes the means equal.

    Args:
        trials: simulated experiments of each kind.
        seed: seed of the simulation.

    Returns:
        A row per kind of seeds, true difference and plan: ``false`` (rate of wrong signs, or of any sign if
        there is no difference), ``found`` (rate of right signs) and ``mean_seeds`` (seeds used on average)
        with the looks; ``false_plain`` with the uncorrected interval at every look.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for kind in KINDS:
        for true in (0.0, 0.1):
            for most in (6, 10):
                looks = Looks(most=most)
                draws = true + _differences(rng, kind, (trials, most))
                (end, seeds), (plain, _) = ends(draws, looks), ends(draws, looks, plain=True)
                wrong = (end != 0) if true == 0 else (end == -1)
                wrong_plain = (plain != 0) if true == 0 else (plain == -1)
                rows.append(
                    {
                        "kind": kind,
                        "true_difference": true,
                        "first": looks.first,
                        "most": most,
                        "trials": trials,
                        "false": float(wrong.mean()),
                        "found": float((end == 1).mean()) if true else math.nan,
                        "mean_seeds": float(seeds.mean()),
                        "false_plain": float(wrong_plain.mean()),
                    }
                )
    frame = pd.DataFrame(rows)
    frame.attrs["styles"] = {
        "kind": Style("Seeds", str),
        "true_difference": Style("True difference (points)", points),
        "first": Style("First look at", whole),
        "most": Style("Last look at", whole),
        "false": Style("False findings (%)", percent),
        "found": Style("Found (%)", percent),
        "mean_seeds": Style("Seeds taken", "{:.1f}".format),
        "false_plain": Style("False findings of plain intervals (%)", percent),
    }
    frame.attrs["notes"] = [
        f"Share of {trials:,} simulated experiments that are stopped at the first look, after each further "
        "seed, whose interval excludes zero. False: a difference where there is none, or of the wrong sign; "
        "5 % is the most that is meant. Plain: Student's 95 % interval at every look. Where the seeds of one "
        "method alone collapse, few seeds often show no collapse, and no interval made from them can know of "
        "it; where both are alike, the looks hold. Made by "
        "`python workflow/benchmarks/measure.py coverage --out results/released/statistics`."
    ]
    return frame.drop(columns="trials")


def _differences(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    noise = rng.normal(0, 0.04, shape)
    if kind == "normal":
        return noise
    falls = (rng.random((2, *shape)) < 0.25).astype(float)
    if kind == KINDS[2]:
        return np.asarray(noise + 0.4 * (0.25 - falls[0]))
    return np.asarray(noise + 0.4 * (falls[0] - falls[1]))
