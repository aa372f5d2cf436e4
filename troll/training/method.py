"""`Method`: the options of a `TrustRegionConfig`, TRL's loss options included, resolved and validated."""

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import InstanceOf, model_validator
from torch.utils.data import IterableDataset

from troll.algorithms.advantages import ESTIMATORS, EstimatorInfo
from troll.algorithms.aggregation import RELEASED
from troll.algorithms.trust_regions import TRUST_REGIONS, RuleInfo
from troll.common.errors import UserError
from troll.common.explain import validated
from troll.experiment.settings import Aggregation, PolicyUpdate
from troll.training.trl_options import (
    AGGREGATIONS,
    CISPO_SETTINGS,
    LOSS_RULES,
    RULE_SETTINGS,
    check_options,
    options_set,
)

PROJECTING = ("troll", "troll-seq", "troll-adaptive")
"""Rules of which the released code takes the token mean whatever the aggregation: it has two of them."""


class Method(PolicyUpdate):
    """A fully resolved method: all settings are complete; a block that is None is switched off."""

    rule: InstanceOf[RuleInfo]
    rule_settings: Mapping[str, Any]
    estimator: InstanceOf[EstimatorInfo] | None  # None: TRL's advantages
    estimator_settings: Mapping[str, Any]
    aggregation: Aggregation

    @property
    def needs_greedy(self) -> bool:
        """Whether each prompt needs a greedy response."""
        return self.estimator is not None and self.estimator.needs_greedy

    @property
    def needs_every_reward(self) -> bool:
        """Whether each response needs a reward; TRL's own advantages skip responses without one."""
        return (
            self.estimator is not None or self.rule.needs_group_rewards or self.dynamic_sampling is not None
        )

    def with_reference(self, args: Any) -> Any:
        """Sets a nonzero ``beta`` for a regulariser, so TRL loads and scores with the reference."""
        if self.regulariser is None:
            return args
        args = copy.copy(args)
        args.beta = self.regulariser.coefficient
        return args

    @model_validator(mode="after")
    def _check_blocks(self) -> "Method":
        """Rejects blocks that the estimator does not use, and an estimator without the critic it needs."""
        name = self.estimator and self.estimator.name
        needed = self.estimator is not None and self.estimator.needs_values
        if needed and self.critic is None:
            raise ValueError(
                f"estimator {name!r} needs a critic; critic={{}} enables it with default settings"
            )
        if self.critic is not None and not needed:
            raise ValueError(f"estimator {name!r} does not use a critic; leave it out")
        if self.estimator is not None:
            return self
        if self.overlong is not None:
            raise ValueError("overlong has no effect on TRL's own advantages; name an estimator")
        if self.regulariser is not None and self.regulariser.applied_to == "reward":
            raise ValueError(
                "regulariser.applied_to 'reward' has no effect on TRL's own advantages; name an estimator"
            )
        return self


def resolve(args: Any) -> Method:
    """Resolves a `TrustRegionConfig`; rejects invalid options and options without effect."""
    asked = validated(PolicyUpdate, {name: getattr(args, name) for name in PolicyUpdate.model_fields})
    rule = TRUST_REGIONS.find(_rule_name(args.trust_region, args.loss_type, args.importance_sampling_level))
    given = options_set(args)
    check_options(args, rule.name, given)
    estimator, estimator_settings = None, {}
    if args.estimator is not None:
        estimator = ESTIMATORS.find(args.estimator)
        estimator_settings = ESTIMATORS.complete(args.estimator, args.estimator_settings or {})
    # clip on whole responses is TRL's loss, aggregated by `loss_type`; gspo-clip by name is the paper's.
    required = None if args.trust_region == "clip" else rule.aggregation
    own = estimator.aggregation if estimator else None
    resolved = {
        "rule": rule,
        "rule_settings": TRUST_REGIONS.complete(rule.name, _rule_settings(args, rule, given)),
        "estimator": estimator,
        "estimator_settings": estimator_settings,
        "aggregation": _aggregation(args, given, required, own, projects=rule.name in PROJECTING),
    }
    return validated(Method, dict(asked) | resolved)


def _rule_name(trust_region: str | None, loss_type: str, level: str) -> str:
    """The trust region's name: ``trust_region``; if not set, the rule of ``loss_type``, else TROLL.

    With ``importance_sampling_level="sequence"``, TROLL and clip mean their sequence-level variants.
    """
    name = trust_region or LOSS_RULES.get(loss_type, ("troll",))[0]
    if level != "sequence":
        return name
    if loss_type == "luspo" and trust_region in (None, "clip"):
        return "luspo"
    return {"troll": "troll-seq", "clip": "gspo-clip"}.get(name, name)


def _rule_settings(args: Any, rule: RuleInfo, options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the trust region: ``trust_region_settings``, and those set through TRL's loss options."""
    given, valid = dict(args.trust_region_settings or {}), rule.settings
    meanings = CISPO_SETTINGS if rule.name == "cispo" else RULE_SETTINGS
    settings: dict[str, Any] = {}
    if rule.name in ("cispo", "luspo") and rule.name != args.trust_region:
        # Chosen by ``loss_type``, hence TRL's bound and not the one that the rule's paper recommends.
        bound = ("ratio_max",) if rule.name == "cispo" else RULE_SETTINGS["epsilon"]
        meanings = {**meanings, "epsilon": bound}
        settings = dict.fromkeys(meanings["epsilon"], args.epsilon)
    settings |= given
    for option, names in meanings.items():
        if option not in options:
            continue
        targets = [name for name in names if name in valid]
        value = options[option]
        if not targets:
            raise UserError(
                f"{option}={value!r} has no effect on trust region {rule.name!r}; its settings "
                f"(trust_region_settings): {', '.join(valid) or 'none'}"
                + ("" if args.trust_region else "; or set trust_region='clip'")
            )
        if given.keys() & set(targets):
            raise UserError(
                f"{option} and trust_region_settings both set {', '.join(targets)}; leave one of them out"
            )
        settings |= dict.fromkeys(targets, value)
    high = settings.get("epsilon_high", 0.2)
    if "delta" in options and args.delta <= 1.0 + high:
        raise UserError(
            f"delta={args.delta} must be above 1 + epsilon_high = {1.0 + high}: a smaller value "
            "would cap tokens that are not clipped"
        )
    return settings


def _aggregation(
    args: Any, options: Mapping[str, Any], rule: str | None, estimator: str | None, *, projects: bool
) -> str:
    """The rule's aggregation, else the configuration's, else the estimator's, else that of ``loss_type``.

    ``released`` applies to rules that project, and instead of token-mean; other rules and estimators keep
    their own.
    """
    expected, asked = AGGREGATIONS[args.loss_type], args.aggregation
    released = asked == RELEASED
    chosen: str = rule or (None if released else asked) or estimator or expected
    if released and (projects or chosen == "token-mean"):
        chosen = RELEASED
    if "loss_type" in options and chosen != expected:
        source = "the trust region" if rule else "aggregation" if args.aggregation else "the estimator"
        raise UserError(
            f"loss_type={args.loss_type!r} aggregates by {expected}, but {source} by {chosen}; "
            "leave loss_type at 'dapo'"
        )
    return chosen


def check_rollouts(args: Any, method: Method, dataset: Any) -> None:
    """Rejects methods that are incompatible with the groups, the sampler or the data set of prompts."""
    rows = args.per_device_train_batch_size * args.steps_per_generation
    if (method.needs_greedy or method.dynamic_sampling) and rows % args.num_generations:
        raise UserError(
            f"{rows} responses per process do not divide into groups of {args.num_generations}; remax "
            "and dynamic sampling need whole groups in each process"
        )
    if method.needs_greedy and (args.use_vllm or args.use_transformers_continuous_batching):
        raise UserError(
            "estimator 'remax' needs a greedy response to every prompt, which is only supported with "
            "transformers' generate; set use_vllm and use_transformers_continuous_batching to false"
        )
    if method.dynamic_sampling and isinstance(dataset, IterableDataset):
        raise UserError("dynamic sampling draws additional prompts and needs a dataset with a length")


def check_deepspeed(args: Any, method: Method, *, stops: bool) -> None:
    """Rejects what DeepSpeed would get wrong: it takes an optimiser step in each backward pass of a step.

    Args:
        args: a `TrustRegionConfig`.
        method: what it resolves to.
        stops: whether the trust region may end the updates on a rollout batch early.
    """
    problems = {
        "micro_batch_tokens: each part of a mini-batch would be an optimiser step": args.micro_batch_tokens,
        "critic: accelerate runs one model with DeepSpeed, and this would be a second": method.critic,
        f"trust_region {method.rule.name!r}: updates could not be skipped": stops,
    }
    for problem, found in problems.items():
        if found:
            raise UserError(f"{problem} with DeepSpeed; use FSDP, or leave it out")
