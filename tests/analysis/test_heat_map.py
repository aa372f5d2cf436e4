"""Learning rate against staleness: which cells make a map, and what it says."""

from typing import Any

import pytest
import synthetic
from matplotlib.axes import Axes

from troll.analysis.data.runs import read_directories
from troll.analysis.data.tidy import Tidy
from troll.analysis.figures.heat_map import grids, heat_map_figure
from troll.analysis.registry import crossed
from troll.experiment.files import parse_experiment
from troll.operations.outputs import entries_of

RATES = {"low": 1e-5, "high": 1e-4}
STEPS = {"fresh": 8, "stale": 48}
SOLVED = {"clip": (30, 24, 36, 12), "troll": (30, 33, 36, 30)}
"""Of 60 problems: low-fresh, low-stale, high-fresh, high-stale."""


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Tidy:
    root = tmp_path_factory.mktemp("results") / "map"
    places = [(rate, steps) for rate in RATES for steps in STEPS]
    with pytest.MonkeyPatch.context() as patch:
        for rate, steps in places:
            patch.setitem(synthetic.MINI_BATCHES, f"{rate}-{steps}", STEPS[steps])
            patch.setitem(synthetic.LEARNING_RATE, f"{rate}-{steps}", RATES[rate])
        dirs = [
            synthetic.write_run(
                root,
                "chains",
                method,
                "grpo",
                f"{rate}-{steps}",
                seed,
                batches=1,
                table=synthetic.solved(count + seed),
            )
            for method, counts in SOLVED.items()
            for (rate, steps), count in zip(places, counts, strict=True)
            for seed in range(2)
        ]
    base = synthetic.write_base(root, "chains", table=synthetic.solved(20))
    return read_directories(dirs, [base])


def shown(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_the_map_has_every_method_and_its_difference(varied: Tidy) -> None:
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


def test_no_difference_of_a_single_seed_is_bold(varied: Tidy) -> None:
    one = [frame[(frame["seed"] == 0) | frame["seed"].isna()] for frame in (varied.runs, varied.items)]
    gap = heat_map_figure(*one).axes[3]
    assert shown(gap)[-1] == "+30" and {text.get_weight() for text in gap.texts} == {"normal"}


def test_a_policy_lag_is_a_staleness_of_its_own(varied: Tidy) -> None:
    lag = varied.runs["condition"].str.endswith("stale")
    runs = synthetic.record(varied.runs, lag, **{"training.policy_lag": 4})
    runs = synthetic.record(runs, ~lag & runs["seed"].notna(), **{"training.policy_lag": 0})
    (one,) = grids(runs).values()
    assert one.stale == ((8.0, 0.0), (48.0, 4.0))
    first = heat_map_figure(runs, varied.items).axes[0]
    assert [label.get_text() for label in first.get_yticklabels()] == ["8 steps", "48 steps, lag 4"]


def test_a_cross_is_no_map(varied: Tidy) -> None:
    runs = varied.runs[varied.runs["condition"] != "high-stale"]
    assert grids(runs) == {}
    (axes,) = heat_map_figure(runs, varied.items).axes
    assert "not varied together" in shown(axes)[0]
    assert not crossed([(1, 1), (1, 2), (2, 1)]) and crossed([(1, 1), (1, 2), (2, 1), (2, 3), (2, 2)])


def plan(*conditions: dict[str, Any]) -> bool:
    experiment = parse_experiment(
        {
            "experiment": "e",
            "seeds": [0, 1],
            "tasks": {"chains": {}},
            "models": {"tiny": {}},
            "trust_regions": {"clip": {"rule": "clip"}},
            "estimators": {"grpo": {"rule": "grpo"}},
            "conditions": {f"c{number}": one for number, one in enumerate(conditions)},
            "training": {"max_response_tokens": 48},
        },
        "e.yaml",
    )
    return "heat_map" in [entry.name for entry in entries_of("figure", experiment, experiment.runs())]


def test_an_experiment_plans_a_map_where_both_are_varied() -> None:
    fresh = [{"learning_rate": rate} for rate in (1e-5, 1e-4)]
    assert not plan(*fresh, {"learning_rate": 1e-4, "num_iterations": 3})
    assert plan(*fresh, *(one | {"num_iterations": 3} for one in fresh))
    assert plan(*fresh, *(one | {"policy_lag": 1} for one in fresh))
