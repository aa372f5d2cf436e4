"""Run by test_projection.py in a process of its own: TRITON_INTERPRET is read when triton is imported.

The tests of the projection in plain torch run here once more, on the kernels, and what only these promise.
"""

import inspect
import math
import os
from dataclasses import replace

import numpy as np
import policy_cases
import pytest
import test_projection
import test_projection_properties
import test_trust_region_contract as contract
import torch
from fast_interpreter import quicken
from hypothesis import settings
from ops_count import CountOps
from policy_cases import log_probs_pair, make_case
from refusals import refused
from test_projection import *  # noqa: F403 - its tests
from test_projection_properties import (  # noqa: F401 - likewise, the shorter ones
    test_feasible_and_tight,
    test_gradients_are_orthogonal_to_the_two_null_directions,
    test_identity_inside_the_ball,
    test_sparse_equals_dense_when_every_token_is_kept,
)

from troll.algorithms.backends import default_backend
from troll.algorithms.distributions import SparseLogProbs, sparsify
from troll.algorithms.divergences import kl_divergence, kl_terms
from troll.algorithms.projection import project
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region
from troll.algorithms.trust_regions.projected import troll

assert os.environ["TRITON_INTERPRET"] == "1"
quicken()
np.seterr(all="ignore")  # 0 * inf and such in lanes that nobody selects
del test_is_importable_from_the_package  # noqa: F821 - here it is checked first, see `_on_triton`
INF = math.inf
RULES = ("troll", "troll-seq", "troll-adaptive", "dppo-topk-kl", "dppo-predictive", "dppo-binary-kl")
settings.register_profile("interpreter", deadline=None, max_examples=4, derandomize=True)
settings.load_profile("interpreter")


@pytest.fixture(autouse=True)
def _on_triton(monkeypatch):
    """Everything on the kernels, a projection's rows checked at once, and few rows: one takes about 20 ms."""

    def checked(*args, **options):
        result = project(*args, **options)
        assert result.status is not None
        result.check()
        return result

    def few(rows, *args, **options):
        return log_probs_pair(min(rows, 8), *args, **options)

    for module in (test_projection, test_projection_properties):
        monkeypatch.setattr(module, "project", checked)
    monkeypatch.setattr(test_projection, "log_probs_pair", few)
    with default_backend("triton"):
        yield


def _near_point_masses(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    old = torch.randn(rows, 65, generator=generator, dtype=torch.float64)
    old[:, 0] += torch.linspace(5, 25, rows).double()
    old[:, 1:] -= torch.rand(rows, 64, generator=generator, dtype=torch.float64) * 60
    moves = torch.randn(rows, 65, generator=generator, dtype=torch.float64)
    new = old + moves * torch.logspace(-2, 1.3, rows).double().unsqueeze(1)
    return new.log_softmax(-1), old.log_softmax(-1)


def _moved_to_a_tail_token() -> tuple[torch.Tensor, torch.Tensor]:
    new, old = _near_point_masses(20)
    return new.roll(1, -1), old


def _barely_outside() -> tuple[torch.Tensor, torch.Tensor]:
    new, old = log_probs_pair(20, 65, 2.0, 1.0, seed=6)
    return (old + (new - old) * 0.02).log_softmax(-1), old


def _with_zeros(in_new: bool, in_old: bool) -> tuple[torch.Tensor, torch.Tensor]:
    new, old = log_probs_pair(20, 33, 2.0, 1.5, seed=7)
    generator = torch.Generator().manual_seed(8)
    for wanted, policy in ((in_new, new), (in_old, old)):
        if wanted:
            policy.masked_fill_(torch.rand(20, 33, generator=generator) < 0.1, -INF)
    return new.log_softmax(-1), old.log_softmax(-1)


def _disjoint() -> tuple[torch.Tensor, torch.Tensor]:
    new, old = (x.clone() for x in log_probs_pair(4, 6, 1.0, 1.0))
    new[:2, :3], old[:2, 3:] = -INF, -INF
    return new.log_softmax(-1), old.log_softmax(-1)


def _off_scale() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of old that do not sum to one, as a low-precision softmax or a cut support leaves them."""
    new, old = log_probs_pair(20, 17, 2.0, 1.5, seed=9)
    return new, old + torch.linspace(-0.5, 0.5, 20).double().unsqueeze(1)


# name: the pair and the bound
SETS = {
    "narrow bound": (lambda: log_probs_pair(30, 65, 2.0, 1.0, seed=3), 1e-4),
    "usual bound": (lambda: log_probs_pair(30, 65, 2.0, 0.28, seed=3), 0.05),
    "wide bound": (lambda: log_probs_pair(20, 65, 2.0, 3.0, seed=3), 1.0),
    "two tokens and a tail": (lambda: log_probs_pair(30, 2, 2.0, 2.0, seed=2), 0.05),
    "one power of two": (lambda: log_probs_pair(10, 128, 2.0, 1.0, seed=2), 0.05),
    "one more": (lambda: log_probs_pair(10, 129, 2.0, 1.0, seed=2), 0.05),
    "256 tokens": (lambda: log_probs_pair(10, 257, 3.0, 2.0, seed=4), 0.05),
    "1,024 tokens": (lambda: log_probs_pair(6, 1025, 3.0, 2.0, seed=4), 0.05),
    "extreme tails": (lambda: log_probs_pair(20, 65, 30.0, 100.0), 0.25),
    "extreme tails, narrow": (lambda: log_probs_pair(20, 65, 30.0, 100.0), 1e-4),
    "near point masses": (lambda: _near_point_masses(40), 0.05),
    "near point masses, narrow": (lambda: _near_point_masses(40), 1e-4),
    "mass on a tail token": (_moved_to_a_tail_token, 0.05),
    "barely outside": (_barely_outside, 1e-4),
    "zeros in old": (lambda: _with_zeros(False, True), 0.05),
    "zeros in new": (lambda: _with_zeros(True, False), 0.5),
    "zeros in both": (lambda: _with_zeros(True, True), 0.3),
    "nothing in common": (_disjoint, 0.05),
    "old off scale": (_off_scale, 0.05),
    "radius zero": (lambda: log_probs_pair(10, 9, 1.0, 1.0), 0.0),
    "no bound": (lambda: log_probs_pair(10, 9, 1.0, 1.0), INF),
    "bounds of rows": (
        lambda: log_probs_pair(24, 33, 2.0, 1.0, seed=7),
        torch.tensor([0.0, 1e-4, 0.05, 1.0, 3.0, INF] * 4, dtype=torch.float64),
    ),
}  # fmt: skip


def _exact_kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    return kl_terms(log_a.double().log_softmax(-1), log_b.double().log_softmax(-1)).sum(-1)


@pytest.mark.parametrize("name", SETS)
def test_kernels_equal_torch(name):
    """In float32: log pi, nearly to the bit, the report, the KL and the gradient, each to its tolerance."""
    pair, bound = SETS[name]
    new, old = (x.float() for x in pair())
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    got, wanted = project(ours, old, bound), project(theirs, old, bound, backend="torch")
    got.check()
    active, rows = wanted.active, torch.as_tensor(bound, dtype=torch.float64).expand(len(new))
    assert torch.equal(got.active, active) and torch.equal(got.feasible, wanted.feasible)
    assert got.log_probs.dtype == torch.float32 and got.evaluations.max() <= 15

    inside = ~active
    assert torch.equal(got.log_probs[inside], new[inside])
    assert torch.equal(got.kl_after[inside], got.kl_before[inside])
    found, expected = got.log_probs.detach(), wanted.log_probs.detach()
    possible = expected > -INF
    assert torch.equal(found > -INF, possible)
    apart = (found - expected).masked_fill(~possible, 0.0).abs()
    assert (apart <= 1e-7 * (1 + expected.abs().masked_fill(~possible, 0.0))).all()
    for field, slack in (("step_size", 1e-6), ("kl_before", 1e-6), ("kl_after", 1e-6), ("residual", 1e-6)):
        torch.testing.assert_close(getattr(got, field), getattr(wanted, field), rtol=slack, atol=1e-7)
    tight = active & got.feasible & (got.step_size < 1) & (rows > 0)
    if tight.any():
        miss = (_exact_kl(found, old)[tight] / rows[tight] - 1).abs()
        assert miss.max() <= 2.2e-5

    # The gradient of the same root in float64, from the same (rounded) policies.
    upstream = torch.randn(new.shape, generator=torch.Generator().manual_seed(1)).masked_fill(~possible, 0.0)
    got.log_probs.backward(upstream)
    wide = new.double().requires_grad_()
    project(wide, old.double(), bound, tolerance=2e-5, backend="torch").log_probs.backward(upstream.double())
    # Of two tokens the gradient is zero, a difference of terms like the upstream one.
    scale = wide.grad.abs().amax(-1) + 0.1 * upstream.abs().amax(-1)
    assert ((ours.grad - wide.grad).abs().amax(-1) <= 1e-6 * scale).all()
    assert torch.equal(ours.grad[inside], upstream[inside])


def test_kernels_equal_torch_in_float64():
    new, old = log_probs_pair(20, 65, 3.0, 2.0, seed=12)
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    got, wanted = project(ours, old, 0.05), project(theirs, old, 0.05, backend="torch")
    torch.testing.assert_close(got.log_probs, wanted.log_probs, rtol=0, atol=1e-12)
    assert (got.kl_after / 0.05 - 1).abs().max() <= 1.1e-10
    upstream = torch.randn(new.shape, generator=torch.Generator().manual_seed(1)).double()
    got.log_probs.backward(upstream)
    wanted.log_probs.backward(upstream)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)


def test_types_may_differ():
    """q in bfloat16 as a model gives it, p in float32 as it is stored; the gradient is q's type."""
    new, old = log_probs_pair(12, 16, 2.0, 0.4, seed=1)
    new, old = new.bfloat16().requires_grad_(), old.float()
    got = project(new, old, 0.05)
    wanted = project(new.detach().float(), old, 0.05, backend="torch")
    assert got.active.any() and not got.active.all()
    torch.testing.assert_close(got.log_probs, wanted.log_probs, rtol=1e-6, atol=1e-7)
    got.log_probs.sum().backward()
    assert new.grad.dtype == torch.bfloat16 and new.grad.isfinite().all()


def test_strided_policies_and_gradients():
    new, old = log_probs_pair(10, 12, 2.0, 1.0)
    wide_new, wide_old = (
        torch.cat([x, x], -1)[:, 5:17].log_softmax(-1).t().contiguous().t() for x in (new, old)
    )
    ours, theirs = wide_new.clone().requires_grad_(), wide_new.clone().requires_grad_()
    project(ours, wide_old, 0.05).log_probs[:, 1:7:2].sum().backward()
    project(theirs, wide_old, 0.05, backend="torch").log_probs[:, 1:7:2].sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-11)


BAD = {
    "NaN in new": ("new", 1, math.nan, "NaN"),
    "NaN in old": ("old", 1, math.nan, "NaN"),
    "+inf in new": ("new", 1, INF, "+inf"),
    "+inf in old": ("old", 1, INF, "+inf"),
    "no probability": ("old", slice(None), -INF, "probability"),
}


@pytest.mark.parametrize("name", BAD)
def test_rows_without_a_result_are_nan_and_say_why(name):
    policy, atoms, value, reason = BAD[name]
    new, old = log_probs_pair(6, 5, 1.0, 2.0)
    clean = project(new, old, 0.05)
    (new if policy == "new" else old)[4, atoms] = value
    new.requires_grad_()
    result = project(new.view(2, 3, 5), old.view(2, 3, 5), 0.05)
    assert result.status.count_nonzero() == 1 and result.status[1, 1] != 0
    with refused("project", "old_log_probs", reason, "row 1, 1"):
        result.check()
    spoilt = torch.arange(6) == 4
    for field in ("log_probs", "step_size", "eta", "kl_before", "kl_after", "residual"):
        values, expected = getattr(result, field).flatten(0, 1), getattr(clean, field)
        assert values[spoilt].isnan().all(), field
        assert torch.equal(values[~spoilt], expected[~spoilt]), field
    result.log_probs.sum().backward()
    assert new.grad[spoilt].isnan().all() and new.grad[~spoilt].isfinite().all()


@pytest.mark.parametrize("bound", [-0.1, math.nan])
def test_bad_bounds_of_rows(bound):
    new, old = log_probs_pair(3, 5)
    result = project(new, old, torch.tensor([0.05, bound, 0.05]))
    with refused("project", "kl_bound", ">= 0", "row 1"):
        result.check()
    assert result.log_probs.isnan().any(-1).tolist() == [False, True, False]


def test_bounds_of_any_stride():
    new, old = log_probs_pair(6, 7, 1.0, 1.0)
    wanted = project(new, old, 0.1, backend="torch").log_probs
    for bound in (
        torch.tensor(0.1, dtype=torch.float64),
        torch.tensor([0.1, 9.0] * 6, dtype=torch.float64)[::2],
        torch.full((2, 1), 0.1, dtype=torch.float64),
    ):
        shape = (2, 3, 7) if bound.dim() == 2 else (6, 7)
        got = project(new.view(shape), old.view(shape), bound).log_probs
        torch.testing.assert_close(got.view(6, 7), wanted, rtol=0, atol=1e-11)


def test_wide_rows_stay_with_torch():
    new, old = log_probs_pair(2, 2049, 2.0, 1.0)
    assert project(new, old, 0.05).status is None
    with refused("project", "triton", 2048, 2049):
        project(new, old, 0.05, backend="triton")
    with refused("project", "backend", "'cuda'", "auto, torch or triton"):
        project(new, old, 0.05, backend="cuda")


@pytest.mark.parametrize("width", [3, 65, 1500])
def test_row_divergence_equals_torch(width):
    a, b = log_probs_pair(7, width, 3.0, 2.0)
    a[0, 1] = b[1, 2] = -INF
    leaves = [x.clone().requires_grad_() for x in (a, b, a, b)]
    got = kl_divergence(*leaves[:2])
    with default_backend("torch"):
        wanted = kl_divergence(*leaves[2:])
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0)
    assert got[1] == INF and (got >= 0).all()
    weights = torch.linspace(-1, 1, 7).double().masked_fill(wanted == INF, 0.0)
    for value in (got, wanted):
        torch.where(weights != 0, value * weights, 0.0).sum().backward()
    finite = torch.arange(7) != 1
    for ours, theirs in zip(leaves[:2], leaves[2:], strict=True):
        torch.testing.assert_close(ours.grad[finite], theirs.grad[finite], rtol=1e-12, atol=1e-15)


def _outcome(rule, case, backend):
    with default_backend(backend):
        losses = rule(case.new, case.old, case.advantages, case.mask)
        (gradient,) = torch.autograd.grad(losses.per_token.sum(), case.logits)
    return losses, gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_rules_equal_torch(name, dtype):
    case, rule = make_case(dtype=dtype, shift=0.5), make_trust_region(name)
    (got, gradient), (wanted, expected) = (_outcome(rule, case, backend) for backend in ("triton", "torch"))
    clipped = wanted.metrics["clip_fraction"][case.mask.bool()]
    assert 0 < clipped.mean() < 1 or not name.startswith("troll")
    slack = 2e-6 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(got.per_token, wanted.per_token, rtol=slack, atol=slack)
    torch.testing.assert_close(gradient, expected, rtol=slack, atol=slack)
    assert got.metrics.keys() == wanted.metrics.keys()
    for key, value in wanted.metrics.items():
        assert got.metrics[key].dtype == value.dtype, key
        torch.testing.assert_close(got.metrics[key], value, rtol=slack, atol=slack)


def test_a_rule_whose_rows_are_too_wide_for_a_kernel():
    case = make_case(vocabulary=2100, keep=2090, responses=2, tokens=2)
    (got, gradient), (wanted, expected) = (
        _outcome(make_trust_region("troll"), case, backend) for backend in ("triton", "torch")
    )
    torch.testing.assert_close(got.per_token, wanted.per_token)
    torch.testing.assert_close(gradient, expected)


PROMISES = [
    function
    for name, function in vars(contract).items()
    if name.startswith("test_")
    and list(inspect.signature(function).parameters) == ["name"]
    # Of rules without a distribution, and of their entries: no kernel is asked.
    and not any(word in name for word in ("need", "registry"))
]


@pytest.mark.parametrize("rule", ["troll", "dppo-predictive"])
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__[5:])
def test_promises_of_rules_on_the_kernels(promise, rule):
    if rule == "troll" or "not_kept" not in promise.__name__:
        promise(rule)


def test_a_bad_row_makes_the_loss_nan_and_a_masked_one_does_not():
    """The trainer stops at such a loss, and the constraint check at such a metric."""
    case, rule = make_case(), make_trust_region("troll")
    for place, bad in ((0, 0), True), ((3, 0), False):  # the last response is empty
        distribution = case.old.distribution
        log_probs = distribution.log_probs.clone()
        log_probs[place] = math.nan
        old = replace(case.old, distribution=replace(distribution, log_probs=log_probs))
        losses = rule(case.new, old, case.advantages, case.mask)
        assert bool(losses.per_token.sum().isnan()) is bad
        assert bool(losses.metrics["kl_violation"].isnan().any()) is bad


def test_policies_on_different_tokens_are_refused():
    case = make_case()
    ids = case.support.flip(-1)
    new = replace(case.new, distribution=replace(case.new.distribution, token_ids=ids))
    with refused("token_ids"):
        troll(new, case.old, case.advantages, case.mask.bool())


def _leaves(case):
    """The policies as a model and a batch give them: leaves, and token ids of their own."""
    distribution = case.new.distribution
    log_probs, kept, tail = (
        x.detach().requires_grad_()
        for x in (case.new.log_probs, distribution.log_probs, distribution.tail_log_prob)
    )
    new = TokenPolicy(log_probs, SparseLogProbs(case.support.clone(), kept, tail), None, case.token_ids)
    return new, case.old


@pytest.mark.parametrize("shift", [0.0, 0.5, 5.0])
def test_the_rule_never_waits_and_launches_little(shift):
    """Whatever the share of projected tokens: the count must not depend on what the device finds."""
    case = make_case(dtype=torch.float32, shift=shift)
    new, old = _leaves(case)
    with CountOps() as count:
        troll(new, old, case.advantages, case.mask.bool()).per_token.mean().backward()
    assert count.waits == 0, count.waited
    # Six more than the two kernels: the assertions, the mean, and what autograd makes of it.
    assert count.launches <= 8, count.ops
    assert count.ops["triton: _rule_kernel"] == count.ops["triton: _rule_backward_kernel"] == 1


@pytest.mark.parametrize("name", [*RULES, "dppo-topk-tv", "quatro-recon-gradient", "quatro-recon-regression"])
def test_no_rule_with_a_distribution_or_a_dual_waits(name):
    case, rule = make_case(dtype=torch.float32), make_trust_region(name)
    new, old = _leaves(case)
    with CountOps() as count:
        group_rewards = case.group_rewards if rule.info.needs_group_rewards else None
        rule(new, old, case.advantages, case.mask.bool(), group_rewards).per_token.mean().backward()
    assert count.waits == 0, count.waited
    # The masks and common metrics of all rules come on top of the rule's own.
    assert count.launches <= (8 if name == "troll" else 120), count.ops


def test_a_projection_alone_is_two_launches():
    new, old = (x.float() for x in log_probs_pair(30, 16, 2.0, 1.0))
    new.requires_grad_()
    with CountOps() as count:
        result = project(new, old, 0.05)
    # The other fills a tensor with the bound.
    assert (count.launches, count.waits) == (2, 0), count.ops
    with CountOps() as count:
        result.log_probs.backward(torch.ones_like(new))
    assert count.ops["triton: _project_backward_kernel"] == 1 and count.launches <= 2, count.ops


def test_sparse_policies_on_equal_but_different_ids():
    new, old = log_probs_pair(5, 30, 2.0, 1.5)
    theirs = sparsify(old, support_size=6)
    ours = policy_cases.on_support(new, theirs.token_ids.clone())
    with CountOps() as count:
        result = project(ours, theirs, 0.05)
    assert count.waits == 0, count.waited
    dense = project(ours.atoms(), theirs.atoms(), 0.05, backend="torch")
    torch.testing.assert_close(result.log_probs.atoms(), dense.log_probs, rtol=0, atol=1e-11)
