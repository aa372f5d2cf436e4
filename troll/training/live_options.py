"""Attributes of the trainer that scripts set while it trains, such as a schedule of ``beta`` in a callback.

TRL reads these attributes in every step. Here they act as well, or setting them raises an error.
"""

from collections.abc import Callable, Mapping
from typing import Any

from accelerate.utils import is_peft_model

from troll.algorithms.trust_regions import TrustRegion
from troll.common.errors import UserError
from troll.training.entropy_bonus import EntropyBonus
from troll.training.method import Method
from troll.training.trl_options import CISPO_SETTINGS, RULE_SETTINGS

FIXED = (
    *("aux_loss_enabled", "importance_sampling_level", "loss_type", "num_generations", "temperature"),
    "use_adaptive_entropy",
)
"""Attributes that are read once, when the trainer is built."""

BOUNDS = ("epsilon_low", "epsilon_high")
"""Attributes of TRL's clipping bounds."""

IN_ARGS = tuple(name for name in RULE_SETTINGS if name not in ("epsilon", "epsilon_high"))
"""Options that TRL reads in every step from the trainer's ``args``."""


class LiveOptions:
    """Checks assignments to TRL's attributes once the trainer is built, and passes them on.

    Raises:
        troll.common.errors.UserError: an assignment would have no effect.
    """

    method: Method
    trust_region: TrustRegion
    entropy_bonus: EntropyBonus
    args: Any
    model: Any
    ref_model: Any
    _built = False

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name) if self._built else None
        if check is not None and value != getattr(self, name):
            check(self, name, value)
        super().__setattr__(name, value)

    def options_are_live(self) -> None:
        """To be called once the trainer is built; the bounds are then those of the trust region."""
        for name in BOUNDS:
            setting = _bound(self, name)
            if setting is not None:
                setattr(self, name, self.trust_region.settings[setting])
        self._in_args = {name: getattr(self.args, name) for name in IN_ARGS}
        self._built = True

    def follow_args(self) -> None:
        """Passes on options of ``args`` that have been changed since the last step.

        Raises:
            UserError: the trust region has no such setting.
        """
        for name, before in self._in_args.items():
            value = getattr(self.args, name)
            if value == before:
                continue
            settings = [name for name in RULE_SETTINGS[name] if name in self.trust_region.settings]
            if not settings:
                raise _without_effect(self, f"args.{name}", value)
            self.trust_region.change(**dict.fromkeys(settings, value))
            self._in_args[name] = value

    # TRL assigns these two attributes, and saves them in and loads them from checkpoints.

    @property
    def entropy_coef(self) -> float:
        """Current coefficient of the entropy bonus."""
        return self.entropy_bonus.coefficient

    @entropy_coef.setter
    def entropy_coef(self, value: float) -> None:
        self.entropy_bonus.coefficient = value

    @property
    def _last_world_entropy(self) -> float:
        return self.entropy_bonus.last_entropy

    @_last_world_entropy.setter
    def _last_world_entropy(self, value: float) -> None:
        self.entropy_bonus.last_entropy = value


def _bound(trainer: LiveOptions, name: str) -> str | None:
    """The setting of the trust region that TRL's attribute means; None if the rule has none."""
    names = CISPO_SETTINGS.get(name, ()) if trainer.trust_region.name == "cispo" else (name,)
    return next((setting for setting in names if setting in trainer.trust_region.settings), None)


def _set_bound(trainer: LiveOptions, name: str, value: Any) -> None:
    setting = _bound(trainer, name)
    if setting is None:
        raise _without_effect(trainer, name, value)
    trainer.trust_region.change(**{setting: value})


def _without_effect(trainer: LiveOptions, name: str, value: Any) -> UserError:
    rule, settings = trainer.trust_region.name, ", ".join(trainer.trust_region.settings)
    return UserError(
        f"trainer.{name} = {value!r} has no effect on trust region {rule!r}; its settings: "
        f"{settings or 'none'}"
    )


def _set_beta(trainer: LiveOptions, name: str, value: Any) -> None:
    if trainer.method.regulariser is not None:
        raise UserError(
            f"trainer.{name} = {value!r} has no effect: the KL to the reference is that of regulariser; "
            "leave regulariser out and set beta in the TrustRegionConfig"
        )
    if value and trainer.ref_model is None and not is_peft_model(trainer.model):
        raise UserError(
            f"trainer.{name} = {value!r} needs a reference model, which is only loaded if beta is not 0 in "
            "the TrustRegionConfig; a small value there is enough"
        )


def _set_entropy_coef(trainer: LiveOptions, name: str, value: Any) -> None:
    if not trainer.entropy_bonus.enabled:
        raise UserError(
            f"trainer.{name} = {value!r} has no effect, because entropy_coef is 0 in the TrustRegionConfig; "
            "a small value there is enough"
        )


def _set_fixed(_: LiveOptions, name: str, value: Any) -> None:
    raise UserError(
        f"trainer.{name} = {value!r} has no effect once the trainer is built; set it in the TrustRegionConfig"
    )


def _set_scale(trainer: LiveOptions, name: str, value: Any) -> None:
    if trainer.method.estimator is not None:
        raise UserError(
            f"trainer.{name} = {value!r} has no effect on the advantages of estimator "
            f"{trainer.method.estimator.name!r}"
        )


_CHECKS: Mapping[str, Callable[[LiveOptions, str, Any], None]] = {
    **dict.fromkeys(BOUNDS, _set_bound),
    **dict.fromkeys(FIXED, _set_fixed),
    **dict.fromkeys(("scale_rewards", "multi_objective_aggregation"), _set_scale),
    "beta": _set_beta,
    "entropy_coef": _set_entropy_coef,
}
