"""The registry of trust regions: names, settings, and the object a trainer holds.

A rule is one function

    rule(new, old, advantages, mask, *, setting=default, ...) -> TokenLosses

and one `register` line. Its keyword-only parameters are its settings. A parameter named `context` (the fifth)
asks for the rewards of each prompt's group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

import torch
from torch import Tensor

from troll.algorithms._names import check_settings, keyword_settings, nearest
from troll.algorithms.aggregation import check_aggregation
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.trust_regions.types import (
    GroupContext,
    TokenLosses,
    TokenPolicy,
    compared_rows,
    log_ratio,
)
from troll.errors import UserError

Rule = Callable[..., TokenLosses]


class Controller(Protocol):
    """Moves settings of a rule between optimiser steps."""

    def values(self) -> dict[str, float]:
        """The settings as they are now, by name."""
        ...

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Learn from the means of one optimiser step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        ...


@dataclass(frozen=True)
class Setting:
    """One setting of a rule: default, type as text, and the allowed values if they are a fixed few."""

    default: Any
    type: str
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class RuleInfo:
    """What is known of a registered rule.

    Attributes:
        name: the name users write.
        rule: the function.
        summary: first line of its docstring.
        settings: by name, with defaults and types, those of the controller included.
        needs_distribution: whether new and old distributions must be given.
        needs_context: whether a `GroupContext` must be given.
        aggregation: the aggregation the rule insists on; None leaves it to the estimator or the user.
        reconstruction: True where the published formulas were not available and the rule is our reading.
        controller: makes the controller from its settings; None for rules with fixed settings.
    """

    name: str
    rule: Rule
    summary: str
    settings: Mapping[str, Setting]
    needs_distribution: bool
    needs_context: bool
    aggregation: str | None
    reconstruction: bool
    controller: Callable[..., Controller] | None = field(repr=False, default=None)


_REGISTRY: dict[str, RuleInfo] = {}


class _Registry(Mapping[str, RuleInfo]):
    """A read-only view of the registered rules."""

    def __getitem__(self, name: str) -> RuleInfo:
        return _REGISTRY[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_REGISTRY)

    def __len__(self) -> int:
        return len(_REGISTRY)


TRUST_REGIONS: Mapping[str, RuleInfo] = _Registry()


def _setting(parameter: inspect.Parameter, default: Any) -> Setting:
    annotation = parameter.annotation
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
    choices = get_args(annotation) if text.startswith("Literal") else ()
    return Setting(default, text, choices)


def register(
    name: str,
    rule: Rule,
    *,
    needs_distribution: bool = False,
    aggregation: str | None = None,
    reconstruction: bool = False,
    controller: Callable[..., Controller] | None = None,
    **defaults: Any,
) -> None:
    """Make a rule known under a name.

    Args:
        name: the name users write.
        rule: see the module docstring.
        needs_distribution: whether the rule reads `TokenPolicy.distribution`.
        aggregation: one of `AGGREGATIONS` if the rule is only itself under that one.
        reconstruction: see `RuleInfo`.
        controller: a class with keyword-only settings; the settings it moves are no longer the user's.
        **defaults: defaults that differ from the function's.
    """
    parameters = keyword_settings(rule)
    check_settings(f"register({name!r})", defaults, parameters)
    settings = {key: _setting(p, defaults.get(key, p.default)) for key, p in parameters.items()}
    if controller is not None:
        settings |= {key: _setting(p, p.default) for key, p in keyword_settings(controller).items()}
    _REGISTRY[name] = RuleInfo(
        name=name,
        rule=rule,
        summary=(inspect.getdoc(rule) or "").partition("\n")[0],
        settings=settings,
        needs_distribution=needs_distribution,
        needs_context="context" in inspect.signature(rule).parameters,
        aggregation=None if aggregation is None else check_aggregation(aggregation),
        reconstruction=reconstruction,
        controller=controller,
    )


class TrustRegion:
    """A rule with its settings: what the trainer calls on every micro-batch.

    Attributes:
        name: registered name.
        info: the registry entry.
        settings: all settings, defaults filled in.
    """

    def __init__(self, info: RuleInfo, settings: Mapping[str, Any]) -> None:
        self.info = info
        self.name = info.name
        self.settings: dict[str, Any] = {key: s.default for key, s in info.settings.items()} | dict(settings)
        self._controller: Controller | None = None
        if info.controller is not None:
            own = keyword_settings(info.controller)
            self._controller = info.controller(**{key: self.settings[key] for key in own})
        self._rule_settings = keyword_settings(info.rule)

    @property
    def needs_distribution(self) -> bool:
        """Whether new and old policy must come with their distributions."""
        return self.info.needs_distribution

    @property
    def needs_context(self) -> bool:
        """Whether a `GroupContext` must be given."""
        return self.info.needs_context

    @property
    def aggregation(self) -> str | None:
        """The aggregation the rule insists on, if any."""
        return self.info.aggregation

    def current_settings(self) -> dict[str, Any]:
        """The rule's settings as they are now, moved ones included."""
        settings = {key: self.settings[key] for key in self._rule_settings if key in self.settings}
        return settings | (self._controller.values() if self._controller else {})

    def __call__(
        self,
        new: TokenPolicy,
        old: TokenPolicy,
        advantages: Tensor,
        mask: Tensor,
        context: GroupContext | None = None,
    ) -> TokenLosses:
        """Per-token losses [B, T] with the rule's own and the common metrics.

        Common metrics, each [B, T], the same measure for every rule: `ratio` new / old of the sampled token,
        `log_ratio_abs`, `outside` (1 where the rule clipped, masked or projected), `kl_to_old_sampled` (an
        unbiased estimate of KL(new || old) from the sampled token: r log r - r + 1), and with distributions
        `kl_to_old` (exact KL(new || old) on the kept tokens and the tail) and `kept_mass` (mass of the kept
        tokens under the old policy).

        Args:
            new: policy being trained.
            old: policy that sampled; constant.
            advantages: [B, T]; constant.
            mask: [B, T], 1 at response tokens.
            context: rewards of each prompt's group, for the rules that need it.

        Raises:
            UserError: the rule needs distributions or a context that are not given.
        """
        if self.needs_distribution and (new.distribution is None or old.distribution is None):
            raise UserError(
                f"trust region {self.name!r} needs the distributions of the new and the old policy"
            )
        keep = mask.bool()
        weights = advantages.detach().masked_fill(~keep, 0.0)
        arguments: tuple[Any, ...] = (new, old, weights, keep)
        if self.needs_context:
            if context is None:
                raise UserError(
                    f"trust region {self.name!r} needs the rewards of each prompt's group (context)"
                )
            arguments += (context,)
        losses = self.info.rule(*arguments, **self.current_settings())
        with torch.no_grad():
            return losses.with_metrics(**self._common_metrics(new, old, keep, losses.metrics))

    @staticmethod
    def _common_metrics(
        new: TokenPolicy, old: TokenPolicy, keep: Tensor, known: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        difference = log_ratio(new, old, keep)
        ratio = difference.exp()
        metrics = {
            "ratio": ratio.masked_fill(~keep, 0.0),
            "log_ratio_abs": difference.abs(),
            "kl_to_old_sampled": (ratio * (difference - 1.0) + 1.0).masked_fill(~keep, 0.0),
            "outside": torch.zeros_like(ratio),
        }
        if new.distribution is not None and old.distribution is not None:
            metrics["kept_mass"] = kept_mass(old.distribution, keep)
            if "kl_to_old" not in known:
                rows = kl_divergence(compared_rows(new, keep).atoms(), compared_rows(old, keep).atoms())
                metrics["kl_to_old"] = scatter_rows(rows, keep)
        return metrics

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Tell an adaptive rule the means of one optimiser step; others ignore it."""
        if self._controller is not None:
            self._controller.after_step(metrics)

    def state_dict(self) -> dict[str, Any]:
        """State of the adaptive settings; empty for rules without."""
        return {} if self._controller is None else self._controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        if self._controller is not None:
            self._controller.load_state_dict(state)


def scatter_rows(rows: Tensor, keep: Tensor) -> Tensor:
    """Values [M] of the positions where keep [B, T] is true, back in their places; 0 elsewhere."""
    return rows.new_zeros(keep.shape).masked_scatter(keep, rows)


def kept_mass(old: SparseLogProbs, keep: Tensor) -> Tensor:
    """Mass of the kept tokens, 1 - exp(tail), [B, T]; 0 where masked."""
    return (-torch.expm1(old.tail_log_prob.detach().clamp(max=0.0))).masked_fill(~keep, 0.0)


def make_trust_region(name: str, **settings: Any) -> TrustRegion:
    """A registered rule with settings.

    Raises:
        UserError: unknown name, unknown setting, or a value outside the setting's choices.
    """
    if name not in TRUST_REGIONS:
        raise UserError(f"trust region: unknown name {name!r}{nearest(name, TRUST_REGIONS)}")
    info = TRUST_REGIONS[name]
    check_settings(f"trust region {name!r}", settings, info.settings)
    for key, value in settings.items():
        choices = info.settings[key].choices
        if choices and value not in choices:
            raise UserError(
                f"trust region {name!r}: {key}={value!r} is not one of {', '.join(map(repr, choices))}"
            )
    return TrustRegion(info, settings)
