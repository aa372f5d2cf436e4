"""Which runs of an experiment a rehearsal takes: few that meet every pair of names that the matrix has."""

from collections.abc import Iterable, Sequence
from itertools import combinations

from troll.experiment.experiment import Experiment, Run
from troll.experiment.groups import runs_of

COORDINATES = ("model", "task", "trust_region", "estimator", "condition")

Pair = tuple[str, str, str, str]


def pairs_of(run: Run) -> set[Pair]:
    """Every pair of coordinates of a run, as (coordinate, name, coordinate, name).

    A name alone is in each of its pairs; the suites that a run is evaluated on go with its task.
    """
    return {
        (first, getattr(run, first), second, getattr(run, second))
        for first, second in combinations(COORDINATES, 2)
    }


def cover(runs: Sequence[Run]) -> list[Run]:
    """Runs that together have every pair that all runs have, found greedily; in the order of the matrix.

    The greedy choice takes at most ln(n) + 1 times as many as the fewest possible, n being the number of
    pairs of one run (Chvatal 1979, set cover). A run whose pairs others have is left out again.
    """
    pairs = {run: pairs_of(run) for run in runs}
    missing = set().union(*pairs.values()) if pairs else set()
    chosen: list[Run] = []
    while missing:
        best = max(pairs, key=lambda run: len(pairs[run] & missing))
        chosen.append(best)
        missing -= pairs[best]
    for run in list(chosen):
        others = set().union(*(pairs[other] for other in chosen if other != run))
        if pairs[run] <= others:
            chosen.remove(run)
    kept = set(chosen)
    return [run for run in pairs if run in kept]


def selection(experiment: Experiment, groups: Iterable[str] = (), *, full: bool = False) -> list[Run]:
    """The runs of a rehearsal, of the experiment's first seed: a cover, or all of them."""
    names = list(groups)
    runs = [run for run in runs_of(experiment, names) if run.seed == experiment.seeds[0]]
    if full:
        return runs
    chosen = set(cover(runs))
    for members in experiment.groups().values():  # a group without a run would have no page
        selected = [run for run in members if run in set(runs)]
        if selected and not names and not chosen & set(selected):
            chosen.add(selected[0])
    return [run for run in runs if run in chosen]
