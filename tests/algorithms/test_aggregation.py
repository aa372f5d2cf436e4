"""Aggregation: the formulas, and micro-batches and processes adding up to the whole."""

import pytest
import torch
from refusals import refused

from troll.algorithms.aggregation import AGGREGATIONS, aggregate

LOSSES = torch.tensor([[1.0, 2.0, 4.0, 8.0], [3.0, 5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])

# By hand: sums 15 and 8 over 4 and 2 tokens; 2 non-empty of 3 responses.
EXPECTED = {
    "token-mean": 23 / 6,
    "seq-mean-token-mean": (15 / 4 + 8 / 2) / 2,
    "seq-mean-token-sum": 23 / 2,
    "seq-mean-token-sum-norm": 23 / (3 * 10),
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_formulas_by_hand(name):
    assert aggregate(LOSSES, MASK, name, max_response_tokens=10).item() == pytest.approx(EXPECTED[name])


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize("cuts", [(1,), (3, 5), (1, 2, 3, 4, 5, 6, 7)])
def test_shares_of_micro_batches_add_up(name, cuts):
    """Micro-batches of any sizes, padded to their own lengths, give the loss and gradient of the whole."""
    generator = torch.Generator().manual_seed(1)
    losses = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([6, 1, 0, 3, 2, 6, 0, 5])
    mask = torch.arange(6) < lengths.unsqueeze(1)
    counts = {
        "tokens": mask.sum(),
        "sequences": mask.any(1).sum(),
        "responses": torch.tensor(8),
        "max_response_tokens": 20,
    }
    whole = losses.clone().requires_grad_()
    expected = aggregate(whole, mask, name, max_response_tokens=20)
    expected.backward()
    parts = losses.clone().requires_grad_()
    shares = 0.0
    for piece, piece_mask in zip(parts.tensor_split(cuts), mask.tensor_split(cuts), strict=True):
        longest = int(piece_mask.sum(1).max())
        share = aggregate(piece[:, :longest], piece_mask[:, :longest], name, **counts)
        share.backward(retain_graph=True)
        shares += share.item()
    assert shares == pytest.approx(expected.item())
    torch.testing.assert_close(parts.grad, whole.grad)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_nan_behind_the_mask_stays_there(name):
    losses = LOSSES.clone().masked_fill(MASK == 0, torch.nan).requires_grad_()
    result = aggregate(losses, MASK, name, max_response_tokens=10)
    result.backward()
    assert result.item() == pytest.approx(EXPECTED[name])
    assert (losses.grad[MASK == 0] == 0).all()


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_nothing_to_learn_from_is_zero(name):
    losses = LOSSES.clone().requires_grad_()
    result = aggregate(losses, torch.zeros_like(MASK), name)
    result.backward()
    assert result.item() == 0 and (losses.grad == 0).all()


def test_unknown_names_get_the_nearest():
    with refused("'token_mean'", "'token-mean'"):
        aggregate(LOSSES, MASK, "token_mean")
