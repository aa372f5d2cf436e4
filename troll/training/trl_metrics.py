"""TRL's metrics of the loss: the share of clipped ratios, and in validation entropy and KL."""

from collections.abc import Mapping

import torch
from accelerate import Accelerator
from torch import Tensor

from troll.algorithms.trust_regions import TokenPolicy, TrustRegion
from troll.algorithms.trust_regions.types import log_ratio

TOKENS = ("clip", "ce-gppo", "clip-cov", "opsm")
RESPONSES = ("gspo-clip", "gspo-clip-tight", "luspo")
"""Rules whose ``epsilon_low`` and ``epsilon_high`` bound the ratios of tokens or of responses. Others report
what they cut as ``clip_fraction`` and under names of their own."""


class TrlMetrics:
    """Sums over the parts of an optimiser step or of a validation batch, across processes.

    ``clip_ratio/...`` are the shares of ratios beyond a bound on the side where clip has no gradient, as in
    TRL's GRPOTrainer: of tokens, or of responses for rules on their ratios. ``low_min`` and ``high_max`` are
    extremes over responses. TRL averages over the micro-batches of a step.
    """

    def __init__(self, trust_region: TrustRegion, accelerator: Accelerator) -> None:
        self._trust_region, self._accelerator = trust_region, accelerator
        self.reset()

    def reset(self) -> None:
        """Drops what has been added since the last `summary`."""
        self._sums: dict[str, Tensor] = {}  # [2] each: sum and count
        self._largest: dict[str, Tensor] = {}

    def add_means(self, metrics: Mapping[str, Tensor], mask: Tensor) -> None:
        """Adds metrics [B, T] that are averaged over the tokens of mask [B, T]."""
        for name, values in metrics.items():
            self._add(name, values.detach().where(mask.bool(), 0.0).sum(), mask.sum())

    def add_ratios(self, new: TokenPolicy, old: TokenPolicy, advantages: Tensor, mask: Tensor) -> None:
        """Adds a part's ratios, if the rule bounds them; advantages and mask are [B, T]."""
        name, settings = self._trust_region.name, self._trust_region.current_settings()
        ratio = log_ratio(new, old).detach()
        tokens = mask.sum(1, keepdim=True)
        if name == "cispo":
            capped = (ratio.exp() > settings["ratio_max"]) & (advantages > 0)
            self.add_means({"cispo_clip_ratio": capped.float()}, mask)
        if name not in (*TOKENS, *RESPONSES):
            return
        if name in RESPONSES:
            length = tokens.clamp(min=1)
            ratio, advantages = ((x * mask).sum(1, keepdim=True) / length for x in (ratio, advantages))
            mask = tokens = torch.ones_like(ratio)
        ratio = ratio.exp()
        low = ((ratio < 1 - settings["epsilon_low"]) & (advantages < 0)).float() * mask
        high = ((ratio > 1 + settings["epsilon_high"]) & (advantages > 0)).float() * mask
        for kind, cut in {"low": low, "high": high, "region": low + high}.items():
            self._add(f"clip_ratio/{kind}_mean", cut.sum(), mask.sum())
        on = tokens.squeeze(1) > 0
        for kind, cut, sign in (("low_min", low, -1.0), ("high_max", high, 1.0)):
            shares = (cut.sum(1) / tokens.squeeze(1).clamp(min=1)).where(on, torch.nan)
            extreme = (sign * shares).nan_to_num(nan=-torch.inf).max()
            known = self._largest.get(f"clip_ratio/{kind}", extreme)
            self._largest[f"clip_ratio/{kind}"] = torch.maximum(known, extreme)

    def _add(self, name: str, total: Tensor, count: Tensor) -> None:
        pair = torch.stack([total.double(), count.double()])
        self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def summary(self) -> dict[str, float]:
        """The metrics by TRL's names; resets the sums. Empty if there are none."""
        if not self._sums:
            return {}
        totals = self._accelerator.reduce(torch.stack(list(self._sums.values())), "sum")
        pairs = zip(self._sums, totals.tolist(), strict=True)
        found = {name: total / max(count, 1.0) for name, (total, count) in pairs}
        if self._largest:
            largest = self._accelerator.gather(torch.stack(list(self._largest.values())).unsqueeze(0)).amax(0)
            for name, value in zip(self._largest, largest.tolist(), strict=True):
                if value > -torch.inf:
                    found[name] = -value if name.endswith("low_min") else value
        self.reset()
        return found
