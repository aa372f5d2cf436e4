"""Diagnostics of every optimiser step, the same for all trust regions."""

from collections.abc import Callable, Mapping

import torch
from accelerate import Accelerator
from torch import Tensor

Report = Callable[[str, Tensor | float], None]
"""Adds a number to the log of the next optimiser step."""

# Extremes reported in addition to the mean over tokens: name of the metric, name in the log.
_LARGEST: Mapping[str, str] = {
    "kl_to_old": "kl_to_old_max",
    "ratio": "ratio_max",
    "kl_projected": "kl_projected_max",
    "kl_violation": "kl_violation_max",
    "solver_residual": "solver_residual_max",
}
_SMALLEST: Mapping[str, str] = {"kept_mass": "kept_mass_min"}
_LIMIT = torch.finfo(torch.float32).max
_RENAMED: Mapping[str, str] = {"ratio": "ratio_mean"}


class Diagnostics:
    """Means and extremes over the tokens of an optimiser step, across micro-batches and processes."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._sums: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._tokens: Tensor | None = None

    def add(self, metrics: Mapping[str, Tensor], mask: Tensor) -> None:
        """Adds a micro-batch: metrics [B, T], or [B] for one value per response, where mask [B, T] is 1."""
        on = mask.bool()
        tokens = on.sum().double()
        self._tokens = tokens if self._tokens is None else self._tokens + tokens
        for name, values in metrics.items():
            values = values.detach().double()
            values = (values.unsqueeze(1) if values.dim() == 1 else values).expand_as(mask)
            self._sums[name] = self._sums.get(name, tokens.new_zeros(())) + values.where(on, 0.0).sum()
            for extremes, sign in ((_LARGEST, 1.0), (_SMALLEST, -1.0)):
                if name in extremes:
                    extreme = (sign * values).where(on, -torch.inf).max()
                    label = extremes[name]
                    self._largest[label] = torch.maximum(self._largest.get(label, extreme), extreme)

    def summary(self) -> dict[str, float]:
        """Returns the step's diagnostics by name and resets the accumulator.

        Means over tokens have the metric's name (``ratio_mean`` for ``ratio``), extremes the suffix ``_max``
        or ``_min``. Empty for a step whose tokens are all masked. Overflows become the largest float32,
        because JSON has no infinity.
        """
        if self._tokens is None:
            return {}
        sums = self._accelerator.reduce(torch.stack([self._tokens, *self._sums.values()]), reduction="sum")
        if not sums[0]:
            self._sums, self._largest, self._tokens = {}, {}, None
            return {}
        means = (sums[1:] / sums[0]).clamp(-_LIMIT, _LIMIT).tolist()
        summary = {_RENAMED.get(name, name): value for name, value in zip(self._sums, means, strict=True)}
        if self._largest:
            gathered = self._accelerator.gather(torch.stack(list(self._largest.values())).unsqueeze(0))
            extremes = gathered.amax(0).clamp(-_LIMIT, _LIMIT)
            smallest = set(_SMALLEST.values())
            for name, value in zip(self._largest, extremes.tolist(), strict=True):
                summary[name] = -value if name in smallest else value
        self._sums, self._largest, self._tokens = {}, {}, None
        return summary
