"""The projection of one row onto its KL ball and its gradient, as functions for Triton kernels.

They follow `troll.algorithms.path_solver` line by line, in float64: in float32 the result leaves its ball (by
2e-3 of a bound of 1e-4) and the gradient of extreme rows is wrong. See `troll.algorithms.projection` for the
mathematics. This module imports triton, an optional dependency, so only kernel modules import it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import ctypes
import math

import triton
import triton.language as tl

from troll.algorithms import path_solver

LOG_ZERO = tl.constexpr(path_solver.LOG_ZERO)
KL_ROUNDING = tl.constexpr(path_solver.KL_ROUNDING)
MAX_EVALUATIONS = tl.constexpr(path_solver.MAX_EVALUATIONS)
NOT_LOG_PROBS = tl.constexpr(1)
NO_PROBABILITY = tl.constexpr(2)
BAD_BOUND = tl.constexpr(3)


@triton.jit
def kl_terms(log_a, log_b):
    """As `troll.algorithms.divergences.kl_terms`; uses a comparison because `tl.maximum` turns NaN into 0."""
    a = tl.exp(log_a)
    ratio = tl.where(a == 0, 0.0, log_a - log_b)
    terms = a * (ratio - 1.0) + tl.exp(log_b)
    return tl.where(terms < 0, 0.0, terms)


@triton.jit
def rounded_to(x, dtype: tl.constexpr):
    """Round to a narrower type as torch does, via float32: some types have no conversion from float64."""
    return x if dtype == tl.float64 else x.to(tl.float32).to(dtype)


@triton.jit
def log_sum_exp(x):
    """Log-sum-exp of a row; -inf for a row of -inf."""
    top = tl.max(x, axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    return top + tl.log(tl.sum(tl.exp(x - top), axis=0))


@triton.jit
def _evaluate(log_p, ratio, step):
    """Psi, variance and KL(pi || p) at one point of the path; log_p is -inf outside the common support."""
    x = log_p + step * ratio
    top = tl.max(x, axis=0)
    e = tl.exp(x - top)
    z = tl.sum(e, axis=0)
    psi = top + tl.log(z)
    pi = e / z
    mean = tl.sum(pi * ratio, axis=0)
    deviation = ratio - mean
    variance = tl.sum(pi * deviation * deviation, axis=0)
    kl = step * mean - psi
    return psi, variance, tl.where(kl < 0, 0.0, kl)


@triton.jit
def _first_step(log_p, ratio, target):
    """The root of the third-order expansion of KL at p; 1 where the ratio is constant."""
    weighted = tl.exp(log_p) * ratio * ratio
    variance = tl.sum(weighted, axis=0)
    curvature = tl.sum(weighted * ratio, axis=0) / (3.0 * variance)
    linear = target / tl.sqrt(variance)
    discriminant = 1.0 + 4.0 * curvature * linear
    better = 2.0 * linear / (1.0 + tl.sqrt(tl.where(discriminant > 0, discriminant, 0.0)))
    guess = tl.where(discriminant > 0, better, linear)
    return tl.where(guess > 0, tl.where(guess < 1.0, guess, 1.0), 1.0)


@triton.jit
def atoms_of(kept, tail, row, support_size, atom, SPARSE: tl.constexpr, LEAST: tl.constexpr):
    """A row in float64: its entries and, with SPARSE, its tail, which is clamped to at least LEAST."""
    inside = atom < support_size
    x = tl.load(kept + row * support_size + atom, mask=inside, other=float("-inf")).to(tl.float64)
    if SPARSE:
        last = tl.load(tail + row).to(tl.float64)
        x = tl.where(atom == support_size, tl.where(last < LEAST, LEAST, last), x)
    return x


@triton.jit
def solve_row(
    q, q_tail, p, p_tail, row, support_size, bound, slot, out, kl_out,
    TOLERANCE: tl.constexpr, BLOCK: tl.constexpr, SPARSE: tl.constexpr, LEAST: tl.constexpr,
    FLOOR: tl.constexpr,
):  # fmt: skip
    """Writes the projection of a row outside its ball to `out`; copies any other row, unless SPARSE.

    KL before is written to `kl_out` at once because keeping it would spill registers. Returns active, step
    size, KL after, 1 / variance, residual, feasible, number of evaluations and status; with SPARSE also log
    pi at the slot, and KL(q || pi) with pi at least exp(FLOOR). All floats of a row without a result are NaN.
    """
    atom = tl.arange(0, BLOCK)
    width = support_size
    if SPARSE:
        width = support_size + 1
    real = atom < width
    new = atoms_of(q, q_tail, row, support_size, atom, SPARSE, LEAST)
    old = atoms_of(p, p_tail, row, support_size, atom, SPARSE, LEAST)
    nothing = tl.full([], 0.0, tl.float64)
    one = tl.full([], 1.0, tl.float64)
    kl_before = tl.sum(kl_terms(new, old), axis=0)
    tl.store(kl_out + row, kl_before)
    status = tl.full([], 0, tl.int32)
    infinite = (tl.max(new, axis=0) == float("inf")) | (tl.max(old, axis=0) == float("inf"))
    status = tl.where((bound >= 0) == 0, BAD_BOUND, status)
    status = tl.where((kl_before != kl_before) | infinite, NOT_LOG_PROBS, status)
    active = (kl_before > bound) & (status == 0)
    step, kl_after, inverse, residual, pull, at_slot = one, kl_before, nothing, nothing, nothing, nothing
    feasible = tl.full([], 1, tl.int32)
    number = tl.full([], 0, tl.int32)
    if active:
        old = tl.where(old < LOG_ZERO, float("-inf"), old)
        dead = tl.max(old, axis=0) == float("-inf")
        status = tl.where(dead, NO_PROBABILITY, status)
        scale = tl.where(dead, 0.0, log_sum_exp(old))
        old = old - scale
        possible = old > float("-inf")
        common = (new >= LOG_ZERO) & possible
        # Without a common support the solution is p: its support counts as common, with ratio 0.
        disjoint = tl.sum(common.to(tl.int32), axis=0) == 0
        common = common | (possible & disjoint)
        whole = tl.sum((possible & (common == 0)).to(tl.int32), axis=0) == 0
        log_mass = tl.where(whole, 0.0, log_sum_exp(tl.where(common, old, float("-inf"))))
        restricted = tl.where(common, old - log_mass, float("-inf"))
        ratio = tl.where(common & (disjoint == 0), new - old, 0.0)
        ratio = tl.where(common, ratio - tl.sum(tl.exp(restricted) * ratio, axis=0), 0.0)

        remaining = bound + log_mass
        within = (remaining >= 0) & (disjoint == 0)
        remaining = tl.where(remaining < 0, 0.0, remaining)
        slack = KL_ROUNDING / remaining
        slack = tl.where(slack < TOLERANCE, TOLERANCE, tl.where(slack < 0.5, slack, 0.5))
        target = tl.sqrt(2.0 * remaining * (1.0 - 0.5 * slack))
        step = _first_step(restricted, ratio, target)
        # The end of the path may be inside the ball if q has lost mass or is not normalised.
        if (whole == 0) | (tl.abs(log_sum_exp(new)) > 1e-3):
            _, _, kl_end = _evaluate(restricted, ratio, one)
            step = tl.where(kl_end <= remaining, 1.0, step)
        step = tl.where(remaining == 0, 0.0, step)

        psi, variance, kl, lo = nothing, nothing, nothing, nothing
        hi = one
        last_miss = tl.full([], float("inf"), tl.float64)
        end_open = tl.full([], 1, tl.int32)
        done = tl.full([], 0, tl.int32)
        while done == 0:
            number += 1
            step = tl.where(number == MAX_EVALUATIONS, lo, step)
            psi, variance, kl = _evaluate(restricted, ratio, step)
            inside = kl <= remaining
            ended = inside & ((kl >= remaining * (1.0 - slack)) | (step == 1.0))
            # With a bound of zero the step is 0, but KL may be nonzero due to rounding.
            ended = ended | (number == MAX_EVALUATIONS) | (remaining == 0)
            lo = tl.where(inside, step, lo)
            hi = tl.where(inside, hi, step)
            end_open = tl.where(inside, end_open, 0)
            miss = tl.log(target / tl.sqrt(2.0 * kl))
            newton = step * tl.exp(miss * 2.0 * kl / (step * step * variance))
            newton = tl.where((newton >= 1.0) & (end_open == 1), 1.0, newton)
            slow = tl.abs(miss) > 0.5 * last_miss
            last_miss = tl.abs(miss)
            allowed = (newton > lo) & ((newton < hi) | (end_open == 1)) & (slow == 0)
            bisected = tl.where(lo > 0, tl.sqrt(lo * hi), 0.1 * hi)
            step = tl.where(ended, step, tl.where(allowed, newton, bisected))
            done = ended.to(tl.int32)
        log_pi = restricted + step * ratio - psi
        step = tl.where(disjoint, 0.0, step)
        tight = step < 1.0
        inverse = tl.where(tight & (variance > 0), 1.0 / variance, 0.0)
        # Recomputed: keeping it during the search makes ptxas spill a word on sm_90.
        within = (bound + log_mass >= 0) & (disjoint == 0)
        distance = tl.abs(kl - log_mass - bound)
        residual = tl.where(bound > 0, distance / bound, distance)
        residual = tl.where((tight == 0) & within, 0.0, residual)
        feasible = within.to(tl.int32)
        rounded = rounded_to(log_pi, out.dtype.element_ty)
        tl.store(out + row * width + atom, rounded, mask=real)
        log_pi = rounded.to(tl.float64)
        # Read again: keeping the rows during the search would spill registers.
        old = atoms_of(p, p_tail, row, support_size, atom, SPARSE, LEAST)
        old = tl.where(old < LOG_ZERO, float("-inf"), old)
        old -= log_sum_exp(old)
        kl_after = tl.sum(kl_terms(log_pi, old), axis=0)
        if SPARSE:
            new = atoms_of(q, q_tail, row, support_size, atom, SPARSE, LEAST)
            terms = kl_terms(new, tl.where(log_pi < FLOOR, FLOOR, log_pi))
            pull = tl.sum(tl.where(real, terms, 0.0), axis=0)
            at_slot = tl.sum(tl.where(atom == slot, log_pi, 0.0), axis=0)
    elif SPARSE == 0:
        given = tl.load(q + row * support_size + atom, mask=real, other=0.0)
        tl.store(out + row * support_size + atom, given.to(out.dtype.element_ty), mask=real)
    if status != 0:
        # The status is not read here: NaN prevents such a row from being taken for a result.
        bad = tl.full([], float("nan"), tl.float64)
        step, kl_after, inverse, residual, pull, at_slot = bad, bad, bad, bad, bad, bad
        tl.store(kl_out + row, bad)
        active = status != 0
        tl.store(out + row * width + atom, tl.full([BLOCK], float("nan"), out.dtype.element_ty), mask=real)
    return active, step, kl_after, inverse, residual, feasible, number, status, at_slot, pull


@triton.jit
def moved_back(new, old, own, g, step, inverse):
    """Gradient of log q from the gradient g of log pi: beta [ g - pi G - pi (r - m) C / v ]."""
    pi = tl.exp(own)
    common = (new >= LOG_ZERO) & (old >= LOG_ZERO)
    ratio = tl.where(common, new - old, 0.0)
    # Centred twice: the first shift keeps the second sum exact where r is large.
    mass = tl.sum(pi, axis=0)
    deviation = tl.where(common, ratio - tl.sum(pi * ratio, axis=0) / mass, 0.0)
    deviation = tl.where(common, deviation - tl.sum(pi * deviation, axis=0) / mass, 0.0)
    # Atoms outside the common support have log pi = -inf, independent of q.
    g = tl.where(pi == 0, 0.0, g)
    covariance = tl.sum(g * deviation, axis=0) * inverse
    return step * (g - pi * (tl.sum(g, axis=0) + deviation * covariance))


def in_two(number: float) -> tuple[float, float]:
    """Split a number into the sum of two float32, the type of kernel arguments."""
    first = ctypes.c_float(number).value
    return first, number - first if math.isfinite(first) else 0.0
