"""A run's constraint check: worst values, breaches, resuming."""

import math

import pytest
from refusals import refused

from troll.algorithms.trust_regions import ConstraintBreach, ConstraintCheck, Thresholds

GOOD = {"kl_violation_max": 1e-9, "solver_residual_max": 1e-5, "kept_mass_min": 0.999, "clip_fraction": 0.001}


def test_keeps_the_worst_of_every_step():
    constraint_check = ConstraintCheck()
    constraint_check.update(GOOD)
    constraint_check.update({**GOOD, "kept_mass_min": 0.9, "clip_fraction": 0.003})
    constraint_check.update({**GOOD, "solver_residual_max": 2e-5, "clip_fraction": 0.002})
    summary = constraint_check.summary()
    assert summary["steps"] == 3
    assert summary["worst_kl_violation"] == 1e-9 and summary["worst_solver_residual"] == 2e-5
    assert summary["worst_kept_mass"] == 0.9 and summary["worst_fraction_projected"] == 0.003
    assert summary["mean_fraction_projected"] == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("kl_violation_max", 1e-3),
        ("solver_residual_max", 0.5),
        ("kept_mass_min", 0.5),
        ("clip_fraction", 0.6),
        ("kl_violation_max", math.nan),
    ],
)
def test_a_breach_stops_the_run_and_is_recorded(name, bad):
    constraint_check = ConstraintCheck(Thresholds(kept_mass=0.8, fraction_projected=0.5))
    constraint_check.update(GOOD)
    label = {"clip_fraction": "fraction_projected"}.get(name, name.removesuffix("_max").removesuffix("_min"))
    with refused("step 2", label, error=ConstraintBreach):
        constraint_check.update({**GOOD, name: bad})
    assert constraint_check.summary()[f"worst_{label}"] == pytest.approx(bad, nan_ok=True)


def test_a_breach_reaches_the_user_as_one_line():
    with refused("step 1", "kl_violation", "solver_residual"):
        ConstraintCheck().update({"kl_violation_max": 1.0, "solver_residual_max": 1.0})


def test_rules_without_a_projection_are_certified_for_what_they_report():
    constraint_check = ConstraintCheck()
    constraint_check.update({"clip_fraction": 0.1, "kept_mass_min": 0.99, "loss": 3.0})
    assert "worst_kl_violation" not in constraint_check.summary()


def test_a_resumed_certificate_equals_an_uninterrupted_one():
    whole, first, second = ConstraintCheck(), ConstraintCheck(), ConstraintCheck()
    steps = [{**GOOD, "clip_fraction": 0.001 * k} for k in range(6)]
    for step in steps:
        whole.update(step)
    for step in steps[:3]:
        first.update(step)
    second.load_state_dict(first.state_dict())
    for step in steps[3:]:
        second.update(step)
    assert second.summary() == whole.summary()
