"""The registry of advantage estimators: names, settings, and the `Estimator` object that a trainer calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troll.algorithms.advantages.critic import RunningMoments
from troll.algorithms.advantages.types import Advantages, RewardBatch
from troll.algorithms.backends import wide_dtype
from troll.algorithms.registry import Entry, Registry
from troll.common.errors import UserError


@dataclass(frozen=True)
class EstimatorInfo(Entry):
    """The registry entry of an estimator; see `Entry`.

    Attributes:
        needs_values: whether it needs a critic.
        needs_greedy: whether it needs the reward of a greedy response per prompt.
        uses_groups: whether its baseline is computed from the group, which requires groups of two or more.
    """

    needs_values: bool = False
    needs_greedy: bool = False
    uses_groups: bool = False


ESTIMATORS: Registry[EstimatorInfo] = Registry("estimator")


def register(
    name: str,
    function: Callable[..., Advantages],
    /,
    *,
    aggregation: str | None = None,
    needs_values: bool = False,
    needs_greedy: bool = False,
    uses_groups: bool = False,
    **defaults: Any,
) -> None:
    """Register an estimator under a name; `defaults` override the defaults of the function."""
    ESTIMATORS.add(
        EstimatorInfo,
        name,
        function,
        defaults=defaults,
        aggregation=aggregation,
        needs_values=needs_values,
        needs_greedy=needs_greedy,
        uses_groups=uses_groups,
    )


class Estimator:
    """An estimator with its settings; the trainer calls it once per rollout batch.

    Attributes:
        name: registered name.
        info: the registry entry.
        settings: all settings, as returned by `Registry.complete`.
    """

    def __init__(self, info: EstimatorInfo, settings: Mapping[str, Any]) -> None:
        self.info, self.name, self.settings = info, info.name, settings
        needs_moments = "moments" in inspect.signature(info.function).parameters
        self._moments = RunningMoments() if needs_moments else None

    @torch.no_grad()
    def __call__(
        self,
        rewards: Tensor,
        groups: Tensor,
        mask: Tensor,
        values: Tensor | None = None,
        token_rewards: Tensor | None = None,
        greedy_rewards: Tensor | None = None,
    ) -> Advantages:
        """Advantages of one rollout batch; see `RewardBatch` for the arguments (mask may be 0/1).

        Raises:
            UserError: shapes disagree, a reward is not finite, or a required input is missing.
        """
        mask = mask.bool()
        for name, value, shape in (
            ("rewards", rewards, mask.shape[:1]),
            ("groups", groups, mask.shape[:1]),
            ("values", values, mask.shape),
            ("token_rewards", token_rewards, mask.shape),
            ("greedy_rewards", greedy_rewards, mask.shape[:1]),
        ):
            if value is not None and value.shape != shape:
                raise UserError(
                    f"estimator {self.name!r}: {name} has shape {tuple(value.shape)}, not {tuple(shape)}"
                )
        if not bool(rewards.isfinite().all()):
            raise UserError(f"estimator {self.name!r}: rewards must be finite, got {rewards.tolist()}")
        wide = wide_dtype(rewards.device)

        def exact(value: Tensor) -> Tensor:
            return value.to(wide).masked_fill(~mask, 0.0)

        batch = RewardBatch(
            rewards=rewards.to(wide),
            groups=groups,
            mask=mask,
            values=None if values is None else exact(values),
            token_rewards=exact(rewards.new_zeros(mask.shape) if token_rewards is None else token_rewards),
            greedy_rewards=None if greedy_rewards is None else greedy_rewards.to(wide),
        )
        moments = () if self._moments is None else (self._moments,)
        result = self.info.function(batch, *moments, **self.settings)
        returns = None if result.returns is None else result.returns.float()
        return Advantages(result.advantages.float(), returns)

    def state_dict(self) -> dict[str, float]:
        """Running moments of the rewards; empty for estimators without them."""
        return {} if self._moments is None else dict(vars(self._moments))

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a saved state."""
        if self._moments is not None:
            vars(self._moments).update(state)


def make_estimator(name: str, /, **settings: Any) -> Estimator:
    """Create an `Estimator` from a registered name and settings.

    Raises:
        UserError: unknown name or setting, or a value that the setting does not allow.
    """
    return Estimator(ESTIMATORS.find(name), ESTIMATORS.complete(name, settings))
