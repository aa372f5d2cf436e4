"""Success against divergence: every method and variant at its late KL and its test success."""

import numpy as np
import pytest
import synthetic

from troll.analysis.data.divergence import late_divergences
from troll.analysis.data.runs import read_directories
from troll.analysis.data.summaries import interval, per_run
from troll.analysis.figures.frontier import frontier_figure


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    root = tmp_path_factory.mktemp("results") / "divergence"
    dirs = [
        synthetic.write_run(root, "chains", method, "grpo", "stale", seed, batches=3, problems=10)
        for method in ("clip", "clip-eps0.1", "troll", "troll-kl0.01", "troll-kl0.25")
        for seed in range(3)
    ]
    dirs.append(synthetic.write_run(root, "chains", "clip", "grpo", "gentle", 0, batches=3, problems=10))
    return read_directories(dirs, [synthetic.write_base(root, "chains", problems=10)])


def families(axes):
    """The points of each line that has markers, in the order of the legend."""
    return [
        np.asarray(line.get_xydata()) for line in axes.lines if line.get_marker() not in ("None", None, "")
    ]


def test_every_method_stands_at_its_divergence_and_success(varied):
    figure = frontier_figure(varied.runs, varied.items)
    (axes,) = figure.axes  # gentle has no variants
    late = {
        cell: value
        for cell, value in late_divergences(per_run(varied.runs)).items()
        if cell.condition == "stale"
    }
    for line, names in zip(
        families(axes), (("clip", "clip-eps0.1"), ("troll", "troll-kl0.01", "troll-kl0.25")), strict=True
    ):
        expected = sorted(
            (late[cell], known.estimate)
            for cell in late
            if cell.trust_region in names and (known := interval(varied.items, cell)) is not None
        )
        np.testing.assert_allclose(line, expected)
    assert sorted(text.get_text() for text in axes.texts) == ["eps0.1", "kl0.01", "kl0.25"]
    assert axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    assert 0 < low < min(late.values()) and max(late.values()) < high


def test_a_method_without_divergence_has_no_place(varied):
    runs = varied.runs.copy()
    runs.loc[(runs["trust_region"] == "troll-kl0.25") & (runs["metric"] == "summary/kl"), "value"] = 0.0
    (axes,) = frontier_figure(runs, varied.items).axes
    assert [len(line) for line in families(axes)] == [2, 2]
