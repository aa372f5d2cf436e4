"""KL estimators: exact expectations over all tokens of a small vocabulary."""

import math

import pytest
import torch
from policy_cases import log_probs_pair
from refusals import refused
from torch import Tensor

from troll.algorithms.regularisers import REGULARISERS, ReferenceKLController, kl_estimate


def expectation(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E[estimate], E[its gradient], logits and reference; each column is a token that may be drawn."""
    logits, ref = log_probs_pair(1, 8, 1.0, 0.7)
    logits.requires_grad_()
    log_pi = logits.log_softmax(-1)
    estimate = kl_estimate(log_pi, ref, torch.ones(1, 8), name)
    # Only the estimate is differentiated: the tokens are samples.
    weighted = (log_pi.detach().exp() * estimate).sum()
    (gradient,) = torch.autograd.grad(weighted, logits)
    return weighted.detach(), gradient, logits, ref


def forward_kl(logits: Tensor, ref: Tensor) -> Tensor:
    log_pi = logits.log_softmax(-1)
    return (log_pi.exp() * (log_pi - ref)).sum()


def reverse_kl(logits: Tensor, ref: Tensor) -> Tensor:
    return (ref.exp() * (ref - logits.log_softmax(-1))).sum()


@pytest.mark.parametrize("name", ["k1", "k3", "k1+", "k3+"])
def test_unbiased_values(name):
    value, _, logits, ref = expectation(name)
    torch.testing.assert_close(value, forward_kl(logits, ref).detach())


@pytest.mark.parametrize(
    ("name", "divergence"), [("k2", forward_kl), ("k1+", forward_kl), ("k3+", forward_kl), ("k3", reverse_kl)]
)
def test_expected_gradients(name, divergence):
    _, gradient, logits, ref = expectation(name)
    (expected,) = torch.autograd.grad(divergence(logits, ref), logits)
    torch.testing.assert_close(gradient, expected)


def test_k1_has_no_gradient_as_a_loss():
    assert expectation("k1")[1].abs().max() < 1e-15


@pytest.mark.parametrize("name", REGULARISERS)
def test_masked_and_extreme_tokens(name):
    log_probs = torch.tensor([[-1e4, -1e-3, math.nan]], requires_grad=True)
    ref = torch.tensor([[-1e-3, -1e4, math.nan]])
    estimate = kl_estimate(log_probs, ref, torch.tensor([[1, 1, 0]]), name)
    estimate.sum().backward()
    assert estimate.isfinite().all() and log_probs.grad.isfinite().all()
    assert estimate[0, 2] == 0 and log_probs.grad[0, 2] == 0


def test_unknown_names_are_refused():
    with refused("'k4'"):
        kl_estimate(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), "k4")


def test_controller_moves_at_most_a_fifth_per_horizon():
    controller = ReferenceKLController(coefficient=0.1, target=0.1, horizon=100, adaptive=True)
    controller.after_step(kl=10.0, samples=50)
    assert controller.coefficient == pytest.approx(0.1 * 1.1)
    controller.after_step(kl=0.09, samples=50)
    assert controller.coefficient == pytest.approx(0.1 * 1.1 * (1 - 0.1 * 0.5))
    fixed = ReferenceKLController(coefficient=0.1)
    fixed.after_step(kl=10.0, samples=50)
    assert fixed.coefficient == 0.1
