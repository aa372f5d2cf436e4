"""The registry of advantage estimators: names, settings, and the object a trainer holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troll.algorithms._names import check_settings, keyword_settings, nearest
from troll.algorithms.advantages.critic import RunningMoments
from troll.algorithms.advantages.types import Advantages, RewardBatch
from troll.algorithms.divergences import wide_dtype
from troll.errors import UserError


@dataclass(frozen=True)
class EstimatorInfo:
    """What is known of a registered estimator.

    Attributes:
        name: the name users write.
        function: see the module docstring.
        summary: first line of its docstring.
        settings: default of each setting.
        aggregation: the aggregation that belongs to it, if any.
        needs_values: whether it needs a critic.
        needs_greedy: whether it needs the reward of a greedy response per prompt.
        uses_groups: whether its baseline is the group, so that groups of one make no sense.
    """

    name: str
    function: Callable[..., Advantages]
    summary: str
    settings: Mapping[str, Any]
    aggregation: str | None = None
    needs_values: bool = False
    needs_greedy: bool = False
    uses_groups: bool = False


_REGISTRY: dict[str, EstimatorInfo] = {}


class _Registry(Mapping[str, EstimatorInfo]):
    """A read-only view of the registered estimators."""

    def __getitem__(self, name: str) -> EstimatorInfo:
        return _REGISTRY[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_REGISTRY)

    def __len__(self) -> int:
        return len(_REGISTRY)


ESTIMATORS: Mapping[str, EstimatorInfo] = _Registry()


def register(
    name: str,
    function: Callable[..., Advantages],
    *,
    aggregation: str | None = None,
    needs_values: bool = False,
    needs_greedy: bool = False,
    uses_groups: bool = False,
    **defaults: Any,
) -> None:
    """Make an estimator known under a name; `defaults` are settings that differ from the function's."""
    known = {key: p.default for key, p in keyword_settings(function).items()}
    check_settings(f"register({name!r})", defaults, known)
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    _REGISTRY[name] = EstimatorInfo(
        name, function, summary, known | defaults, aggregation, needs_values, needs_greedy, uses_groups
    )


class Estimator:
    """An estimator with its settings: what the trainer calls once per rollout batch.

    Attributes:
        name: registered name.
        info: the registry entry.
        settings: all settings, defaults filled in.
    """

    def __init__(self, info: EstimatorInfo, settings: Mapping[str, Any]) -> None:
        self.info, self.name = info, info.name
        self.settings: dict[str, Any] = {**info.settings, **settings}
        needs_moments = "moments" in inspect.signature(info.function).parameters
        self._moments = RunningMoments() if needs_moments else None

    @property
    def aggregation(self) -> str | None:
        """The aggregation that belongs to the estimator, if any."""
        return self.info.aggregation

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
            UserError: shapes disagree, a reward is not finite, or something the estimator needs is missing.
        """
        keep = mask.bool()
        given = {"rewards": (rewards, mask.shape[:1]), "groups": (groups, mask.shape[:1])}
        given |= {
            name: (value, shape)
            for name, value, shape in (
                ("values", values, mask.shape),
                ("token_rewards", token_rewards, mask.shape),
                ("greedy_rewards", greedy_rewards, mask.shape[:1]),
            )
            if value is not None
        }
        for name, (value, shape) in given.items():
            if value.shape != shape:
                raise UserError(
                    f"estimator {self.name!r}: {name} has shape {tuple(value.shape)}, not {tuple(shape)}"
                )
        if not bool(rewards.isfinite().all()):
            raise UserError(f"estimator {self.name!r}: rewards must be finite, got {rewards.tolist()}")
        wide = wide_dtype(rewards.device)

        def exact(value: Tensor) -> Tensor:
            return value.to(wide).masked_fill(~keep, 0.0)

        batch = RewardBatch(
            rewards=rewards.to(wide),
            groups=groups,
            mask=keep,
            values=None if values is None else exact(values),
            token_rewards=exact(rewards.new_zeros(mask.shape) if token_rewards is None else token_rewards),
            greedy_rewards=None if greedy_rewards is None else greedy_rewards.to(wide),
        )
        extra = () if self._moments is None else (self._moments,)
        result = self.info.function(batch, *extra, **self.settings)
        returns = None if result.returns is None else result.returns.float()
        return Advantages(result.advantages.float(), returns)

    def state_dict(self) -> dict[str, float]:
        """Running moments of the rewards, for estimators that keep them."""
        return {} if self._moments is None else dict(vars(self._moments))

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take up a saved state."""
        if self._moments is not None:
            vars(self._moments).update(state)


def make_estimator(name: str, **settings: Any) -> Estimator:
    """A registered estimator with settings.

    Raises:
        UserError: unknown name or setting.
    """
    if name not in ESTIMATORS:
        raise UserError(f"estimator: unknown name {name!r}{nearest(name, ESTIMATORS)}")
    check_settings(f"estimator {name!r}", settings, ESTIMATORS[name].settings)
    return Estimator(ESTIMATORS[name], settings)
