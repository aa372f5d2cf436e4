"""Accuracy of the sparse approximation: projected log-probs, KL and policy gradient, sparse against dense.

The sparse path keeps at most K tokens of the old policy and pools the rest; the dense path keeps all V. Both
project the same pairs of policies (`troll.algorithms.projection`) in float64, so that they differ only in the
sparsification. Inside the trust region both give the same gradient; errors come from tokens outside it, and
from the few that the coarser KL classifies as inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from approximation_figure import annotate, approximation_figure
from troll.algorithms.distributions import kl, on_support, sparsify, tail_gap_bound
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.projection import Projection, project
from troll.analysis.render.formats import write_table
from troll.analysis.render.style import write_figure
from troll.common.errors import UserError
from troll.common.seeding import derive_seed

KEEPS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
DROPPED_MASSES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
_BLOCK_ROWS = 8


@dataclass(frozen=True)
class Pairs:
    """Old and new policies at N tokens.

    Attributes:
        old: [N, V] log-probs.
        new: [N, V] log-probs.
        labels: [N] tokens sampled from the old policy.
    """

    old: Tensor
    new: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        """Raises `UserError` if the shapes do not match."""
        if self.old.dim() != 2 or self.new.shape != self.old.shape or self.labels.shape != self.old.shape[:1]:
            raise UserError(
                f"approximation: old {tuple(self.old.shape)}, new {tuple(self.new.shape)} and labels "
                f"{tuple(self.labels.shape)} must be [N, V], [N, V] and [N]"
            )


def zipf_pairs(
    rows: int = 32,
    vocab: int = 151_936,
    *,
    exponents: tuple[float, float] = (1.0, 3.0),
    log_ratios: tuple[float, float] = (0.2, 2.0),
    seed: int = 0,
) -> Pairs:
    """Makes old policies p_i ~ 1 / rank^a over a shuffled vocabulary, and new ones with normal log-ratios.

    The exponents are evenly spaced from a = 1 (flat: 64 tokens hold 38 % of V = 151,936) to a = 3 (peaked:
    all but 1e-4), the standard deviations of the log-ratios evenly in logarithm. Most rows are outside a
    trust region of 0.05, where the approximation matters.
    """
    random = torch.Generator().manual_seed(derive_seed(purpose="approximation", seed=seed))
    share = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    exponent = exponents[0] + share * (exponents[1] - exponents[0])
    ranks = torch.arange(1, vocab + 1, dtype=torch.float64).log()
    places = torch.stack([torch.randperm(vocab, generator=random) for _ in range(rows)])
    old = (-exponent.unsqueeze(1) * ranks).log_softmax(-1).gather(1, places)
    order = torch.randperm(rows, generator=random)
    spread = log_ratios[0] * (log_ratios[1] / log_ratios[0]) ** share[order]
    moved = torch.randn(rows, vocab, generator=random, dtype=torch.float64) * spread.unsqueeze(1)
    labels = torch.multinomial(old.exp(), 1, generator=random).squeeze(1)
    return Pairs(old, (old + moved).log_softmax(-1), labels)


def approximation_errors(
    pairs: Pairs,
    *,
    keeps: Sequence[int] = KEEPS,
    dropped_masses: Sequence[float] = DROPPED_MASSES,
    kl_bound: float = 0.05,
) -> pd.DataFrame:
    """Returns the errors of the sparse path for every combination of ``keep`` and ``dropped_mass``.

    Returns:
        One row per combination: ``kept`` and ``tail`` (mean number of tokens kept and mass dropped by the old
        policy); ``kl_error`` and ``kl_error_max`` (dense minus sparse KL(q || p), never negative) and
        ``kl_bound_ratio`` (the largest error over its bound `tail_gap_bound`, at most 1);
        ``log_prob_error`` and ``log_prob_error_max`` (projected log-probs of the kept tokens, mean under
        the projected policy, then mean and maximum over rows); ``gradient_cosine`` and ``gradient_norm``
        (of the policy gradient in all logits of all rows, and its norm over the dense one),
        ``gradient_cosine_min`` (worst row); ``outside`` (share of rows projected by the dense path) and
        ``disagree`` (share of rows that only one of the two paths projects).
    """
    pieces: dict[tuple[int, float], list[pd.DataFrame]] = {}
    for start in range(0, pairs.labels.shape[0], _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        block = Pairs(pairs.old[rows].double(), pairs.new[rows].double(), pairs.labels[rows])
        # Alternating advantages, so that terms of both signs are summed.
        advantages = 1.0 - 2.0 * (torch.arange(start, start + len(block.labels)) % 2).double()
        dense = _Dense(block, advantages, kl_bound)
        for keep in keeps:
            for dropped_mass in dropped_masses:
                errors = dense.compare(keep, dropped_mass)
                pieces.setdefault((keep, dropped_mass), []).append(errors)
    rows_of = ((key, pd.concat(frames, ignore_index=True)) for key, frames in pieces.items())
    return pd.DataFrame(
        [{"keep": keep, "dropped_mass": mass, **_summary(rows)} for (keep, mass), rows in rows_of]
    )


class _Dense:
    """The dense path of a few rows, and its comparison with sparse paths."""

    def __init__(self, pairs: Pairs, advantages: Tensor, kl_bound: float) -> None:
        self._pairs, self._advantages, self._kl_bound = pairs, advantages, kl_bound
        self._kl = kl_divergence(pairs.new, pairs.old)
        logits = pairs.new.clone().requires_grad_()
        self._projection = project(logits.log_softmax(-1), pairs.old, kl_bound)
        sampled = self._projection.log_probs.gather(1, pairs.labels.unsqueeze(1)).squeeze(1)
        (self._gradient,) = torch.autograd.grad(self._loss(sampled), logits)

    def _loss(self, projected: Tensor) -> Tensor:
        old = self._pairs.old.gather(1, self._pairs.labels.unsqueeze(1)).squeeze(1)
        return -(self._advantages * (projected - old).exp()).sum()

    def compare(self, keep: int, dropped_mass: float) -> pd.DataFrame:
        """Returns the errors of each row."""
        pairs = self._pairs
        old = sparsify(pairs.old, keep, dropped_mass, pairs.labels, normalised=True)
        logits = pairs.new.clone().requires_grad_()
        new = on_support(logits, old.token_ids)
        sparse = project(new, old, self._kl_bound)
        used = old.token_ids >= 0
        slot = (old.token_ids == pairs.labels.unsqueeze(1)).int().argmax(1, keepdim=True)
        (gradient,) = torch.autograd.grad(
            self._loss(sparse.log_probs.log_probs.gather(1, slot).squeeze(1)), logits
        )
        here = sparse.log_probs.log_probs.detach()
        there = self._projection.log_probs.detach().gather(1, old.token_ids.clamp(min=0))
        difference = (here - there).masked_fill(~used, 0.0).abs() * there.exp()
        ratio = pairs.new - pairs.old
        kept = torch.zeros_like(ratio, dtype=torch.int32).scatter_add_(
            1, old.token_ids.clamp(min=0), used.int()
        )
        width = ratio.masked_fill(kept > 0, -torch.inf).amax(1) - ratio.masked_fill(kept > 0, torch.inf).amin(
            1
        )
        values = {
            "kept": used.sum(1).double(),
            "tail": old.tail_log_prob.exp(),
            "kl_error": self._kl - kl(new, old).detach(),
            "bound": tail_gap_bound(new.tail_log_prob.detach(), width.clamp(min=0.0)),
            "log_prob_error": difference.sum(1),
            "dot": (gradient * self._gradient).sum(1),
            "square": gradient.square().sum(1),
            "dense_square": self._gradient.square().sum(1),
            "outside": _active(self._projection),
            "disagree": _active(self._projection) != _active(sparse),
        }
        return pd.DataFrame({name: value.detach().double().numpy() for name, value in values.items()})


def _active(projection: Projection[Tensor] | Projection) -> Tensor:  # type: ignore[type-arg]
    return projection.active


def _summary(rows: pd.DataFrame) -> dict[str, float]:
    # Rounding leaves differences of 1e-15 where nothing is dropped.
    error, bound = rows["kl_error"].clip(lower=0.0), rows["bound"] + 1e-12
    norms = (rows["square"] * rows["dense_square"]).pow(0.5)
    cosine = (rows["dot"] / norms).where(norms > 1e-30, 1.0)
    squares = rows[["square", "dense_square"]].sum()
    return {
        "kept": rows["kept"].mean(),
        "tail": rows["tail"].mean(),
        "kl_error": error.mean(),
        "kl_error_max": error.max(),
        "kl_bound_ratio": (error / bound).max(),
        "log_prob_error": rows["log_prob_error"].mean(),
        "log_prob_error_max": rows["log_prob_error"].max(),
        "gradient_cosine": rows["dot"].sum() / (squares["square"] * squares["dense_square"]) ** 0.5,
        "gradient_cosine_min": cosine.min(),
        "gradient_norm": (squares["square"] / squares["dense_square"]) ** 0.5,
        "outside": rows["outside"].mean(),
        "disagree": rows["disagree"].mean(),
    }


def draw_again(out: Path) -> None:
    """Redraws the figure in a directory from its ``approximation.csv``.

    Raises:
        UserError: there is no such table.
    """
    path = out / "approximation.csv"
    try:
        errors = pd.read_csv(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the command without --redraw first") from None
    write_figure(approximation_figure(errors), out / "approximation")


def run_approximation(out: Path, pairs: Pairs | None = None, *, kl_bound: float = 0.05) -> pd.DataFrame:
    """Writes ``approximation.csv`` (with .md) and the figure ``approximation.png``.

    Args:
        out: output directory.
        pairs: old and new policies; by default Zipf-like ones.
        kl_bound: KL bound of the projection.
    """
    source = "given policies" if pairs else "Zipf-like policies"
    pairs = pairs or zipf_pairs()
    errors = approximation_errors(pairs, kl_bound=kl_bound)
    rows, vocab = pairs.old.shape
    conditions = (
        f"Sparse against dense on {rows} {source}, V = {vocab:,}, KL bound {kl_bound}; "
        f"{100 * errors['outside'].iloc[0]:.0f} % of the rows are outside it."
    )
    write_table(annotate(errors, conditions), out / "approximation")
    write_figure(approximation_figure(errors), out / "approximation")
    return errors
