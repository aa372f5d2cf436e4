"""Sparse distributions: what is kept, what is pooled, and what two of them have in common."""

import math

import pytest
import torch
from refusals import refused

from troll.algorithms.distributions import (
    DEFAULT_LOG_PROB,
    SparseLogProbs,
    align,
    constant_tail,
    kl,
    on_support,
    sparsify,
)

P = torch.tensor([[0.5, 0.02, 0.3, 0.1, 0.08]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("support_size", "dropped_mass", "always_keep", "kept"),
    [
        (4, 0.15, None, [0, 2, 3, -1]),  # 0.5 and 0.3 leave 0.2 > 0.15, so 0.1 is kept, too
        (5, 0.201, None, [0, 2, -1, -1, -1]),
        (5, 0.199, None, [0, 2, 3, -1, -1]),
        (5, 0.101, None, [0, 2, 3, -1, -1]),
        (5, 0.099, None, [0, 2, 3, 4, -1]),
        (2, 0.0, None, [0, 2]),
        (2, 0.0, 1, [0, 1]),  # the sampled token takes a slot
        (2, 0.0, 2, [0, 2]),
        (2, 0.0, 0, [0, 2]),
        (5, 0.4, [1, 3], [0, 2, 3, 1, -1]),  # a forced token beyond the mass comes last
    ],
)
def test_the_most_probable_tokens_are_kept_until_the_mass_is_reached(
    support_size, dropped_mass, always_keep, kept
):
    forced = None if always_keep is None else torch.tensor([always_keep])
    sparse = sparsify(P.log(), support_size, dropped_mass, forced, normalised=True)
    assert sparse.token_ids.tolist() == [kept]
    expected = torch.tensor([0.0 if token < 0 else float(P[0, token]) for token in kept], dtype=torch.float64)
    torch.testing.assert_close(sparse.log_probs[0].exp(), expected)
    assert float(sparse.tail_log_prob.exp()) == pytest.approx(1 - float(expected.sum()))


def test_small_dropped_masses_are_told_apart():
    log_probs = torch.tensor([math.log1p(-2e-7), math.log(1.5e-7), math.log(0.5e-7)], dtype=torch.float64)
    assert sparsify(log_probs, 3, 1e-7).token_ids.tolist() == [0, 1, -1]
    assert sparsify(log_probs, 3, 1e-8).token_ids.tolist() == [0, 1, 2]
    assert sparsify(log_probs, 3, 1e-6).token_ids.tolist() == [0, -1, -1]


def test_the_tail_of_a_peaked_distribution_is_not_rounded_away():
    """1 - (sum of kept) would be zero in float32; the pooled sum is exact."""
    logits = torch.zeros(1, 1000)
    logits[0, 3] = 40.0
    sparse = sparsify(logits, support_size=2)
    assert float(sparse.tail_log_prob) == pytest.approx(-40 + math.log(999), rel=1e-6)


def test_logits_and_log_probs_give_the_same():
    logits = torch.randn(3, 4, 20, dtype=torch.float64)
    one, other = sparsify(logits, 5), sparsify(logits.log_softmax(-1), 5, normalised=True)
    assert torch.equal(one.token_ids, other.token_ids)
    torch.testing.assert_close(one.atoms(), other.atoms())
    torch.testing.assert_close(one.atoms().exp().sum(-1), torch.ones(3, 4, dtype=torch.float64))


def test_gradient_through_kept_tokens_and_tail():
    logits = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[3, 1, -1], [0, 8, 2]])

    def through(x: torch.Tensor) -> torch.Tensor:
        atoms = on_support(x, ids).atoms()
        return torch.where(atoms > -torch.inf, atoms, 0.0)

    assert torch.autograd.gradcheck(through, (logits,))


def test_nothing_left_for_the_tail_gives_finite_gradients():
    logits = torch.randn(2, 4, requires_grad=True)
    sparse = sparsify(logits, support_size=9, dropped_mass=0.0)
    assert sparse.support_size == 4 and (sparse.tail_log_prob == -torch.inf).all()
    sparse.log_probs[:, 0].sum().backward()
    assert logits.grad.isfinite().all()


def test_masked_vocabulary_entries_are_not_kept():
    logits = torch.tensor([[1.0, -math.inf, 0.5, -math.inf]])
    sparse = sparsify(logits, support_size=4, dropped_mass=0.0)
    assert sparse.token_ids.tolist() == [[0, 2, -1, -1]] and sparse.tail_log_prob.item() == -math.inf


def test_the_papers_constant_tail():
    sparse = sparsify(P.log(), 2, 1e-5, tail="constant")
    assert float(sparse.tail_log_prob) == pytest.approx(math.log(3) + DEFAULT_LOG_PROB)
    assert not sparse.tail_log_prob.requires_grad


def test_a_constant_tail_sums_to_one_and_hides_no_mass():
    """Near-uniform: eight of a hundred tokens hold little, and both facts stay visible."""
    logits = (0.1 * torch.randn(5, 100, dtype=torch.float64)).requires_grad_()
    exact, sparse = sparsify(logits, 8), sparsify(logits, 8, tail="constant")
    kept = logits.softmax(-1).gather(-1, sparse.token_ids)
    torch.testing.assert_close(sparse.atoms().exp().sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(sparse.log_probs.softmax(-1), kept / kept.sum(-1, keepdim=True))
    torch.testing.assert_close(sparse.kept_mass(), kept.sum(-1).detach())
    assert sparse.kept_mass().max() < 0.15 and torch.equal(sparse.kept_mass(), exact.kept_mass())
    other, _ = align(sparse, sparsify(logits.detach().flip(-1), 8, tail="constant"), missing="default")
    torch.testing.assert_close(other.atoms().exp().sum(-1), torch.ones(5, dtype=torch.float64))
    for again in (other, sparse.detach(), sparse.where(torch.ones(5, dtype=torch.bool)), sparse.cpu()):
        assert torch.equal(again.kept_mass(), exact.kept_mass())
    assert torch.equal(sparse.rows(torch.tensor([3])).kept_mass(), exact.kept_mass()[3:4])
    # A row without a token, as in padding, stays a distribution.
    padding = constant_tail(exact.where(torch.zeros(5, dtype=torch.bool)), 100)
    assert (padding.atoms().exp().sum(-1) == 1).all() and (padding.kept_mass() == 0).all()
    gradient = torch.autograd.grad(sparse.log_probs[:, 0].sum() + padding.tail_log_prob.sum(), logits)[0]
    assert gradient.isfinite().all() and (gradient != 0).any()


def test_bad_arguments_are_refused():
    for arguments, facts in (
        ({"support_size": 0}, ("support_size", 0)),
        ({"support_size": 1, "always_keep": torch.tensor([[0, 1]])}, ("support_size", 1, "always_keep")),
        ({"dropped_mass": -0.1}, ("dropped_mass", -0.1, "[0, 1)")),
        ({"dropped_mass": 1.0}, ("dropped_mass", 1.0, "[0, 1)")),
        ({"dropped_mass": math.nan}, ("dropped_mass", math.nan)),
        ({"tail": "other"}, ("tail", "'other'")),
    ):
        with refused("sparsify", *facts):
            sparsify(P.log(), **arguments)
    with refused("token_ids", "(2, 3)", "(3,)"):
        SparseLogProbs(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), torch.zeros(3))


def sparse_of(probabilities: list[float], ids: list[int]) -> SparseLogProbs:
    return on_support(
        torch.tensor([probabilities], dtype=torch.float64).log(), torch.tensor([ids]), normalised=True
    )


def test_pooling_aligns_on_what_both_keep():
    a = sparse_of([0.4, 0.3, 0.2, 0.1], [0, 1])
    b = sparse_of([0.1, 0.2, 0.3, 0.4], [3, 1, -1])
    q, p = align(a, b)
    assert torch.equal(q.token_ids, p.token_ids) and q.token_ids.tolist() == [[-1, 1]]
    torch.testing.assert_close(q.atoms().exp(), torch.tensor([[0.0, 0.3, 0.7]], dtype=torch.float64))
    torch.testing.assert_close(p.atoms().exp(), torch.tensor([[0.0, 0.2, 0.8]], dtype=torch.float64))
    expected = 0.3 * math.log(0.3 / 0.2) + 0.7 * math.log(0.7 / 0.8)
    assert float(kl(a, b)) == pytest.approx(expected)


def test_supports_without_a_common_token_are_indistinguishable():
    assert float(kl(sparse_of([0.9, 0.1], [0]), sparse_of([0.1, 0.9], [1]))) == pytest.approx(0.0, abs=1e-15)


def test_the_union_with_defaults_is_the_papers_arithmetic():
    logits = torch.tensor([[3.0, 2.0, 0.0, -1.0, 1.0]], dtype=torch.float64)
    a = sparsify(logits, 2, 0.0, tail="constant")
    b = sparsify(logits.flip(-1), 3, 0.0, tail="constant")
    q, p = align(a, b, missing="default")
    assert torch.equal(q.token_ids, p.token_ids)
    assert set(q.token_ids[0].tolist()) == {0, 1, 3, 4, -1}
    for dense, sparse in ((a, q), (b, p)):
        full = torch.full((5,), DEFAULT_LOG_PROB, dtype=torch.float64)
        full[dense.token_ids[0]] = dense.log_probs[0]
        used = sparse.token_ids[0] >= 0
        torch.testing.assert_close(sparse.log_probs[0, used], full[sparse.token_ids[0, used]])
        # Every token is either an atom or one of the defaults in the tail.
        left = 5 - int(used.sum())
        expected = DEFAULT_LOG_PROB + math.log(left) if left else -math.inf
        assert float(sparse.tail_log_prob) == pytest.approx(expected)


def test_rows_by_index_and_by_mask_are_the_same():
    sparse = sparsify(torch.randn(2, 3, 10), 4)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    one, other = sparse.rows(mask), sparse.rows(torch.tensor([0, 2, 5]))
    assert torch.equal(one.atoms(), other.atoms()) and torch.equal(one.token_ids, other.token_ids)


def test_a_distribution_travels_in_a_batch_whole():
    """Rows cut out of a batch, moved and padded by name alone come back as the distributions they were."""
    mask = torch.tensor([[True, True, False], [True, False, False]])
    values = torch.randn(3, 20, dtype=torch.float64, requires_grad=True)
    rows = sparsify(values, 6, 0.3)
    batch = rows.scatter(mask).to_batch("old_")
    assert {key: value.dtype for key, value in batch.items()} == {
        "old_token_ids": torch.int32,
        "old_support_log_probs": torch.float64,
        "old_tail_log_prob": torch.float64,
    }
    swapped = {key: value.flip(0) for key, value in batch.items()}
    found = SparseLogProbs.cat([SparseLogProbs.from_batch(swapped, "old_")] * 2)
    assert found.token_ids.dtype == torch.int64
    assert torch.equal(found.rows(mask.flip(0).repeat(2, 1)).token_ids[:3], rows.token_ids[[2, 0, 1]])
    torch.testing.assert_close(found.atoms().exp().sum(-1), torch.ones(4, 3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(found.log_probs[found.token_ids >= 0].sum(), values)
    assert (gradient != 0).any(-1).all()
    nothing = rows.rows(torch.tensor([], dtype=torch.int64)).scatter(torch.zeros(2, 3, dtype=torch.bool))
    assert (nothing.token_ids == -1).all() and (nothing.tail_log_prob == 0).all()
    assert nothing.log_probs.requires_grad
