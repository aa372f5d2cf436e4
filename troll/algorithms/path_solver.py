"""Root search on the path between two policies; see `troll.algorithms.projection` for the mathematics.

Keep in sync with `troll.algorithms.triton_projection`, which implements the same steps for CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from troll.common.errors import UserError

# Newton needs 2 to 5 evaluations, 23 for the heaviest tails observed. After this many, the feasible end of
# the bracket is returned and the residual reports the distance from the bound.
MAX_EVALUATIONS = 60
# Log-probabilities below this count as zero probability (masks are often the lowest finite number of a type).
LOG_ZERO = -1e30
# Absolute error of KL in float64, as a difference of numbers near one.
KL_ROUNDING = 4e-15


@dataclass(frozen=True)
class SolvedRows:
    """Solutions of the rows of [A, W]; the first three are [A, W], the others [A].

    Attributes:
        log_pi: log pi, normalised; -inf outside the common support.
        log_p: log p, normalised.
        deviation: r - E_pi[r] on the common support, 0 elsewhere.
        step_size: beta.
        inverse_variance: 1 / Var_pi[r]; 0 where the constraint is not tight, so the step has no gradient.
        feasible: whether any distribution on the common support is inside the ball.
        evaluations: number of evaluations of the path.
        residual: relative distance of KL(pi || p) from the bound; 0 where it need not be tight.
    """

    log_pi: Tensor
    log_p: Tensor
    deviation: Tensor
    step_size: Tensor
    inverse_variance: Tensor
    feasible: Tensor
    evaluations: Tensor
    residual: Tensor


@dataclass
class _Evaluation:
    log_pi: Tensor  # [A, W]
    deviation: Tensor  # [A, W]
    variance: Tensor  # [A]
    kl: Tensor  # [A]


def _evaluate(log_p: Tensor, ratio: Tensor, step: Tensor) -> _Evaluation:
    """One point of the path per row. A `ratio` centred under p keeps beta m - psi exact near p."""
    log_pi = log_p + step.unsqueeze(-1) * ratio
    psi = torch.logsumexp(log_pi, dim=-1)
    log_pi -= psi.unsqueeze(-1)
    pi = log_pi.exp()
    mean = (pi * ratio).sum(-1)
    deviation = ratio - mean.unsqueeze(-1)
    variance = pi.mul_(deviation).mul_(deviation).sum(-1)
    return _Evaluation(log_pi, deviation, variance, (step * mean - psi).clamp_(min=0.0))


def _first_step(log_p: Tensor, ratio: Tensor, target: Tensor) -> Tensor:
    """The root of the third-order expansion of KL at p: h = sqrt(v) beta (1 + c beta), c = k3 / (3 v)."""
    weighted = log_p.exp() * ratio.square()
    variance = weighted.sum(-1)
    curvature = weighted.mul_(ratio).sum(-1) / (3.0 * variance)
    linear = target / variance.sqrt()
    discriminant = 1.0 + 4.0 * curvature * linear
    better = 2.0 * linear / (1.0 + discriminant.clamp(min=0.0).sqrt())
    guess = torch.where(discriminant > 0, better, linear)
    # A row of constant ratio has no variance: p and the restricted q are equal, so try the end of the path.
    return torch.where(guess > 0, guess, 1.0).clamp_(max=1.0)


def solve_steps(log_q: Tensor, log_p: Tensor, bound: Tensor, tolerance: float) -> SolvedRows:
    """Solve rows [A, W] that are outside their ball.

    Args:
        log_q: new policy, up to a constant per row.
        log_p: old policy, up to a constant per row; normalised here.
        bound: [A], eps.
        tolerance: a row is done when eps (1 - tolerance) <= KL <= eps.

    Raises:
        UserError: log_q holds +inf, or a row of the old policy has no probability mass.
    """
    if bool((log_q == torch.inf).any()):
        raise UserError("project: +inf in log_probs; give log-probabilities")
    log_p = log_p.masked_fill(log_p < LOG_ZERO, -torch.inf)
    scale = torch.logsumexp(log_p, dim=-1, keepdim=True)
    if bool((scale == -torch.inf).any()):
        raise UserError("project: a row of old_log_probs has no probability mass (every entry is -inf)")
    log_p = log_p - scale
    common = (log_q >= LOG_ZERO) & (log_p > -torch.inf)
    # Without a common support the solution is p: treat the support of p as common, with ratio 0.
    disjoint = ~common.any(-1)
    common |= disjoint.unsqueeze(-1) & (log_p > -torch.inf)
    whole = (common | (log_p == -torch.inf)).all(-1)
    restricted = log_p.masked_fill(~common, -torch.inf)
    log_mass = torch.logsumexp(restricted, dim=-1).masked_fill_(whole, 0.0)
    restricted = restricted - log_mass.unsqueeze(-1)
    ratio = (log_q - log_p).masked_fill_(~common | disjoint.unsqueeze(-1), 0.0)
    ratio = (ratio - (restricted.exp() * ratio).sum(-1, keepdim=True)).masked_fill_(~common, 0.0)

    remaining = bound + log_mass
    feasible = (remaining >= 0) & ~disjoint
    ends = _ends_inside(restricted, ratio, remaining, ~whole | _unnormalised(log_q))
    solved = _newton(restricted, ratio, remaining.clamp(min=0.0), tolerance, ends)
    solved.step_size.masked_fill_(disjoint, 0.0)
    total_kl = solved.kl - log_mass
    tight = solved.step_size < 1.0
    distance = (total_kl - bound).abs()
    # Relative distance; absolute for a bound of zero, where the solution is p.
    residual = torch.where(bound > 0, distance / bound, distance).masked_fill_(~tight & feasible, 0.0)
    usable = tight & (solved.variance > 0)
    return SolvedRows(
        log_pi=solved.log_pi,
        log_p=log_p,
        deviation=solved.deviation.masked_fill_(~common, 0.0),
        step_size=solved.step_size,
        inverse_variance=torch.where(usable, 1.0 / solved.variance, 0.0),
        feasible=feasible,
        evaluations=solved.evaluations,
        residual=residual,
    )


@dataclass
class _Root:
    log_pi: Tensor
    deviation: Tensor
    variance: Tensor
    kl: Tensor
    step_size: Tensor
    evaluations: Tensor


def _unnormalised(log_q: Tensor) -> Tensor:
    return torch.logsumexp(log_q, dim=-1).abs() > 1e-3


def _ends_inside(log_p: Tensor, ratio: Tensor, bound: Tensor, candidates: Tensor) -> Tensor:
    """Whether the end of the path is inside the ball, [A]; the solution is then step 1, without a search.

    As q is outside the ball, this is only possible for `candidates`: rows whose q loses mass by restriction
    to the common support, or is not normalised. A root search would converge slowly there.
    """
    inside = torch.zeros_like(candidates)
    index = candidates.nonzero().squeeze(-1)
    if index.numel():
        end = _evaluate(log_p[index], ratio[index], torch.ones_like(bound[index]))
        inside[index] = end.kl <= bound[index]
    return inside


def _newton(log_p: Tensor, ratio: Tensor, bound: Tensor, tolerance: float, ends: Tensor) -> _Root:
    """Newton on log h = log sqrt(2 KL) in log beta, inside a bracket; solved rows leave the working set.

    A row whose error has not halved takes a geometric bisection step instead: one-sided Newton converges
    slowly on rows that turn steep suddenly (p nearly a point mass). Rows marked by `ends` start at step 1.
    """
    rows, device = log_p.shape[0], log_p.device
    slack = torch.clamp(KL_ROUNDING / bound, min=tolerance, max=0.5)
    target = (2.0 * bound * (1.0 - 0.5 * slack)).sqrt()
    step = _first_step(log_p, ratio, target).masked_fill_(ends, 1.0).masked_fill_(bound == 0, 0.0)
    root = _Root(
        log_pi=log_p.clone(),
        deviation=ratio.clone(),
        variance=torch.zeros_like(bound),
        kl=torch.zeros_like(bound),
        step_size=torch.zeros_like(bound),
        evaluations=torch.zeros(rows, dtype=torch.int64, device=device),
    )
    todo = torch.arange(rows, device=device)
    lo, hi = torch.zeros_like(bound), torch.ones_like(bound)
    end_open = torch.ones_like(bound, dtype=torch.bool)
    last_error = torch.full_like(bound, torch.inf)
    for number in range(1, MAX_EVALUATIONS + 1):
        if number == MAX_EVALUATIONS:
            step = lo
        at = _evaluate(log_p, ratio, step)
        inside = at.kl <= bound
        done = inside & ((at.kl >= bound * (1.0 - slack)) | (step == 1.0) | (number == MAX_EVALUATIONS))
        solved = done.nonzero().squeeze(-1)
        if solved.numel():
            place = todo[solved]
            root.log_pi[place], root.deviation[place] = at.log_pi[solved], at.deviation[solved]
            root.variance[place], root.kl[place] = at.variance[solved], at.kl[solved]
            root.step_size[place], root.evaluations[place] = step[solved], number
            if solved.numel() == todo.numel():
                break
        h = (2.0 * at.kl).sqrt()
        lo, hi = torch.where(inside, step, lo), torch.where(inside, hi, step)
        end_open &= inside
        # Newton in log beta for log h, where d log h / d log beta = beta^2 v / (2 KL).
        error = (target / h).log()
        newton = step * (error * 2.0 * at.kl / (step.square() * at.variance)).exp()
        # Step 1 is allowed until a step was outside the ball.
        newton = torch.where((newton >= 1.0) & end_open, 1.0, newton)
        slow = error.abs() > 0.5 * last_error
        last_error = error.abs()
        allowed = (newton > lo) & ((newton < hi) | end_open) & ~slow
        step = torch.where(allowed, newton, torch.where(lo > 0, (lo * hi).sqrt(), 0.1 * hi))
        if solved.numel():
            unsolved = (~done).nonzero().squeeze(-1)
            todo, log_p, ratio, step = todo[unsolved], log_p[unsolved], ratio[unsolved], step[unsolved]
            bound, slack, target = bound[unsolved], slack[unsolved], target[unsolved]
            last_error = last_error[unsolved]
            lo, hi, end_open = lo[unsolved], hi[unsolved], end_open[unsolved]
    return root
