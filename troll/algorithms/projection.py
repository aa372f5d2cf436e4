r"""The TROLL projection: the nearest distribution inside a KL ball, exact, with its exact gradient.

Notation. For one token position, p is the old policy, which sampled, and q the new policy, which is trained,
both over the same atoms; eps is the bound. Sums run over atoms.

**Problem** (TROLL, arXiv 2510.03817; both divergences take the projected policy first):

    pi = argmin_pi KL(pi || q)   subject to   KL(pi || p) <= eps.

**Solution.** If KL(q || p) <= eps then pi = q. Otherwise, with eta > 0 the multiplier of the constraint,

    pi ~ exp( (eta log p + log q) / (eta + 1) ),   eta the root of   KL(pi || p) = eps.

(Eq. 4 on the paper's project page lacks the log of q; its code has it.)

With the step size beta = 1 / (eta + 1) in (0, 1] and the log-ratio r = log q - log p this is the normalised
straight line from log p to log q:

    log pi = log p + beta r - psi(beta),        psi(beta) = log sum p exp(beta r).

psi is a cumulant generating function: psi' = m := E_pi[r] and psi'' = v := Var_pi[r]. Hence

    KL(pi || p) = beta m - psi,                 d KL(pi || p) / d beta = beta v >= 0,

so the root is unique and the divergence grows along the path.

**Solver.** Near beta = 0, KL = beta^2 v / 2, so h(beta) = sqrt(2 KL) is nearly linear there. The start is
the root of the next order, h = sqrt(v) beta (1 + c beta) with c = k3 / (3 v), where v and k3 are the second
and third cumulants of r under p. Then Newton's method for log h as a function of log beta,
d log h / d log beta = beta^2 v / (2 KL), inside a bracket that shrinks with every evaluation. A row is done
when eps (1 - tol) <= KL <= eps: the result is on the feasible side. Only rows outside their ball are
solved, in float64: 2 to 3 evaluations per row to float32 accuracy, one more to float64 accuracy.

**Gradient** (implicit function theorem; p fixed). From KL(beta, log q) = eps,

    d beta / d log q_j   = - beta pi_j (r_j - m) / v,
    d log pi_i / d log q_j = beta [ delta_ij - pi_j - pi_j (r_i - m)(r_j - m) / v ].

The matrix is beta times a projector that removes two directions: adding a constant to log q
(normalisation), and moving q along r (towards or away from p); neither changes pi. For an upstream gradient
g = dL / d log pi:

    dL / d log q_j = beta [ g_j - pi_j G - pi_j (r_j - m) C / v ],   G = sum g_i,   C = sum g_i (r_i - m).

The last term is due to the change of beta; omitting it ("frozen eta") is not a small error. Rows inside their
ball pass g through unchanged. No iteration is differentiated, and nothing is saved for rows inside their
ball.

**Zero probabilities.** KL(pi || q) and KL(pi || p) are finite only on S = {i : p_i > 0 and q_i > 0}, and the
distribution on S closest to p is p restricted to S, at KL = -log p(S). So the problem on S has the bound
eps + log p(S). If that is negative, the problem is infeasible: pi is p restricted to S (beta = 0), and
`feasible` is False. If q restricted to S is inside the ball, pi is that (beta = 1, active, and the gradient
is only that of the normalisation). If S is empty, pi is p.

The atoms of a sparse distribution are its K kept tokens and its tail; nothing above changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from troll.algorithms.autograd import differentiable_once
from troll.algorithms.backends import (
    MAX_ATOMS,
    Backend,
    require_equal,
    result_dtype,
    row_chunks,
    takes_triton,
    wide_dtype,
)
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.divergences import kl_terms
from troll.algorithms.path_solver import solve_steps
from troll.common.errors import UserError

Distribution = TypeVar("Distribution", Tensor, SparseLogProbs)

# Error messages by the status of a row; the torch implementation raises immediately.
_REFUSALS = {
    1: "NaN or +inf in log_probs or old_log_probs; give log-probabilities",
    2: "a row of old_log_probs has no probability mass (every entry is -inf)",
    3: "kl_bound must be >= 0 (the paper uses 0.05)",
}


@dataclass(frozen=True)
class Projection(Generic[Distribution]):
    """The projected policy and the solver's report. All but `log_probs` are of batch shape, without gradient.

    Attributes:
        log_probs: the projected policy, of the same kind as the input; at least float32.
        step_size: beta in [0, 1]; 1 where pi is q, 0 where pi is p (on the common support).
        eta: the multiplier 1 / beta - 1 in [0, inf].
        kl_before: KL(q || p).
        kl_after: KL(pi || p), measured on the returned (rounded) log-probabilities.
        active: True where q is outside the ball, so pi differs from q.
        feasible: False where no distribution on the common support is inside the ball.
        evaluations: number of path evaluations by the solver; 0 for rows inside their ball.
        residual: |KL - eps| / eps, the relative distance of the constraint from being tight, in the solver's
            float64; 0 for rows that need not be tight. Above 1e-4 the solver has not converged or the problem
            is infeasible.
        status: int8, only from the Triton kernels, which do not synchronise with the device: 0 for rows with
            a result. All other rows are NaN in all floating-point fields, and `check` raises for them. None
            from plain torch, which rejects such rows immediately.
    """

    log_probs: Distribution
    step_size: Tensor
    eta: Tensor
    kl_before: Tensor
    kl_after: Tensor
    active: Tensor
    feasible: Tensor
    evaluations: Tensor
    residual: Tensor
    status: Tensor | None = None

    def check(self) -> None:
        """Synchronise with the device and raise if a row has no result.

        Raises:
            UserError: NaN or +inf in the inputs, an old policy without probability mass, a bound below 0.
        """
        if self.status is not None and self.status.any():
            place = [int(index) for index in self.status.nonzero()[0]]
            where = f" (first at row {', '.join(map(str, place))})" if place else ""
            raise UserError(f"project: {_REFUSALS[int(self.status[tuple(place)])]}{where}")


@dataclass
class _Report:
    """Per-row results [N] of the autograd function besides its differentiable output."""

    step_size: Tensor
    kl_before: Tensor
    kl_after: Tensor
    active: Tensor
    feasible: Tensor
    evaluations: Tensor
    residual: Tensor


class _ProjectRows(torch.autograd.Function):
    """Projection of the rows of [N, atoms] with the closed-form backward of the module docstring."""

    @staticmethod
    def forward(
        ctx: Any, log_q: Tensor, log_p: Tensor, bound: Tensor, tolerance: float, box: list[_Report]
    ) -> Tensor:
        """Solve the rows outside their ball, copy the others, and append the report to `box`."""
        out_dtype, wide = result_dtype(log_q, log_p), wide_dtype(log_q.device)
        rows = log_q.shape[0]
        kl_before = log_q.new_empty(rows, dtype=wide)
        for piece in row_chunks(*log_q.shape):
            kl_before[piece] = kl_terms(log_q[piece].to(wide), log_p[piece].to(wide)).sum(-1)
        if bool(kl_before.isnan().any()):
            raise UserError("project: NaN or +inf in log_probs or old_log_probs; give log-probabilities")
        active = kl_before > bound
        index = active.nonzero().squeeze(-1)
        report = _Report(
            step_size=torch.ones_like(kl_before),
            kl_before=kl_before,
            kl_after=kl_before.clone(),
            active=active,
            feasible=torch.ones_like(active),
            evaluations=torch.zeros(rows, dtype=torch.int64, device=log_q.device),
            residual=torch.zeros_like(kl_before),
        )
        out = log_q.to(out_dtype, copy=True)
        ctx.index, ctx.saved_pieces, ctx.input_dtype = index, [], log_q.dtype
        saved: list[Tensor] = []
        for piece in row_chunks(index.shape[0], log_q.shape[1]):
            chosen = index[piece]
            solved = solve_steps(log_q[chosen].to(wide), log_p[chosen].to(wide), bound[chosen], tolerance)
            rounded = solved.log_pi.to(out_dtype)
            out[chosen] = rounded
            report.step_size[chosen] = solved.step_size
            report.kl_after[chosen] = kl_terms(rounded.to(wide), solved.log_p).sum(-1)
            report.feasible[chosen] = solved.feasible
            report.evaluations[chosen] = solved.evaluations
            report.residual[chosen] = solved.residual
            saved += [rounded, solved.deviation.to(out_dtype), solved.step_size, solved.inverse_variance]
            ctx.saved_pieces.append(piece)
        ctx.save_for_backward(*saved)
        box.append(report)
        return out

    @staticmethod
    @differentiable_once("project")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return beta [ g - pi G - pi (r - m) C / v ] for active rows, g for the others."""
        result = grad.to(ctx.input_dtype, copy=True)
        for number, piece in enumerate(ctx.saved_pieces):
            log_pi, deviation, step_size, inverse_variance = ctx.saved_tensors[4 * number : 4 * number + 4]
            chosen = ctx.index[piece]
            pi = log_pi.to(step_size.dtype).exp()
            # Atoms outside the common support have log pi = -inf, independent of q.
            upstream = grad[chosen].to(step_size.dtype).masked_fill_(pi == 0, 0.0)
            deviation = deviation.to(step_size.dtype)
            total = upstream.sum(-1, keepdim=True)
            covariance = (upstream * deviation).sum(-1, keepdim=True) * inverse_variance.unsqueeze(-1)
            upstream -= pi * (total + deviation * covariance)
            result[chosen] = (upstream * step_size.unsqueeze(-1)).to(result.dtype)
        return result, None, None, None, None


def _bound_rows(kl_bound: float | Tensor, shape: torch.Size, like: Tensor) -> Tensor:
    """The bound as one value per row, [N], in the solver's type."""
    wide = wide_dtype(like.device)
    bound = torch.as_tensor(kl_bound, dtype=wide, device=like.device).detach()
    if not bool((bound >= 0).all()):
        worst = float(bound[~(bound >= 0)].flatten()[0])
        raise _bad_bound(worst)
    return _expanded(bound, shape)


def _bound_rows_without_wait(kl_bound: float | Tensor, shape: torch.Size, like: Tensor) -> Tensor:
    """The bound as [N], or [1] for a number. The kernel checks tensors: a check here would synchronise."""
    if not isinstance(kl_bound, int | float):
        return _expanded(torch.as_tensor(kl_bound).detach().to(like.device, torch.float64), shape)
    if not kl_bound >= 0:
        raise _bad_bound(kl_bound)
    return like.new_full((1,), kl_bound, dtype=torch.float64)  # copying a number would synchronise


def _bad_bound(worst: float) -> UserError:
    return UserError(f"project: {_REFUSALS[3]}, got {worst:g}")


def _expanded(bound: Tensor, shape: torch.Size) -> Tensor:
    try:
        return bound.expand(shape).reshape(-1)
    except RuntimeError:
        raise UserError(
            f"project: kl_bound must be a number or a tensor of the batch shape {tuple(shape)}, "
            f"got shape {tuple(bound.shape)}"
        ) from None


def _pair_of_atoms(new: Tensor | SparseLogProbs, old: Tensor | SparseLogProbs) -> tuple[Tensor, Tensor]:
    """Both policies as atoms [..., A] on the same tokens."""
    if isinstance(new, SparseLogProbs) != isinstance(old, SparseLogProbs):
        raise UserError("project: log_probs and old_log_probs must both be tensors or both be SparseLogProbs")
    if isinstance(new, SparseLogProbs) and isinstance(old, SparseLogProbs):
        require_equal(
            new.token_ids,
            old.token_ids,
            "project: the two SparseLogProbs keep different tokens; evaluate the new policy on the old "
            "policy's token_ids, or align them with troll.algorithms.distributions.align",
        )
        return new.atoms(), old.atoms()
    assert isinstance(new, Tensor) and isinstance(old, Tensor)
    if new.shape != old.shape or new.dim() == 0:
        raise UserError(
            f"project: log_probs and old_log_probs must have the same shape [..., V], "
            f"got {tuple(new.shape)} and {tuple(old.shape)}"
        )
    return new, old


def _takes_kernel(device: torch.device, width: int, backend: Backend) -> bool:
    kernel = takes_triton(device, backend)
    if kernel and width > MAX_ATOMS:
        if backend == "triton":
            raise UserError(f"project: backend triton takes rows of at most {MAX_ATOMS} atoms, got {width}")
        return False
    return kernel


@overload
def project(
    log_probs: Tensor,
    old_log_probs: Tensor,
    kl_bound: float | Tensor,
    *,
    tolerance: float | None = None,
    backend: Backend = "auto",
) -> Projection[Tensor]: ...
@overload
def project(
    log_probs: SparseLogProbs,
    old_log_probs: SparseLogProbs,
    kl_bound: float | Tensor,
    *,
    tolerance: float | None = None,
    backend: Backend = "auto",
) -> Projection[SparseLogProbs]: ...
def project(
    log_probs: Tensor | SparseLogProbs,
    old_log_probs: Tensor | SparseLogProbs,
    kl_bound: float | Tensor,
    *,
    tolerance: float | None = None,
    backend: Backend = "auto",
) -> Projection[Tensor] | Projection[SparseLogProbs]:
    """Project each row of the new policy onto the KL ball around the old policy.

    Differentiable once in `log_probs`, by the closed form of the module docstring; create_graph=True raises.
    `old_log_probs` and `kl_bound` are constants. Half-precision inputs give float32 results.

    Args:
        log_probs: q, normalised log-probabilities, dense [..., V] or sparse [..., K]. -inf is allowed.
        old_log_probs: p, of the same kind and on the same tokens. Normalised where q is outside the ball, so
            a normalisation error of p cannot make the ball empty.
        kl_bound: eps >= 0 in nats, a number or a tensor that broadcasts to the batch shape; inf disables the
            projection. The paper uses 0.05.
        tolerance: relative width of the accepted interval [eps (1 - tolerance), eps], in [0, 0.5]. Default:
            1e-10 for float64 inputs, 2e-5 otherwise.
        backend: plain torch, or one Triton kernel per direction without synchronisation; "auto" uses Triton
            on CUDA if it is installed, for rows of up to 2,048 atoms.

    Returns:
        The projected policy and the solver's report.

    Raises:
        UserError: NaN or +inf in the inputs, a negative or NaN bound, a tolerance out of range, shapes or
            supports that disagree, or an unavailable backend. The Triton kernels do not raise for values on
            the device: rows with NaN or +inf, without old probability mass or with a negative bound in a
            tensor become NaN, and `Projection.check` raises for them.
    """
    new, old = _pair_of_atoms(log_probs, old_log_probs)
    projection = _project_atoms(new, old, kl_bound, tolerance, backend)
    if isinstance(log_probs, SparseLogProbs):
        rows = {**vars(projection), "log_probs": log_probs.with_atoms(projection.log_probs)}
        return Projection(**rows)
    return projection


def _project_atoms(
    new: Tensor,
    old: Tensor,
    kl_bound: float | Tensor,
    tolerance: float | None,
    backend: Backend,
) -> Projection[Tensor]:
    shape, width, dtype = new.shape[:-1], new.shape[-1], result_dtype(new, old)
    if tolerance is None:
        tolerance = 1e-10 if torch.float64 in (new.dtype, old.dtype) else 2e-5
    if not 0.0 <= tolerance <= 0.5:
        raise UserError(f"project: tolerance is {tolerance!r}, must be a number in [0, 0.5]")
    inputs = new.reshape(-1, width), old.detach().reshape(-1, width)
    box: list[Any] = []
    if _takes_kernel(new.device, width, backend):
        from troll.algorithms.triton_projection import ProjectRows

        bound = _bound_rows_without_wait(kl_bound, shape, new)
        rows = ProjectRows.apply(*inputs, bound, tolerance, box)  # type: ignore[no-untyped-call]
    else:
        bound = _bound_rows(kl_bound, shape, new)
        rows = _ProjectRows.apply(*inputs, bound, tolerance, box)  # type: ignore[no-untyped-call]

    def per_row(value: Tensor) -> Tensor:
        return (value.to(dtype) if value.is_floating_point() else value).reshape(shape)

    values = {name: per_row(value) for name, value in vars(box[0]).items()}
    if "eta" not in values:
        values["eta"] = per_row(1.0 / box[0].step_size - 1.0)
    return Projection(log_probs=rows.reshape(new.shape), **values)
