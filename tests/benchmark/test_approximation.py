import pytest
import torch
from refusals import error_of, refused
from typer.testing import CliRunner

from approximation import (
    Pairs,
    approximation_errors,
    approximation_figure,
    run_approximation,
    zipf_pairs,
)
from measure import app


@pytest.fixture(scope="module")
def pairs():
    return zipf_pairs(rows=12, vocab=300)


@pytest.fixture(scope="module")
def errors(pairs):
    return approximation_errors(pairs, keeps=(4, 16, 64, 300), dropped_masses=(1e-2, 1e-5, 0.0))


def test_nothing_is_lost_when_everything_is_kept(errors):
    whole = errors[(errors["keep"] == 300) & (errors["dropped_mass"] == 0)].iloc[0]
    assert whole["kept"] == 300 and whole["tail"] == 0 and whole["disagree"] == 0
    assert whole["kl_error_max"] < 1e-12 and whole["log_prob_error_max"] < 1e-8
    assert whole["gradient_cosine_min"] == pytest.approx(1.0, abs=1e-9)
    assert whole["gradient_norm"] == pytest.approx(1.0, abs=1e-8)


def test_kl_error_stays_within_its_bound_and_falls_with_k(errors):
    assert (errors["kl_bound_ratio"] <= 1).all()
    for _, line in errors.groupby("dropped_mass"):
        # A larger K refines the partition, and a KL divergence grows with refinement.
        assert line.sort_values("keep")["kl_error"].is_monotonic_decreasing
    coarse, fine = (
        errors[(errors["keep"] == 64) & (errors["dropped_mass"] == m)].iloc[0] for m in (1e-2, 0.0)
    )
    assert coarse["kl_error"] > fine["kl_error"] and coarse["kept"] < fine["kept"] == 64


def test_gradient_errors_come_from_projected_rows_only(pairs):
    still = Pairs(
        pairs.old, (pairs.old + 0.01 * torch.sin(torch.arange(300.0))).log_softmax(-1), pairs.labels
    )
    inside = approximation_errors(still, keeps=(4,), dropped_masses=(1e-2,)).iloc[0]
    assert inside["outside"] == 0 and inside["log_prob_error_max"] < 1e-12
    assert inside["gradient_cosine_min"] == pytest.approx(1.0, abs=1e-12)
    moved = approximation_errors(pairs, keeps=(4,), dropped_masses=(1e-2,)).iloc[0]
    assert moved["outside"] > 0.3 and moved["gradient_cosine"] < 0.999


def test_blocks_of_rows_make_no_difference(pairs, monkeypatch):
    options = {"keeps": (8,), "dropped_masses": (1e-3,)}
    together = approximation_errors(pairs, **options)
    monkeypatch.setattr("approximation._BLOCK_ROWS", 5)
    assert approximation_errors(pairs, **options).iloc[0].to_dict() == pytest.approx(
        together.iloc[0].to_dict()
    )


def test_figure_has_a_line_per_dropped_mass(errors):
    panels = approximation_figure(errors).axes
    assert len(panels) == 3
    assert all(len(axes.get_lines()) == errors["dropped_mass"].nunique() for axes in panels)
    assert list(panels[0].get_lines()[0].get_xdata()) == [4, 16, 64, 300]


def test_writes_table_and_figure(tmp_path, pairs):
    run_approximation(tmp_path, Pairs(pairs.old[:2], pairs.new[:2], pairs.labels[:2]))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"approximation.{kind}" for kind in ("csv", "md", "png")}
    assert "given policies, V = 300" in (tmp_path / "approximation.md").read_text()


def test_shapes_must_agree(pairs):
    with refused("[N, V]", "[N]"):
        Pairs(pairs.old, pairs.new[:, :5], pairs.labels)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["approximation", "--old", "checkpoint"], ("--old", "--new", "--samples", "--problems")),
        (["approximation", "--redraw"], ("approximation.csv",)),
        (["cost", "--device", "tpu"], ("device", "'tpu'")),
        (
            ["cost-step", "--shape", "huge", "--device", "cpu"],
            ("'huge'", "qwen3-0.6b, 20m"),
        ),
    ],
)
def test_a_command_that_cannot_measure_says_why_and_writes_nothing(arguments, facts, tmp_path):
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    error_of(result, *facts)
    assert not list(tmp_path.iterdir())
