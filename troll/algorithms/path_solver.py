"""Root search on the path between two policies; the mathematics is in `troll.algorithms.projection`.

`troll.algorithms.triton_projection` takes the same steps for CUDA: a change here belongs there, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from troll.common.errors import UserError

# Newton needs 2 to 5 evaluations, the heaviest tails seen 23; after this many the feasible end of the
# bracket is returned and the residual tells.
MAX_EVALUATIONS = 60
# Log-probabilities below this are zero probabilities (masks are often the lowest finite number of a type).
LOG_ZERO = -1e30
# KL is a difference of numbers near one, so float64 gives it with this absolute error.
KL_ROUNDING = 4e-15


@dataclass(frozen=True)
class SolvedRows:
    """Solutions of [A, W] rows; all but the first three are [A].

    Attributes:
        log_pi: log pi, normalised; -inf outside the common support.
        log_p: log p, normalised.
        deviation: r - E_pi[r] on the common support, 0 elsewhere.
        step_size: beta.
        inverse_variance: 1 / Var_pi[r]; 0 where the constraint is not tight, so that the step does not move.
        feasible: whether the ball can be met.
        evaluations: evaluations of the path.
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
    """One point of the path per row. `ratio` is centred under p: that keeps beta m - psi exact near p."""
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
    # A row with constant ratio has no variance: p and q restricted are equal, try the end of the path.
    return torch.where(guess > 0, guess, 1.0).clamp_(max=1.0)


def solve_steps(log_q: Tensor, log_p: Tensor, bound: Tensor, tolerance: float) -> SolvedRows:
    """Solve rows [A, W] that lie outside their ball.

    Args:
        log_q: new policy, any scale per row.
        log_p: old policy, any scale per row; it is normalised.
        bound: [A], eps.
        tolerance: a row is done when eps (1 - tolerance) <= KL <= eps.

    Raises:
        UserError: log_q holds +inf, or a row of the old policy has no probability at all.
    """
    if bool((log_q == torch.inf).any()):
        raise UserError("project: +inf in log_probs; give log-probabilities")
    log_p = log_p.masked_fill(log_p < LOG_ZERO, -torch.inf)
    scale = torch.logsumexp(log_p, dim=-1, keepdim=True)
    if bool((scale == -torch.inf).any()):
        raise UserError("project: a row of old_log_probs has no probability at all (every entry is -inf)")
    log_p = log_p - scale
    common = (log_q >= LOG_ZERO) & (log_p > -torch.inf)
    # Where nothing is common the answer is p: treat its own support as common, with ratio 0.
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
    # A relative distance; absolute for a bound of zero, where p itself is the answer.
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
    """Whether the end of the path is inside the ball, [A]: no root to search for, the answer is step 1.

    Rows come here because q is outside; so this takes a q that lost mass with its restriction to the common
    support, or had too much to begin with, and the others need not be tried. A search would creep there.
    """
    inside = torch.zeros_like(candidates)
    index = candidates.nonzero().squeeze(-1)
    if index.numel():
        end = _evaluate(log_p[index], ratio[index], torch.ones_like(bound[index]))
        inside[index] = end.kl <= bound[index]
    return inside


def _newton(log_p: Tensor, ratio: Tensor, bound: Tensor, tolerance: float, ends: Tensor) -> _Root:
    """Newton on log h = log sqrt(2 KL) in log beta, inside a bracket; finished rows leave the working set.

    A row whose miss has not halved takes a geometric bisection step instead: one-sided Newton creeps on
    rows that turn steep suddenly (p nearly a point mass). Rows marked by `ends` are tried at step 1 at once.
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
    last_miss = torch.full_like(bound, torch.inf)
    for number in range(1, MAX_EVALUATIONS + 1):
        if number == MAX_EVALUATIONS:
            step = lo
        at = _evaluate(log_p, ratio, step)
        inside = at.kl <= bound
        done = inside & ((at.kl >= bound * (1.0 - slack)) | (step == 1.0) | (number == MAX_EVALUATIONS))
        ended = done.nonzero().squeeze(-1)
        if ended.numel():
            place = todo[ended]
            root.log_pi[place], root.deviation[place] = at.log_pi[ended], at.deviation[ended]
            root.variance[place], root.kl[place] = at.variance[ended], at.kl[ended]
            root.step_size[place], root.evaluations[place] = step[ended], number
            if ended.numel() == todo.numel():
                break
        h = (2.0 * at.kl).sqrt()
        lo, hi = torch.where(inside, step, lo), torch.where(inside, hi, step)
        end_open &= inside
        # Newton in log beta for log h, where d log h / d log beta = beta^2 v / (2 KL).
        miss = (target / h).log()
        newton = step * (miss * 2.0 * at.kl / (step.square() * at.variance)).exp()
        # The end of the path may be tried as long as it has not been found outside the ball.
        newton = torch.where((newton >= 1.0) & end_open, 1.0, newton)
        slow = miss.abs() > 0.5 * last_miss
        last_miss = miss.abs()
        allowed = (newton > lo) & ((newton < hi) | end_open) & ~slow
        step = torch.where(allowed, newton, torch.where(lo > 0, (lo * hi).sqrt(), 0.1 * hi))
        if ended.numel():
            left = (~done).nonzero().squeeze(-1)
            todo, log_p, ratio, step = todo[left], log_p[left], ratio[left], step[left]
            bound, slack, target = bound[left], slack[left], target[left]
            last_miss = last_miss[left]
            lo, hi, end_open = lo[left], hi[left], end_open[left]
    return root
