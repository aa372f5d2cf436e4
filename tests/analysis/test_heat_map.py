"""Learning rate against staleness: which cells make a map, and what it says."""

import pytest
import synthetic

from troll.analysis.figures.heat_map import grids, heat_map_figure
from troll.analysis.registry import crossed

RATES = {"low": 1e-5, "high": 1e-4}
STEPS = {"fresh": 8, "stale": 48}
SOLVED = {"clip": (30, 24, 36, 12), "troll": (30, 33, 36, 30)}
"""Of 60 problems: low-fresh, low-stale, high-fresh, high-stale."""


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    places = [(rate, steps) for rate in RATES for steps in STEPS]
    with pytest.MonkeyPatch.context() as patch:
        for rate, steps in places:
            patch.setitem(synthetic.MINI_BATCHES, f"{rate}-{steps}", STEPS[steps])
            patch.setitem(synthetic.LEARNING_RATE, f"{rate}-{steps}", RATES[rate])
        counts = {
            (method, f"{rate}-{steps}"): synthetic.rising(count, seeds=2)
            for method, counts in SOLVED.items()
            for (rate, steps), count in zip(places, counts, strict=True)
        }
        return synthetic.read_solved(tmp_path_factory.mktemp("results") / "map", counts, batches=1)


def shown(axes):
    return [text.get_text() for text in axes.texts]


def test_the_map_has_every_method_and_its_difference(varied):
    clip, troll, blank, gap = heat_map_figure(varied.runs, varied.items).axes
    assert clip.get_title() == "clip" and troll.get_title() == "troll" and not blank.get_visible()
    # Percent, rows from fresh to stale, means of two seeds.
    assert shown(clip) == ["51", "61", "41", "21"] and shown(troll) == ["51", "61", "56", "51"]
    assert gap.get_title() == "troll − clip" and shown(gap) == ["0", "0", "+15", "+30"]
    assert [text.get_weight() for text in gap.texts] == ["normal", "normal", "bold", "bold"]
    assert [label.get_text() for label in clip.get_xticklabels()] == ["1e-5", "1e-4"]
    assert [label.get_text() for label in clip.get_yticklabels()] == ["8 steps", "48 steps"]
    named = [axes.yaxis.get_tick_params()["labelleft"] for axes in (clip, troll, gap)]
    assert named == [True, False, True], "the first panel of a line says what its rows are"
    assert clip.get_ylabel().endswith("(base model 33)")
    below = [axes.get_xlabel() for axes in (clip, troll, gap)]
    assert below == ["learning rate", "", "learning rate"], "where a column of panels ends"


def test_no_difference_of_a_single_seed_is_bold(varied):
    one = [frame[(frame["seed"] == 0) | frame["seed"].isna()] for frame in (varied.runs, varied.items)]
    gap = heat_map_figure(*one).axes[3]
    assert shown(gap)[-1] == "+30" and {text.get_weight() for text in gap.texts} == {"normal"}


def test_a_policy_lag_is_a_staleness_of_its_own(varied):
    lag = varied.runs["condition"].str.endswith("stale")
    runs = synthetic.record(varied.runs, lag, **{"training.policy_lag": 4})
    runs = synthetic.record(runs, ~lag & runs["seed"].notna(), **{"training.policy_lag": 0})
    (one,) = grids(runs).values()
    assert one.stale == ((8.0, 0.0), (48.0, 4.0))
    first = heat_map_figure(runs, varied.items).axes[0]
    assert [label.get_text() for label in first.get_yticklabels()] == ["8 steps", "48 steps, lag 4"]


def test_a_cross_is_no_map(varied):
    runs = varied.runs[varied.runs["condition"] != "high-stale"]
    assert grids(runs) == {}
    (axes,) = heat_map_figure(runs, varied.items).axes
    assert "not varied together" in shown(axes)[0]
    assert not crossed([(1, 1), (1, 2), (2, 1)]) and crossed([(1, 1), (1, 2), (2, 1), (2, 3), (2, 2)])


def plan(*conditions):
    named = {f"c{number}": condition for number, condition in enumerate(conditions)}
    return "heat_map" in synthetic.entries_planned("figure", conditions=named)


def test_an_experiment_plans_a_map_where_both_are_varied():
    fresh = [{"learning_rate": rate} for rate in (1e-5, 1e-4)]
    assert not plan(*fresh, {"learning_rate": 1e-4, "num_iterations": 3})
    assert plan(*fresh, *(one | {"num_iterations": 3} for one in fresh))
    assert plan(*fresh, *(one | {"policy_lag": 1} for one in fresh))
