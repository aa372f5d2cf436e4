"""The registry of trust regions: names, settings, and the `TrustRegion` object that a trainer calls.

A rule is a function

    rule(new, old, advantages, mask, *, setting=default, ...) -> TokenLosses

and a call of `register`. Its keyword-only parameters are its settings; their annotations define the allowed
values (see `troll.algorithms.ranges`). A parameter named `group_rewards` receives the rewards of each
prompt's group, a parameter named `step_tokens` all tokens of the optimiser step. Rules can ignore masking:
their inputs are empty at masked positions, and their outputs there are set to 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from troll.algorithms.backends import takes_triton
from troll.algorithms.divergences import kl_divergence
from troll.algorithms.registry import Entry, Registry
from troll.algorithms.trust_regions.metrics import check_metrics
from troll.algorithms.trust_regions.rule_files import load_rule
from troll.algorithms.trust_regions.types import (
    GroupRewards,
    Rule,
    StepTokens,
    TokenLosses,
    TokenPolicy,
    compared_rows,
    log_ratio,
    metric_rows,
)
from troll.common.errors import UserError
from troll.common.settings import keyword_settings
from troll.common.user_files import names_a_file


class Controller(Protocol):
    """Adapts settings of a rule between optimiser steps."""

    def values(self) -> dict[str, float]:
        """The current values of the adaptive settings, by name."""
        ...

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Adapt to the mean metrics of one optimiser step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume the run."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        ...


@runtime_checkable
class BatchController(Controller, Protocol):
    """A controller that is notified of the start of every rollout batch."""

    def start_batch(self) -> None:
        """Called at the start of a rollout batch."""
        ...


@runtime_checkable
class BatchStopper(BatchController, Protocol):
    """A controller that may end the updates on a rollout batch early."""

    @property
    def stopped(self) -> bool:
        """Whether the current and all later updates on this rollout batch are skipped."""
        ...


@dataclass(frozen=True)
class RuleInfo(Entry):
    """The registry entry of a rule; see `Entry`.

    Attributes:
        needs_distribution: whether the rule needs the distributions of the new and the old policy.
        needs_group_rewards: whether the rule needs `GroupRewards`.
        needs_step_tokens: whether the rule needs the `StepTokens` of the whole optimiser step.
        reconstruction: True if the published formulas were not available and the rule is our interpretation.
        controller: builds the controller from its settings; None for rules with fixed settings.
        fused: computes all that `TrustRegion` returns, masking and common metrics included, in fewer GPU
            kernel launches; returns None if it cannot.
    """

    needs_distribution: bool = False
    needs_group_rewards: bool = False
    needs_step_tokens: bool = False
    reconstruction: bool = False
    controller: Callable[..., Controller] | None = field(repr=False, default=None)
    fused: Callable[..., TokenLosses | None] | None = field(repr=False, default=None)


class _TrustRegions(Registry[RuleInfo]):
    """Rules by name. A rule in a user's file is loaded on access and not listed."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._in_files: dict[str, RuleInfo] = {}

    def __getitem__(self, name: str) -> RuleInfo:
        if name.endswith(".py"):
            raise UserError(f"trust region: {name} does not name a function; expected {name}:my_function")
        if not names_a_file(name):
            return super().__getitem__(name)
        rule, module = load_rule(name)
        entry = self._in_files.get(name)
        if entry is None or entry.function is not rule:  # the file or the working directory has changed
            distribution = bool(getattr(module, "NEEDS_DISTRIBUTION", False))
            register(name, rule, needs_distribution=distribution)
            entry = self._in_files[name] = self._entries.pop(name)
        return entry

    def complete(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """As `Registry.complete`; the controller also rejects incompatible settings."""
        completed = super().complete(name, settings)
        _controller(self.find(name), completed)
        return completed


def _controller(info: RuleInfo, settings: Mapping[str, Any]) -> Controller | None:
    """The controller of a rule; None for rules with fixed settings."""
    if info.controller is None:
        return None
    return info.controller(**{key: settings[key] for key in keyword_settings(info.controller)})


TRUST_REGIONS: Registry[RuleInfo] = _TrustRegions("trust region")


def register(
    name: str,
    rule: Rule,
    /,
    *,
    needs_distribution: bool = False,
    aggregation: str | None = None,
    reconstruction: bool = False,
    controller: Callable[..., Controller] | None = None,
    fused: Callable[..., TokenLosses | None] | None = None,
    **defaults: Any,
) -> None:
    """Register a rule under a name.

    Args:
        name: the name used in configurations.
        rule: see the module docstring.
        needs_distribution: whether the rule reads `TokenPolicy.distribution`.
        aggregation: the aggregation that the rule requires, one of `AGGREGATIONS`; None if it allows any.
        reconstruction: see `RuleInfo`.
        controller: a class with keyword-only settings; its `values` override those that the user has set.
        fused: see `RuleInfo`.
        **defaults: defaults that override the function's.
    """
    TRUST_REGIONS.add(
        RuleInfo,
        name,
        rule,
        defaults=defaults,
        controller=controller,
        aggregation=aggregation,
        needs_distribution=needs_distribution,
        needs_group_rewards="group_rewards" in inspect.signature(rule).parameters,
        needs_step_tokens="step_tokens" in inspect.signature(rule).parameters,
        reconstruction=reconstruction,
        fused=fused,
    )


class TrustRegion:
    """A rule with its settings; the trainer calls it on every micro-batch.

    Attributes:
        name: registered name.
        info: the registry entry.
        settings: all settings, as returned by `Registry.complete`.
    """

    def __init__(self, info: RuleInfo, settings: Mapping[str, Any]) -> None:
        self.info, self.name, self.settings = info, info.name, settings
        self._initial = {key: settings[key] for key in keyword_settings(info.function)}
        self._controller = _controller(info, settings)

    def change(self, **settings: Any) -> None:
        """Changes settings of the rule, from the next call on.

        Raises:
            UserError: unknown setting, a value that it does not allow, or a setting that the rule adapts.
        """
        completed = TRUST_REGIONS.complete(self.name, {**self.settings, **settings})
        adapted = {} if self.info.controller is None else keyword_settings(self.info.controller)
        if mine := sorted(settings.keys() & set(adapted)):
            raise UserError(f"trust region {self.name!r} adapts {', '.join(mine)}, which cannot be set")
        self.settings, self._initial = completed, {key: completed[key] for key in self._initial}

    def current_settings(self) -> dict[str, Any]:
        """The current settings of the rule, adapted ones included."""
        return self._initial if self._controller is None else self._initial | self._controller.values()

    def __call__(
        self,
        new: TokenPolicy,
        old: TokenPolicy,
        advantages: Tensor,
        mask: Tensor,
        group_rewards: GroupRewards | None = None,
        step_tokens: StepTokens | None = None,
        *,
        seed: int = 0,
    ) -> TokenLosses:
        """Per-token losses [B, T], with the metrics of the rule and the common metrics.

        Handles masked positions and gradients for all rules: the rule receives policies and advantages that
        are empty at masked positions, an old policy and advantages without gradient; its losses and metrics
        are set to 0 at masked positions.

        Common metrics, each [B, T] and defined alike for every rule: `ratio` new / old of the sampled token,
        `log_ratio_abs`, `clip_fraction` (1 where the rule clipped, masked or projected), `kl_to_old_sampled`
        (an unbiased estimate of KL(new || old) from the sampled token: r log r - r + 1); if distributions are
        given, also `kl_to_old` (exact KL(new || old) on the kept tokens and the tail) and `kept_mass` (mass
        of the kept tokens under the old policy).

        Args:
            new: policy being trained.
            old: policy that sampled; constant.
            advantages: [B, T]; constant.
            mask: [B, T], 1 at response tokens.
            group_rewards: rewards of each prompt's group, for rules that need them.
            step_tokens: all tokens of the optimiser step, for rules that need them; by default, those of this
                batch.
            seed: seed of random choices if `step_tokens` is not given.

        Raises:
            UserError: the rule needs distributions or rewards that are not given, does not return
                `TokenLosses` of the shape of the mask, or returns a metric with a reserved name.
        """
        if self.info.needs_distribution and (new.distribution is None or old.distribution is None):
            raise UserError(
                f"trust region {self.name!r} needs the distributions of the new and the old policy"
            )
        settings = self.current_settings()
        if self.info.fused is not None:
            fused = self.info.fused(new, old, advantages, mask, **settings)
            if fused is not None:
                return fused
        mask = mask.bool()
        new, old = new.where(mask), old.detach().where(mask)
        advantages = advantages.detach().masked_fill(~mask, 0.0)
        inputs: dict[str, Any] = {}
        if self.info.needs_group_rewards:
            if group_rewards is None:
                raise UserError(
                    f"trust region {self.name!r} needs the rewards of each prompt's group (group_rewards)"
                )
            inputs["group_rewards"] = group_rewards
        if self.info.needs_step_tokens:
            if step_tokens is None:
                step_tokens = StepTokens.of(new, old, advantages, mask, seed)
            inputs["step_tokens"] = step_tokens
        losses = self.info.function(new, old, advantages, mask, **inputs, **settings)
        if not isinstance(losses, TokenLosses):
            raise UserError(
                f"trust region {self.name!r}: must return TokenLosses, not {type(losses).__name__}"
            )
        check_metrics(f"trust region {self.name!r}", losses.metrics)
        with torch.no_grad():
            losses = losses.with_metrics(**self._common_metrics(new, old, mask, losses.metrics))
        for name, value in {"losses": losses.per_token, **losses.metrics}.items():
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            if found != tuple(mask.shape):
                raise UserError(
                    f"trust region {self.name!r}: {name} must be a tensor of the shape of the mask "
                    f"{tuple(mask.shape)}, not {found}"
                )
        off = ~mask
        metrics = {name: value.detach() for name, value in losses.metrics.items()}
        if takes_triton(mask.device) and len({value.dtype for value in metrics.values()}) == 1:
            # Two kernel launches for any number of metrics.
            stacked = torch.stack(list(metrics.values())).masked_fill_(off, 0.0)
            metrics = dict(zip(metrics, stacked.unbind(), strict=True))
        else:
            metrics = {name: value.masked_fill(off, 0.0) for name, value in metrics.items()}
        return TokenLosses(losses.per_token.masked_fill(off, 0.0), metrics)

    @staticmethod
    def _common_metrics(
        new: TokenPolicy, old: TokenPolicy, mask: Tensor, reported: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        # TROLL's GPU kernel (`fused` in `register`) computes these itself and never gets here.
        difference = log_ratio(new, old)
        ratio = difference.exp()
        metrics = {
            "ratio": ratio,
            "log_ratio_abs": difference.abs(),
            "kl_to_old_sampled": ratio * (difference - 1.0) + 1.0,
            "clip_fraction": torch.zeros_like(ratio),
        }
        if new.distribution is not None and old.distribution is not None:
            metrics["kept_mass"] = old.distribution.kept_mass()
            if "kl_to_old" not in reported:
                rows = kl_divergence(compared_rows(new, mask).atoms(), compared_rows(old, mask).atoms())
                metrics["kl_to_old"] = metric_rows(rows, mask)
        return metrics

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Pass the mean metrics of one optimiser step to the rule's controller, if it has one."""
        if self._controller is not None:
            self._controller.after_step(metrics)

    def start_batch(self) -> None:
        """Notify the rule's controller of the start of a rollout batch, if it is a `BatchController`."""
        if isinstance(self._controller, BatchController):
            self._controller.start_batch()

    @property
    def may_stop(self) -> bool:
        """Whether the rule may end the updates on a rollout batch early."""
        return isinstance(self._controller, BatchStopper)

    @property
    def stopped(self) -> bool:
        """Whether the current and all later updates on this rollout batch are skipped."""
        return isinstance(self._controller, BatchStopper) and self._controller.stopped

    def state_dict(self) -> dict[str, Any]:
        """State of the adaptive settings; empty for rules without any."""
        return {} if self._controller is None else self._controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        if self._controller is not None:
            self._controller.load_state_dict(state)


def make_trust_region(name: str, /, **settings: Any) -> TrustRegion:
    """Create a `TrustRegion` from a registered rule and settings.

    Raises:
        UserError: unknown name or setting, or a value that the setting does not allow.
    """
    return TrustRegion(TRUST_REGIONS.find(name), TRUST_REGIONS.complete(name, settings))
