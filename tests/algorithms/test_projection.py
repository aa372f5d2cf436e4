"""The projection against independent references: 50-digit arithmetic and a general-purpose optimiser."""

import math
from contextlib import nullcontext

import mpmath
import numpy as np
import pytest
import scipy.optimize
import torch
from kernel_tests import needs_triton, no_waits, on_gpu, run_in_interpreter
from policy_cases import log_probs_pair, make_case, reference_projection
from refusals import refused

import troll
from troll.algorithms import backends, divergences
from troll.algorithms.distributions import SparseLogProbs, on_support, sparsify
from troll.algorithms.projection import Projection, project
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region

INF = math.inf


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def exact_kl(log_a: torch.Tensor, log_b: torch.Tensor) -> float:
    """KL of one row with 40 digits, normalising both."""
    with mpmath.workdps(40):
        a, b = ([mpmath.mpf(float(x)) for x in row] for row in (log_a, log_b))
        norm_a, norm_b = (mpmath.log(mpmath.fsum(mpmath.exp(x) for x in row)) for row in (a, b))
        return float(
            mpmath.fsum(mpmath.exp(x - norm_a) * (x - norm_a - y + norm_b) for x, y in zip(a, b, strict=True))
        )


def test_is_importable_from_the_package():
    assert troll.project is project


@pytest.mark.parametrize("bound", [1e-4, 0.05, 0.25, 1.0])
@pytest.mark.parametrize(("spread", "shift"), [(2.0, 0.5), (2.0, 3.0), (6.0, 12.0)])
def test_equals_a_fifty_digit_solution_in_float64(bound, spread, shift):
    new, old = log_probs_pair(6, 9, spread, shift)
    result = project(new, old, bound)
    for row in range(len(new)):
        with mpmath.workdps(50):
            expected, step = reference_projection(new[row].tolist(), old[row].tolist(), bound)
        np.testing.assert_allclose(
            result.log_probs[row].numpy(), [float(x) for x in expected], rtol=1e-8, atol=1e-8
        )
        assert float(result.step_size[row]) == pytest.approx(float(step), rel=1e-8)
        assert float(result.eta[row]) == pytest.approx(float(1 / step - 1), rel=1e-7, abs=1e-9)
        if result.active[row]:
            achieved = exact_kl(result.log_probs[row], old[row])
            assert achieved == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize("bound", [1e-4, 0.05, 0.25])
def test_float32_meets_the_bound_to_a_ten_thousandth(bound):
    new, old = (x.float() for x in log_probs_pair(300, 64, 3.0, 3.0))
    result = project(new, old, bound)
    assert result.log_probs.dtype == torch.float32
    active = result.active
    assert active.any()
    wide = project(new.double(), old.double(), bound)
    achieved = divergences.kl_divergence(
        result.log_probs.double().log_softmax(-1), old.double().log_softmax(-1)
    )[active]
    torch.testing.assert_close(achieved, torch.full_like(achieved, bound), rtol=1e-4, atol=0)
    torch.testing.assert_close(result.step_size.double(), wide.step_size, rtol=1e-4, atol=1e-6)


def test_never_leaves_the_ball_beyond_rounding():
    for dtype, slack in ((torch.float64, 1e-14), (torch.float32, 1e-7)):
        for bound in (1e-4, 0.01, 0.05, 1.0):
            new, old = (x.to(dtype) for x in log_probs_pair(2000, 32, 4.0, 6.0, seed=1))
            assert (project(new, old, bound).kl_after.double() <= bound + slack).all()


def test_equals_the_primal_optimum_found_by_scipy():
    new, old = log_probs_pair(8, 4, 1.0, 1.5, seed=3)
    bound = 0.1
    result = project(new, old, bound)
    assert result.active.any()
    for row in range(len(new)):
        q, p = new[row].exp().numpy(), old[row].exp().numpy()

        def kl_to(pi: np.ndarray, other: np.ndarray) -> float:
            return float(np.sum(pi * np.log(pi / other)))

        found = scipy.optimize.minimize(
            lambda pi, q=q: kl_to(pi, q),
            p,
            jac=lambda pi, q=q: np.log(pi / q) + 1,
            bounds=[(1e-12, 1)] * len(q),
            constraints=[
                {"type": "eq", "fun": lambda pi: pi.sum() - 1, "jac": lambda pi: np.ones_like(pi)},
                {
                    "type": "ineq",
                    "fun": lambda pi, p=p: bound - kl_to(pi, p),
                    "jac": lambda pi, p=p: -np.log(pi / p) - 1,
                },
            ],
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        ours = result.log_probs[row].exp().numpy()
        np.testing.assert_allclose(ours, found.x, atol=1e-5)
        # The problem is convex: nothing feasible can be better than ours.
        assert kl_to(found.x, p) < bound + 1e-8
        assert kl_to(ours, q) <= found.fun + 1e-8


def test_rows_inside_the_ball_come_back_bit_for_bit():
    new, old = log_probs_pair(50, 10, 2.0, 0.1)
    result = project(new, old, 0.05)
    assert not result.active.any()
    assert torch.equal(result.log_probs, new)
    assert torch.equal(result.kl_after, result.kl_before)
    assert (result.step_size == 1).all() and (result.eta == 0).all()
    assert (result.evaluations == 0).all() and (result.residual == 0).all()


def test_gradient_equals_fifty_digit_differences_through_the_solver():
    """Central differences at 50 digits, step 1e-12: truncation is 1e-24, so this is the derivative."""
    new, old = log_probs_pair(3, 5, 1.5, 1.5, seed=5)
    bound = 0.05
    for row in range(len(new)):
        ours = torch.autograd.functional.jacobian(
            lambda x, row=row: project(x, old[row], bound, tolerance=1e-15).log_probs, new[row]
        )
        assert project(new[row], old[row], bound).active
        with mpmath.workdps(50):
            q, p, h = [mpmath.mpf(x) for x in new[row].tolist()], old[row].tolist(), mpmath.mpf("1e-12")
            for j in range(len(q)):
                up, down = list(q), list(q)
                up[j] += h
                down[j] -= h
                plus, minus = (reference_projection(x, p, bound)[0] for x in (up, down))
                expected = [float((a - b) / (2 * h)) for a, b in zip(plus, minus, strict=True)]
                np.testing.assert_allclose(ours[:, j].numpy(), expected, atol=1e-9)


def test_gradient_of_inactive_rows_is_the_identity():
    new, old = log_probs_pair(4, 6, 2.0, 0.05)
    new.requires_grad_()
    upstream = torch.randn(4, 6, dtype=torch.float64)
    project(new, old, 0.05).log_probs.backward(upstream)
    assert torch.equal(new.grad, upstream)


def test_regression_gradient_is_an_adaptive_kl_penalty():
    """d KL(q || sg pi) = (1 - step) d KL(q || p): the closed form of the method's second term."""
    logits, old = log_probs_pair(20, 8, 2.0, 1.0)
    logits.requires_grad_()
    new = logits.log_softmax(-1)
    result = project(new, old, 0.05, tolerance=1e-14)
    pull = divergences.kl_divergence(new, result.log_probs.detach())
    penalty = (1 - result.step_size) * divergences.kl_divergence(new, old)
    (ours,) = torch.autograd.grad(pull.sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad(penalty.sum(), logits)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


def test_two_tokens_have_no_policy_gradient():
    new, old = logs(0.2, 0.8).requires_grad_(), logs(0.8, 0.2)
    result = project(new, old, 0.05)
    assert result.active and exact_kl(result.log_probs.detach(), old) == pytest.approx(0.05, rel=1e-9)
    result.log_probs[0].backward()
    assert new.grad.abs().max() < 1e-15


# name: new, old, bound; expected pi, step, feasible
DEGENERATE = {
    "identical": ((0.2, 0.3, 0.5), (0.2, 0.3, 0.5), 0.0, (0.2, 0.3, 0.5), 1.0, True),
    "ball of radius zero": ((0.3, 0.2, 0.5), (0.2, 0.3, 0.5), 0.0, (0.2, 0.3, 0.5), 0.0, True),
    "both one token": ((1, 0, 0), (1, 0, 0), 0.05, (1, 0, 0), 1.0, True),
    "new one token, near": ((1, 0, 0), (0.97, 0.02, 0.01), 0.05, (1, 0, 0), 1.0, True),
    "new one token, far": ((1, 0, 0), (0.5, 0.3, 0.2), 0.05, (1, 0, 0), 0.0, False),
    "old one token": ((0.5, 0.5, 0), (1, 0, 0), 0.05, (1, 0, 0), 1.0, True),
    "nothing in common": ((0, 1, 0), (1, 0, 0), 0.05, (1, 0, 0), 0.0, False),
    "zero in old": ((0.6, 0.3, 0.1), (0, 0.75, 0.25), 0.05, (0, 0.75, 0.25), 1.0, True),
    "ball out of reach": ((0, 0.3, 0.7), (0.5, 0.4, 0.1), 0.05, (0, 0.8, 0.2), 0.0, False),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_rows_have_defined_results(name):
    *policies, bound, expected, step, feasible = DEGENERATE[name]
    new, old = (logs(*row) for row in policies)
    new = new.clone().requires_grad_()
    result = project(new, old, bound)
    torch.testing.assert_close(result.log_probs.detach().exp(), torch.tensor(expected, dtype=torch.float64))
    assert float(result.step_size) == step and bool(result.feasible) is feasible
    finite = result.log_probs[result.log_probs > -INF]
    finite.sum().backward()
    assert new.grad.isfinite().all()
    if not feasible:
        assert result.active and float(result.residual) > 0.1


def test_a_partly_shared_support_solves_the_problem_that_is_left():
    """p has 2 % on a token that q excludes: the ball shrinks by -log 0.98 for the shared tokens."""
    new, old = logs(0.0, 0.1, 0.9), logs(0.02, 0.78, 0.2)
    result = project(new, old, 0.05)
    shared = project(logs(0.1, 0.9), logs(0.78, 0.2).log_softmax(-1), 0.05 + math.log(0.98))
    torch.testing.assert_close(result.log_probs[1:], shared.log_probs)
    assert float(result.kl_after) == pytest.approx(0.05, rel=1e-9)


def test_a_restricted_policy_inside_the_ball_is_the_answer():
    """p rules out a token of q; what is left of q is in the ball, by two percent of the bound."""
    new = torch.tensor([[0.0, -2.0, 0.4, -113.5]], dtype=torch.float64)
    old = torch.tensor([[-INF, -2.0, 0.3, -2.6]], dtype=torch.float64)
    leaf = new.clone().requires_grad_()
    result = project(leaf, old, 0.05)
    assert result.active and result.feasible
    assert float(result.step_size) == 1 and float(result.residual) == 0 and float(result.evaluations) == 1
    restricted = new.masked_fill(old == -INF, -INF).log_softmax(-1)
    torch.testing.assert_close(result.log_probs.detach(), restricted, rtol=0, atol=1e-13)
    # The gradient is that of the restricted softmax.
    (found,) = torch.autograd.grad(result.log_probs[0, 1], leaf)
    expected = -restricted.exp()
    expected[0, 1] += 1
    torch.testing.assert_close(found, expected.masked_fill(old == -INF, 0.0), rtol=0, atol=1e-13)


def test_masks_made_of_huge_negative_numbers_are_zero_probabilities():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        lowest = torch.finfo(dtype).min
        new = torch.tensor([[0.0, lowest, lowest], [-0.7, -0.7, lowest]], dtype=dtype).requires_grad_()
        old = torch.tensor([[-1.1, -1.1, -1.1], [0.0, lowest, lowest]], dtype=dtype)
        result = project(new, old, 0.05)
        assert not result.log_probs.isnan().any() and result.log_probs.dtype == torch.float32
        assert (result.log_probs.exp().sum(-1) - 1).abs().max() < 1e-6
        result.log_probs.exp().sum().backward()
        assert new.grad.isfinite().all() and new.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_computed_in_float32(dtype):
    new, old = (x.to(dtype) for x in log_probs_pair(50, 16, 2.0, 1.5))
    ours, wide = project(new, old, 0.05), project(new.float(), old.float(), 0.05)
    assert torch.equal(ours.log_probs, wide.log_probs)
    assert (ours.kl_after <= 0.05 + 1e-6)[ours.active].all()


@pytest.mark.parametrize("place", ["new", "old"])
@pytest.mark.parametrize("value", [math.nan, INF])
def test_nan_and_infinity_are_refused(place, value):
    new, old = log_probs_pair(3, 5)
    (new if place == "new" else old)[1, 2] = value
    with refused("project", "log_probs", "+inf"):
        project(new, old, 0.05)


def first_two(policy: torch.Tensor, other: int = 1) -> SparseLogProbs:
    return on_support(policy, torch.tensor([[0, other]] * 3))


@pytest.mark.parametrize(
    ("facts", "call"),
    [
        (("kl_bound", ">= 0", -0.1), lambda new, old: project(new, old, -0.1)),
        (("kl_bound", ">= 0", "nan"), lambda new, old: project(new, old, math.nan)),
        (("tolerance", -1, "[0, 0.5]"), lambda new, old: project(new, old, 0.05, tolerance=-1)),
        (("tolerance", 0.6, "[0, 0.5]"), lambda new, old: project(new, old, 0.05, tolerance=0.6)),
        (("tolerance", "nan", "[0, 0.5]"), lambda new, old: project(new, old, 0.05, tolerance=math.nan)),
        (("(3, 5)", "(3, 4)"), lambda new, old: project(new, old[:, :4], 0.05)),
        (("kl_bound", "(3,)", "(4,)"), lambda new, old: project(new, old, torch.ones(4))),
        (("SparseLogProbs",), lambda new, old: project(sparsify(new), old, 0.05)),
        (("tokens",), lambda new, old: project(first_two(new), first_two(old, 2), 0.05)),
        (("old_log_probs",), lambda new, old: project(new, torch.full_like(old, -INF), 0.05)),
    ],
)
def test_arguments_that_give_no_projection_are_refused(facts, call):
    with refused("project", *facts):
        call(*log_probs_pair(3, 5))


def test_bounds_per_row_and_any_batch_shape():
    new, old = (x.reshape(2, 3, 7) for x in log_probs_pair(6, 7))
    bounds = torch.tensor([[0.01, 0.05, INF], [0.5, 0.0, 0.1]], dtype=torch.float64)
    result = project(new, old, bounds)
    assert result.step_size.shape == result.active.shape == (2, 3)
    for place in np.ndindex(2, 3):
        alone = project(new[place], old[place], float(bounds[place]))
        assert torch.equal(result.log_probs[place], alone.log_probs)
    assert torch.equal(result.log_probs[0, 2], new[0, 2])


def test_working_in_pieces_changes_nothing(monkeypatch):
    new, old = log_probs_pair(40, 11, 2.0, 1.0)
    whole = new.clone().requires_grad_()
    expected = project(whole, old, 0.05)
    expected.log_probs.square().sum().backward()
    monkeypatch.setattr(backends, "CHUNK_ELEMENTS", 35)
    pieces = new.clone().requires_grad_()
    result = project(pieces, old, 0.05)
    result.log_probs.square().sum().backward()
    assert torch.equal(result.log_probs, expected.log_probs) and torch.equal(pieces.grad, whole.grad)


def test_empty_batches_pass():
    result = project(torch.empty(0, 5), torch.empty(0, 5), 0.05)
    assert result.log_probs.shape == (0, 5) and result.step_size.shape == (0,)


def test_the_solver_needs_few_evaluations():
    """The docstring promises 2 to 3 in float32, one more in float64, near the ball and far out."""
    for shift in (0.5, 2.0, 6.0):
        new, old = log_probs_pair(2000, 64, 2.0, shift)
        for pair, limit in (((new.float(), old.float()), 3.0), ((new, old), 4.0)):
            result: Projection[torch.Tensor] = project(*pair, 0.05)
            used = result.evaluations[result.active].double()
            assert used.mean() <= limit and used.max() <= 8


def test_extreme_tails_converge():
    new, old = log_probs_pair(2000, 64, 30.0, 100.0)
    for bound in (1e-4, 0.25):
        result = project(new, old, bound)
        assert result.residual.max() <= 1e-9 and result.evaluations.max() < 40


@pytest.mark.parametrize("power", [1, 2])
def test_second_derivatives_are_refused_rather_than_wrong(power):
    """With the power 1 the upstream gradient is a constant: torch's own mark would drop the term silently."""
    new, old = log_probs_pair(2, 5, 1.0, 2.0)
    new.requires_grad_()
    loss = (project(new, old, 0.05).log_probs ** power).sum()
    with refused("project", "create_graph=True"):
        torch.autograd.grad(loss, new, create_graph=True)
    torch.autograd.grad(loss, new)
    for first, second in ((new, old), (old, new)):
        with refused("kl_divergence", "create_graph=True"):
            torch.autograd.grad(divergences.kl_divergence(first, second).sum(), new, create_graph=True)


def test_sparse_input_gives_sparse_output_on_the_same_tokens():
    logits, old_logits = log_probs_pair(10, 30, 2.0, 1.5)
    old = sparsify(old_logits, support_size=6)
    new = on_support(logits, old.token_ids)
    result = project(new, old, 0.05)
    assert isinstance(result.log_probs, SparseLogProbs)
    assert torch.equal(result.log_probs.token_ids, old.token_ids)
    dense = project(new.atoms(), old.atoms(), 0.05)
    assert torch.equal(result.log_probs.atoms(), dense.log_probs)


def test_the_tail_atom_stands_for_tokens_that_move_alike():
    """30 explicit tokens with one log-ratio, or one atom with their mass: the same projection."""
    new, old = log_probs_pair(5, 34, 1.0, 1.0, seed=2)
    new[:, 4:] = old[:, 4:] + new[:, 4:5] - old[:, 4:5]
    new = new.log_softmax(-1)
    ids = torch.arange(4).expand(5, 4)
    pooled = project(on_support(new, ids), on_support(old, ids), 0.02)
    explicit = project(new, old, 0.02)
    assert explicit.active.all()
    torch.testing.assert_close(pooled.log_probs.log_probs, explicit.log_probs[:, :4], rtol=1e-8, atol=1e-9)


def test_sparse_gradient_reaches_the_logits_through_the_tail():
    """The chain rule over kept tokens and tail equals finite differences of the whole sparse path."""
    logits, old_logits = log_probs_pair(3, 10, 1.0, 1.5)
    old = sparsify(old_logits, support_size=4)

    def through(x: torch.Tensor) -> torch.Tensor:
        return project(on_support(x, old.token_ids), old, 0.02, tolerance=1e-14).log_probs.atoms()

    assert project(on_support(logits, old.token_ids), old, 0.02).active.all()
    assert torch.autograd.gradcheck(through, (logits.requires_grad_(),), eps=1e-6, atol=1e-6)


@needs_triton
@pytest.mark.slow
@pytest.mark.nightly
def test_kernels_in_the_interpreter():
    run_in_interpreter("projection_triton_cases.py", timeout=580)


@needs_triton
def test_the_backend_triton_needs_a_device():
    new, old = log_probs_pair(3, 5)
    with refused("project", "backend triton", "package triton", "CUDA"):
        project(new, old, 0.05, backend="triton")


# Types of the kernels' arguments where they are not float32.
KERNEL_TYPES = {
    **dict.fromkeys(("bound_stride", "rows", "width"), "i32"),
    **{"bounds": "*fp64", "root": "*fp64", "flags": "*i8", "evaluations_out": "*i64"},
}
KERNEL_TYPES |= dict.fromkeys(("q_ids", "p_ids", "sampled"), "*i64") | {"state": "*fp64"}
KERNEL_TYPES |= dict.fromkeys(("places", "good"), "*i32")
KERNEL_TYPES |= dict.fromkeys(("support_size", "loss_stride", "ratio_stride", "pull_stride"), "i32")
KERNEL_TYPES |= dict.fromkeys(("bound", "bound_rest", "weight", "weight_rest"), "fp32")
KERNELS = ("_project_kernel", "_project_backward_kernel", "_kl_kernel", "_kl_backward_kernel")
RULE_KERNELS = ("_rule_kernel", "_rule_backward_kernel")


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_cuda_and_keep_rows_in_registers(capability):
    """No GPU is needed to compile, nor to see whether registers are spilled to memory."""
    from kernel_compiler import compiled

    from troll.algorithms import triton_projection as kernels
    from troll.algorithms import triton_rule

    for name, width in [(name, width) for name in KERNELS + RULE_KERNELS for width in (65, 257)]:
        kernel = getattr(triton_rule if name in RULE_KERNELS else kernels, name)
        launch = kernels._kl_launch(width) if "_kl_" in name else kernels._launch(width)
        constants = {"TOLERANCE": 2e-5, "FLOOR": -100.0, "WIDTH": width, **launch}
        constants |= {"FOR_A": True, "FOR_B": True, "LIMIT": 20.0, "LEAST": -27.631, "SAME_IDS": False}
        constants |= {"HAS_LOSS": True, "HAS_RATIO": True, "HAS_PULL": True}
        constants["METRICS"] = len(triton_rule.METRICS)
        _, spilled = compiled(kernel, KERNEL_TYPES, constants, capability, num_warps=launch["num_warps"])
        assert spilled == 0, (name, width)


@on_gpu
@pytest.mark.parametrize("atoms", [2, 65, 257, 1025])
@pytest.mark.parametrize("bound", [0.0, 1e-4, 0.05, INF])
def test_on_cuda_it_equals_the_cpu_and_never_waits(atoms, bound):
    new, old = (x.float() for x in log_probs_pair(400, atoms, 3.0, 0.5, seed=atoms))
    upstream = torch.randn(new.shape, generator=torch.Generator().manual_seed(1))
    leaf = new.clone().requires_grad_()
    wanted = project(leaf, old, bound)
    wanted.log_probs.backward(upstream)
    ours, theirs, given = new.cuda().requires_grad_(), old.cuda(), upstream.cuda()
    project(ours, theirs, bound).log_probs.backward(given)  # compiles
    ours.grad = None
    with no_waits():
        result = project(ours, theirs, bound)
        result.log_probs.backward(given)
    result.check()
    inside = ~wanted.active
    assert torch.equal(result.active.cpu(), wanted.active)
    assert torch.equal(result.log_probs.detach().cpu()[inside], new[inside])
    torch.testing.assert_close(
        result.log_probs.detach().cpu(), wanted.log_probs.detach(), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(result.kl_after.cpu(), wanted.kl_after, rtol=3e-5, atol=1e-7)
    scale = leaf.grad.abs().amax(-1, keepdim=True) + 0.1 * upstream.abs().amax(-1, keepdim=True)
    assert ((ours.grad.cpu() - leaf.grad).abs() <= 3e-6 * scale).all()
    again = project(ours, theirs, bound)
    assert torch.equal(again.log_probs, result.log_probs)


@on_gpu
def test_on_cuda_bad_rows_are_nan_and_say_why():
    for value, policy, reason in (
        (math.nan, 0, "NaN"),
        (math.nan, 1, "NaN"),
        (INF, 0, "NaN"),
        (-INF, 1, "probability"),
    ):
        pair = [x.float().cuda() for x in log_probs_pair(6, 5, 1.0, 2.0)]
        pair[policy][4, 1 if value != -INF else slice(None)] = value
        result = project(*pair, 0.05)
        with refused("project", reason, "row 4"):
            result.check()
        assert result.log_probs.isnan().any(-1).tolist() == [False] * 4 + [True, False]


@on_gpu
@pytest.mark.parametrize("name", ["troll", "troll-seq", "dppo-topk-kl", "dppo-predictive", "dppo-binary-tv"])
def test_on_cuda_rules_equal_the_cpu_and_never_wait(name):
    case, rule = make_case(dtype=torch.float32, shift=0.5), make_trust_region(name)

    def policies(device):
        kept = case.new.distribution
        given = (case.new.log_probs, kept.log_probs, kept.tail_log_prob)
        leaves = [x.detach().to(device).requires_grad_() for x in given]
        ids, sampled = case.support.to(device), case.token_ids.to(device)
        new = TokenPolicy(leaves[0], SparseLogProbs(ids, *leaves[1:]), None, sampled)
        rows = (case.old.distribution.log_probs, case.old.distribution.tail_log_prob)
        distribution = SparseLogProbs(ids.clone(), *(x.to(device) for x in rows))
        old = TokenPolicy(case.old.log_probs.to(device), distribution, None, sampled)
        return leaves, new, old, case.advantages.to(device), case.mask.bool().to(device)

    def outcome(device, around=nullcontext):
        leaves, *batch = policies(device)
        with around():
            losses = rule(*batch)
            losses.per_token.sum().backward()
        gradients = {f"gradient {n}": x.grad for n, x in enumerate(leaves) if x.grad is not None}
        return {"loss": losses.per_token, **losses.metrics, **gradients}

    wanted = outcome("cpu")
    outcome("cuda")  # compiles
    got = outcome("cuda", around=no_waits)
    assert got.keys() == wanted.keys()
    for name, theirs in wanted.items():
        close = {"rtol": 1e-5, "atol": 2e-6}
        torch.testing.assert_close(
            got[name].detach().cpu(), theirs.detach(), **close, msg=lambda text, name=name: f"{name}: {text}"
        )
