"""KL of log-probability rows: value, gradient, zero probabilities."""

import math

import mpmath
import pytest
import torch
from policy_cases import log_probs_pair

from troll.algorithms import backends
from troll.algorithms.divergences import kl_divergence


def test_equals_the_definition_with_forty_digits():
    for shift in (1e-3, 1.0, 10.0):
        new, old = log_probs_pair(5, 20, 3.0, shift)
        ours = kl_divergence(new, old)
        for row in range(5):
            with mpmath.workdps(40):
                expected = mpmath.fsum(
                    mpmath.exp(mpmath.mpf(a)) * (mpmath.mpf(a) - mpmath.mpf(b))
                    for a, b in zip(new[row].tolist(), old[row].tolist(), strict=True)
                )
            assert float(ours[row]) == pytest.approx(float(expected), rel=1e-9, abs=1e-14)


def test_small_divergences_survive_float32():
    """The plain formula is off by the normalisation error of float32, 1e-7, which is ten times the result."""
    new, old = log_probs_pair(200, 64, 2.0, 1e-4)
    exact = kl_divergence(new, old)
    assert exact.max() < 2e-8
    ours = kl_divergence(new.float(), old.float()).double()
    assert (ours >= 0).all()
    assert (ours - exact).abs().max() < 1e-9


def test_gradients_behind_a_softmax_are_those_of_the_plain_formula():
    a, b = (x.requires_grad_() for x in log_probs_pair(4, 7))

    def gradients(function):
        return torch.autograd.grad(function(a.log_softmax(-1), b.log_softmax(-1)).sum(), (a, b))

    ours = gradients(kl_divergence)
    plain = gradients(lambda x, y: (x.exp() * (x - y)).sum(-1))
    torch.testing.assert_close(ours, plain)


def test_zero_probabilities():
    def logs(*values: float) -> torch.Tensor:
        return torch.tensor(values).log().requires_grad_()

    a, b = logs(0.5, 0.5, 0.0), logs(0.25, 0.25, 0.5)
    value = kl_divergence(a, b)
    assert value.item() == pytest.approx(math.log(2))
    value.backward()
    assert a.grad.isfinite().all() and b.grad.isfinite().all()
    assert kl_divergence(logs(0.5, 0.5), logs(1.0, 0.0)).item() == math.inf
    assert kl_divergence(logs(1.0, 0.0), logs(1.0, 0.0)).item() == 0.0


def test_nan_is_not_hidden():
    a = torch.tensor([[0.0, math.nan], [-math.inf, 0.0]])
    b = torch.tensor([[0.0, -math.inf], [math.nan, 0.0]])
    assert kl_divergence(a, b).isnan().all()


def test_underflowing_probabilities_do_not_poison_the_sum():
    a, b = (
        torch.tensor([0.0, -800.0], dtype=torch.float64),
        torch.tensor([0.0, -math.inf], dtype=torch.float64),
    )
    assert float(kl_divergence(a, b)) == 0.0


def test_pieces_give_the_same_as_the_whole(monkeypatch):
    new, old = log_probs_pair(30, 7)
    whole = kl_divergence(new, old)
    monkeypatch.setattr(backends, "CHUNK_ELEMENTS", 20)
    assert torch.equal(kl_divergence(new, old), whole)
