"""Looking again and again: error rates by simulation, for normal and for collapsing seeds."""

import numpy as np
import pytest

from troll.analysis.sequential import KINDS, Looks, ends, error_rates

TRIALS = 2000


def collapsing(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Success of runs of which a quarter collapse."""
    return rng.normal(0.7, 0.02, shape) - 0.4 * (rng.random(shape) < 0.25)


@pytest.mark.parametrize("most", [5, 6, 10])
@pytest.mark.parametrize("kind", ["normal", "collapsing"])
def test_false_findings_at_any_time_are_at_most_five_percent(kind: str, most: int) -> None:
    rng, shape = np.random.default_rng(0), (TRIALS, most)
    draws = rng.normal(0, 0.1, shape) if kind == "normal" else collapsing(rng, shape) - collapsing(rng, shape)
    found, seeds = ends(draws, Looks(most=most))
    assert (found != 0).mean() <= 0.05
    assert (seeds[found == 0] == most).all()


def test_a_plain_interval_at_every_look_would_err_more_often() -> None:
    found, _ = ends(np.random.default_rng(1).normal(0, 0.1, (TRIALS, 10)), Looks(), plain=True)
    assert (found != 0).mean() > 0.08


def test_many_experiments_end_as_each_of_them_does() -> None:
    looks, draws = Looks(most=6), np.random.default_rng(2).normal(0.05, 0.08, (60, 6))
    found, seeds = ends(draws, looks)
    for differences, sign, taken in zip(draws, found, seeds, strict=True):
        said = [looks.verdict(differences[:count]) for count in range(3, 7)]
        first = next(verdict for verdict in said if verdict != "go on")
        assert first == {1: "higher", -1: "lower", 0: "undecided"}[int(sign)]
        assert taken == 3 + said.index(first)
    assert len(set(found)) > 1


def test_a_large_difference_is_found_early_and_a_small_one_is_equivalent() -> None:
    rng = np.random.default_rng(2)
    found, seeds = ends(rng.normal(0.3, 0.08, (200, 10)), Looks())
    assert (found == 1).mean() > 0.95 and seeds.mean() < 6
    assert Looks().verdict([0.001, -0.001, 0.0, 0.002], margin=0.05) == "equivalent"


def test_released_error_rates_say_where_the_looks_hold_and_where_not() -> None:
    rates = error_rates(500).set_index(["kind", "true_difference", "most"])["false"]
    alike = rates.loc[list(KINDS[:2])].xs(0.0, level="true_difference")
    assert (alike <= 0.05).all()
    assert (rates.loc[KINDS[2]].xs(0.0, level="true_difference") > 0.1).all()


def test_what_is_spent_sums_to_the_whole() -> None:
    looks = Looks(first=3, most=8)
    assert looks.spent(2) == 0 and looks.spent(8) == pytest.approx(0.05)
    levels = [1 - looks.interval(np.arange(n, dtype=float)).level for n in range(3, 9)]
    assert sum(levels) == pytest.approx(0.05) and all(level > 0 for level in levels)


def test_one_look_is_the_plain_interval() -> None:
    differences = np.array([0.1, 0.2, 0.4])
    assert Looks(first=3, most=3).interval(differences).level == pytest.approx(0.95)


@pytest.mark.parametrize(("first", "most"), [(1, 5), (6, 5)])
def test_impossible_looks_are_refused(first: int, most: int) -> None:
    with pytest.raises(ValueError, match="looks from"):
        Looks(first=first, most=most)
    with pytest.raises(ValueError, match="a look at 2 seeds"):
        Looks().interval([0.1, 0.2])
