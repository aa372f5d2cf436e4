"""Laws of the projection, for arbitrary pairs of policies."""

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from troll.algorithms.distributions import kl, on_support, sparsify, tail_gap_bound
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.projection import project

settings.register_profile("algorithms", deadline=None, max_examples=40)
settings.load_profile("algorithms")

BOUNDS = st.floats(1e-4, 2.0)


@st.composite
def pairs(draw: st.DrawFn, min_atoms: int = 3, max_atoms: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """New and old log-probabilities [rows, atoms]; logits up to 15 apart, moves up to 10."""
    shape = (draw(st.integers(1, 4)), draw(st.integers(min_atoms, max_atoms)))
    old = draw(npst.arrays(np.float64, shape, elements=st.floats(-15, 15)))
    move = draw(npst.arrays(np.float64, shape, elements=st.floats(-10, 10)))
    return torch.tensor(old + move).log_softmax(-1), torch.tensor(old).log_softmax(-1)


@given(pairs(), BOUNDS)
def test_feasible_and_tight(pair, bound):
    new, old = pair
    result = project(new, old, bound)
    assert (result.kl_after <= bound + 1e-13).all()
    assert (result.log_probs.exp().sum(-1) - 1).abs().max() < 1e-9
    # Complementary slackness: a moved row lies on the boundary.
    assert (result.kl_after[result.active] >= bound * (1 - 1e-9) - 1e-13).all()
    assert ((result.step_size > 0) & (result.step_size <= 1)).all()


@given(pairs(), BOUNDS)
def test_idempotent(pair, bound):
    new, old = pair
    once = project(new, old, bound).log_probs
    torch.testing.assert_close(project(once, old, bound).log_probs, once, rtol=0, atol=1e-8)


@given(pairs(), BOUNDS)
def test_identity_inside_the_ball(pair, bound):
    new, old = pair
    inside = kl_divergence(new, old) <= bound
    assert torch.equal(project(new, old, bound).log_probs[inside], new[inside])


@given(pairs(), BOUNDS, st.randoms(use_true_random=False))
def test_permutation_equivariant(pair, bound, random):
    new, old = pair
    order = list(range(new.shape[1]))
    random.shuffle(order)
    there = project(new[:, order], old[:, order], bound).log_probs
    torch.testing.assert_close(there, project(new, old, bound).log_probs[:, order], rtol=0, atol=1e-8)


@given(pairs(), BOUNDS, BOUNDS)
def test_a_larger_ball_is_a_longer_step(pair, one, other):
    new, old = pair
    small, large = sorted((one, other))
    first, second = project(new, old, small), project(new, old, large)
    assert (first.step_size <= second.step_size * (1 + 1e-8) + 1e-12).all()
    assert (first.kl_after <= second.kl_after * (1 + 1e-9) + 1e-13).all()


@given(pairs())
def test_kl_grows_along_the_path(pair):
    new, old = pair
    steps = torch.linspace(0, 1, 21, dtype=torch.float64)
    path = torch.stack([(old + step * (new - old)).log_softmax(-1) for step in steps])
    divergence = kl_divergence(path, old.expand_as(path))
    assert (divergence.diff(dim=0) >= -1e-12).all()


@given(pairs(), BOUNDS, st.integers(0, 10**6))
def test_gradients_are_orthogonal_to_the_two_null_directions(pair, bound, seed):
    new, old = pair
    result = project(new.requires_grad_(), old, bound)
    assume(bool(result.active.any()))
    upstream = torch.randn(new.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    (gradient,) = torch.autograd.grad(result.log_probs, new, upstream)
    active, log_ratio = gradient[result.active], (new - old)[result.active]
    scale = active.norm(dim=-1) + 1e-9
    assert (active.sum(-1).abs() <= 1e-7 * scale).all()
    assert ((active * log_ratio).sum(-1).abs() <= 1e-7 * scale * (1 + log_ratio.norm(dim=-1))).all()


@given(pairs(min_atoms=4), BOUNDS, st.integers(0, 10**6))
def test_sparse_equals_dense_when_every_token_is_kept(pair, bound, seed):
    new, old = pair
    kept = sparsify(old, support_size=old.shape[1], dropped_mass=0.0, normalised=True)
    assert (kept.token_ids >= 0).all()
    dense_in, sparse_in = new.clone().requires_grad_(), new.clone().requires_grad_()
    dense = project(dense_in, old, bound).log_probs
    sparse = project(on_support(sparse_in, kept.token_ids, normalised=True), kept, bound).log_probs
    torch.testing.assert_close(sparse.log_probs, dense.gather(-1, kept.token_ids), rtol=0, atol=1e-8)
    upstream = torch.randn(new.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    dense.backward(upstream)
    sparse.log_probs.backward(upstream.gather(-1, kept.token_ids))
    torch.testing.assert_close(sparse_in.grad, dense_in.grad, rtol=1e-6, atol=1e-7)


@given(pairs(min_atoms=6), st.integers(1, 5), st.integers(1, 5))
def test_sparse_kl_is_a_kl_and_bounded_by_the_dense_one(pair, keep_new, keep_old):
    new, old = pair
    dense = kl_divergence(new, old)
    for other in (on_support(new, sparsify(old, keep_old).token_ids), sparsify(new, keep_new)):
        divergence = kl(other, sparsify(old, keep_old))
        assert (divergence >= 0).all()
        assert (divergence <= dense * (1 + 1e-9) + 1e-12).all()


@given(pairs(min_atoms=6), st.integers(1, 5))
def test_the_gap_to_the_dense_kl_is_within_its_bound(pair, keep):
    new, old = pair
    sparse_old = sparsify(old, keep, dropped_mass=0.0)
    sparse_new = on_support(new, sparse_old.token_ids)
    dropped = torch.ones_like(new, dtype=torch.bool).scatter(-1, sparse_old.token_ids, False)
    ratio = new - old
    high = ratio.masked_fill(~dropped, -torch.inf).amax(-1)
    low = ratio.masked_fill(~dropped, torch.inf).amin(-1)
    gap = kl_divergence(new, old) - kl(sparse_new, sparse_old)
    assert (gap <= tail_gap_bound(sparse_new.tail_log_prob, high - low) * (1 + 1e-9) + 1e-12).all()


@given(pairs(min_atoms=6), st.integers(1, 5), st.integers(1, 5))
def test_the_papers_unnormalised_variant_never_gives_a_negative_divergence(pair, keep_new, keep_old):
    new, old = pair
    q, p = sparsify(new, keep_new, tail="constant"), sparsify(old, keep_old, tail="constant")
    assert (kl(q, p, missing="default") >= 0).all()
