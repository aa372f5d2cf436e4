import matplotlib as mpl
import numpy as np
import pytest
import synthetic

from troll.analysis.data.axes import AXES, lines, recorded
from troll.analysis.data.runs import read_directories
from troll.analysis.data.summaries import cells
from troll.analysis.figures.sensitivity import sensitivity_figure

KL_BOUND, EPSILON, COEFFICIENT, KEEP, STALENESS, LEARNING_RATE, LAG = AXES
PLACE = ("tiny", "chains", "grpo")


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    root = tmp_path_factory.mktemp("results") / "ablation"
    methods = ("clip", "troll", "troll-kl0.01", "troll-kl0.25", "troll-k16", "clip-eps0.1")
    dirs = [
        synthetic.write_run(root, "chains", method, "grpo", "stale", seed, batches=2, problems=10)
        for method in methods
        for seed in range(2)
    ]
    for method in ("clip", "troll"):
        dirs.append(synthetic.write_run(root, "chains", method, "grpo", "gentle", 0, batches=2, problems=10))
    return read_directories(dirs, [synthetic.write_base(root, "chains", problems=10)])


def test_lines_follow_the_recorded_settings(varied):
    (bound,) = lines(varied.runs, KL_BOUND)[PLACE]
    assert [(x, cell.trust_region) for x, cell in bound.points] == [
        (0.01, "troll-kl0.01"),
        (0.05, "troll"),
        (0.25, "troll-kl0.25"),
    ]
    assert (bound.family, bound.label) == ("troll", "stale")
    (size,) = lines(varied.runs, EPSILON)[PLACE]
    assert [(x, cell.trust_region) for x, cell in size.points] == [(0.1, "clip-eps0.1"), (0.2, "clip")]
    assert size.family == "clip"
    (keep,) = lines(varied.runs, KEEP)[PLACE]
    assert [(x, cell.trust_region) for x, cell in keep.points] == [(16, "troll-k16"), (64, "troll")]


def test_conditions_that_differ_in_one_setting_make_a_line(varied):
    found = {line.family: line for line in lines(varied.runs, STALENESS)[PLACE]}
    assert set(found) == {"clip", "troll"}, "a variant in one condition only is no line"
    assert [(x, cell.condition) for x, cell in found["clip"].points] == [(8, "gentle"), (32, "stale")]
    assert lines(varied.runs, LEARNING_RATE) == {}


def test_runs_that_differ_otherwise_too_are_not_joined(varied):
    gentle = varied.runs["condition"] == "gentle"
    runs = synthetic.record(varied.runs, gentle, **{"training.learning_rate": 0.5})
    assert PLACE not in lines(runs, STALENESS) and PLACE not in lines(runs, LEARNING_RATE)
    assert PLACE in lines(runs, KL_BOUND)


def test_settings_come_from_training_and_rule(varied):
    cell = next(cell for cell in cells(varied.runs) if cell.trust_region == "troll-k16")
    assert recorded(varied.runs, cell) == {
        "training/keep": 16,
        "training/learning_rate": 1e-4,
        "training/mini_batches": 32,
        "training/num_iterations": 1,
        "training/optimizer": "adamw",
        "trust_region/settings/kl_bound": 0.05,
    }


def test_figure_has_a_row_per_setting_and_base_and_intervals(varied):
    figure = sensitivity_figure(varied.runs, varied.items)
    assert len(figure.axes) == 4 * 4
    first = figure.axes[0]
    (line,) = [line for line in first.lines if line.get_linewidth() == 1.6]
    np.testing.assert_allclose(line.get_xdata(), [0.01, 0.05, 0.25])
    rows = varied.items[varied.items["trust_region"] == "troll-kl0.01"]
    assert line.get_ydata()[0] == pytest.approx((rows["c"] / rows["n"]).mean())
    assert first.get_xscale() == "log" and first.get_ylim()[0] == 0
    assert [label.get_text() for label in first.get_xticklabels()] == ["0.01", "0.05", "0.25"]
    bars = next(c for c in first.collections if isinstance(c, mpl.collections.LineCollection))
    assert len(bars.get_segments()) == 3
    assert {axes.get_xlabel() for axes in figure.axes[0::4]} == {
        axis.label for axis in (KL_BOUND, EPSILON, KEEP, STALENESS)
    }


def test_the_weight_of_a_penalty_makes_a_line(varied):
    texts = varied.runs["settings"].astype(str).str.replace('"kl_bound"', '"coefficient"')
    runs = varied.runs.assign(settings=texts)
    (weight,) = lines(runs, COEFFICIENT)[PLACE]
    assert [x for x, _ in weight.points] == [0.01, 0.05, 0.25]


def test_crowded_labels_are_turned_and_others_are_not(varied):
    here = varied.runs["trust_region"].isin(["troll", "troll-k16"])
    crowded = synthetic.record(varied.runs, here, **{"trust_region.settings.kl_bound": 0.012})
    for runs, turned in ((varied.runs, 0.0), (crowded, 45.0)):
        first = sensitivity_figure(runs, varied.items).axes[0]
        assert {label.get_rotation() for label in first.get_xticklabels()} == {turned}
