"""Estimators of KL(pi || ref) from sampled tokens, and the controller of their coefficient.

With x = log pi(a) - log ref(a) for a token a sampled from pi:

    k1 = x,    k2 = x^2 / 2,    k3 = exp(-x) - 1 + x.

As estimates, k1 and k3 are unbiased for KL(pi || ref), and k2 is biased in second order. As losses on the
sampled token, their expected gradients are 0 for k1, grad KL(pi || ref) for k2 and grad KL(ref || pi) for k3.
So k1 should be used in the reward (where it has the correct gradient), k2 or k3 in the loss. "k1+" and "k3+"
are straight-through: the value of k1 or k3 with the gradient of k2.

Source: verl, core_algos.py (kl_penalty), and Schulman's note on approximating KL divergence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from troll.algorithms.backends import result_dtype
from troll.common.errors import UserError, unknown

REGULARISERS = ("k1", "k2", "k3", "k1+", "k3+")
# As in verl: -x is clamped to +-20 before the exponential, k3 to at most 10.
LOG_LIMIT, K3_LIMIT = 20.0, 10.0


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, name: str = "k3") -> Tensor:
    """Estimate KL(pi || ref) at each sampled token, [B, T]; 0 at masked positions, which are ignored.

    Args:
        log_probs: [B, T] of the policy being trained; differentiable.
        ref_log_probs: [B, T] of the frozen reference; constant.
        mask: [B, T], 1 at response tokens.
        name: one of `REGULARISERS`.

    Raises:
        UserError: unknown name.
    """
    if name not in REGULARISERS:
        raise UserError(unknown("KL regulariser", name, REGULARISERS))
    masked, dtype = ~mask.bool(), result_dtype(log_probs, ref_log_probs)
    new = log_probs.masked_fill(masked, 0.0).to(dtype)
    x = new - ref_log_probs.detach().masked_fill(masked, 0.0).to(dtype)
    if name == "k1":
        return x
    half_square = 0.5 * x.square()
    if name == "k2":
        return half_square
    bounded = x.clamp(-LOG_LIMIT, LOG_LIMIT)
    value = x if name == "k1+" else (torch.exp(-bounded) - 1.0 + bounded).clamp(max=K3_LIMIT)
    if name == "k3":
        return value
    return half_square + (value - half_square).detach()


class ReferenceKLController:
    """Adapts the coefficient of the KL to the reference to keep the KL near a target.

    Source: Ziegler et al., arXiv 1909.08593, as in verl (AdaptiveKLController; coefficient 1e-3, target 0.1,
    horizon 10000, off by default). This KL measures the drift from the reference; the KL of a single update
    to the sampling policy is controlled by the trust regions.

    Args:
        coefficient: initial value.
        target: nats per token.
        horizon: number of samples over which the coefficient adapts.
        adaptive: whether the coefficient adapts.
    """

    def __init__(
        self,
        *,
        coefficient: float = 1e-3,
        target: float = 0.1,
        horizon: float = 10000.0,
        adaptive: bool = False,
    ) -> None:
        self.coefficient, self.target, self.horizon = float(coefficient), float(target), float(horizon)
        self.adaptive = adaptive

    def after_step(self, kl: float, samples: int) -> None:
        """Multiply the coefficient by 1 + clip(kl / target - 1, +-0.2) samples / horizon.

        Args:
            kl: measured mean KL to the reference, nats per token.
            samples: responses since the last call.
        """
        if self.adaptive:
            error = min(max(kl / self.target - 1.0, -0.2), 0.2)
            self.coefficient *= 1.0 + error * samples / self.horizon

    def state_dict(self) -> dict[str, Any]:
        """The coefficient."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved coefficient."""
        self.coefficient = float(state["coefficient"])
