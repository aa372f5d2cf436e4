"""`Method`: the options of a `TrustRegionConfig`, TRL's loss options included, resolved and validated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from torch.utils.data import IterableDataset

from troll.algorithms.advantages import ESTIMATORS, EstimatorInfo
from troll.algorithms.aggregation import RELEASED, check_aggregation
from troll.algorithms.trust_regions import TRUST_REGIONS, RuleInfo
from troll.common.errors import UserError, unknown
from troll.common.explain import explain
from troll.experiment.settings import Critic, DynamicSampling, Overlong, Pretraining, Regulariser
from troll.training.trl_options import (
    AGGREGATIONS,
    CISPO_SETTINGS,
    LOSS_RULES,
    RULE_SETTINGS,
    check_options,
    is_set,
)

BLOCKS: Mapping[str, type[BaseModel]] = {
    "critic": Critic,
    "regulariser": Regulariser,
    "dynamic_sampling": DynamicSampling,
    "overlong": Overlong,
    "pretraining": Pretraining,
}
"""Blocks of settings; an experiment file uses the same names."""

PROJECTING = ("troll", "troll-seq", "troll-adaptive")
"""Rules of which the released code takes the token mean whatever the aggregation: it has two of them."""

Anchor = Literal["old", "sampler"]
Block = TypeVar("Block", bound=BaseModel)


@dataclass(frozen=True)
class Method:
    """A fully resolved method: all settings are complete; a block that is None is switched off."""

    rule: RuleInfo
    rule_settings: Mapping[str, Any]
    estimator: EstimatorInfo | None  # None: TRL's advantages
    estimator_settings: Mapping[str, Any]
    aggregation: str  # how token losses are reduced to one number
    critic: Critic | None
    regulariser: Regulariser | None  # the KL to the reference; None: TRL's ``beta``
    dynamic_sampling: DynamicSampling | None
    overlong: Overlong | None
    pretraining: Pretraining | None

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


def resolve(args: Any) -> Method:
    """Resolves a `TrustRegionConfig`; rejects invalid options and options without effect."""
    blocks: dict[str, Any] = {name: _block(name, kind, getattr(args, name)) for name, kind in BLOCKS.items()}
    if args.aggregation is not None:
        check_aggregation(args.aggregation, of_run=True)
    rule = TRUST_REGIONS.find(_rule_name(args.trust_region, args.loss_type, args.importance_sampling_level))
    check_options(args, rule.name)
    _check_sampler(args, rule.name)
    longest = args.max_prompt_tokens
    if longest is not None and (not isinstance(longest, int) or isinstance(longest, bool) or longest < 1):
        raise UserError(f"max_prompt_tokens is {longest!r}, must be a number of tokens, 1 or more")
    settings = TRUST_REGIONS.complete(rule.name, _rule_settings(args, rule))
    estimator: EstimatorInfo | None = None
    estimator_settings: Mapping[str, Any] = {}
    if args.estimator is not None:
        estimator = ESTIMATORS.find(args.estimator)
        estimator_settings = ESTIMATORS.complete(args.estimator, args.estimator_settings or {})
    _check_blocks(estimator, blocks)
    # clip on whole responses is TRL's loss, aggregated by `loss_type`; gspo-clip by name is the paper's.
    required = None if args.trust_region == "clip" else rule.aggregation
    own = estimator.aggregation if estimator else None
    aggregation = _aggregation(args, required, own, projects=rule.name in PROJECTING)
    return Method(rule, settings, estimator, estimator_settings, aggregation, **blocks)


def _block(name: str, kind: type[Block], value: Any) -> Block | None:
    if value is None or isinstance(value, kind):
        return value
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise UserError(explain(error, kind, name)) from None


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


def _rule_settings(args: Any, rule: RuleInfo) -> dict[str, Any]:
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
        if not is_set(args, option):
            continue
        targets = [name for name in names if name in valid]
        value = getattr(args, option)
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
    if is_set(args, "delta") and args.delta <= 1.0 + high:
        raise UserError(
            f"delta={args.delta} must be above 1 + epsilon_high = {1.0 + high}: a smaller value "
            "would cap tokens that are not clipped"
        )
    return settings


def _aggregation(args: Any, rule: str | None, estimator: str | None, *, projects: bool) -> str:
    """The rule's aggregation, else the configuration's, else the estimator's, else that of ``loss_type``.

    ``released`` applies to rules that project, and instead of token-mean; other rules and estimators keep
    their own.
    """
    expected, asked = AGGREGATIONS[args.loss_type], args.aggregation
    released = asked == RELEASED
    chosen: str = rule or (None if released else asked) or estimator or expected
    if released and (projects or chosen == "token-mean"):
        chosen = RELEASED
    if is_set(args, "loss_type") and chosen != expected:
        source = "the trust region" if rule else "aggregation" if args.aggregation else "the estimator"
        raise UserError(
            f"loss_type={args.loss_type!r} aggregates by {expected}, but {source} by {chosen}; "
            "leave loss_type at 'dapo'"
        )
    return chosen


def _check_sampler(args: Any, rule: str) -> None:
    """Rejects an invalid policy lag, and rollouts by vLLM where the lag or the rule does not support them."""
    if not isinstance(args.policy_lag, int) or isinstance(args.policy_lag, bool) or args.policy_lag < 0:
        raise UserError(f"policy_lag is {args.policy_lag!r}, must be a number of rollout batches, 0 or more")
    anchors = get_args(Anchor)
    if args.trust_region_anchor not in anchors:
        raise UserError(f"trust_region_anchor: {unknown('name', args.trust_region_anchor, anchors)}")
    if args.use_vllm and (args.policy_lag or args.trust_region_anchor == "sampler"):
        raise UserError(
            "policy_lag and trust_region_anchor='sampler' need rollouts by transformers: vLLM does not "
            "return the sampling policy's distributions; leave them out or set use_vllm to false"
        )
    if rule == "vespo" and args.use_vllm and args.vllm_importance_sampling_correction:
        raise UserError(
            "TRL's vespo includes the importance-sampling correction for vLLM in its sequence weights, which "
            "is not implemented here; set vllm_importance_sampling_correction to false"
        )


def _check_blocks(estimator: EstimatorInfo | None, blocks: Mapping[str, Any]) -> None:
    """Rejects blocks that the estimator does not use, and an estimator without the critic that it needs."""
    name, needed = estimator and estimator.name, estimator is not None and estimator.needs_values
    if needed and blocks["critic"] is None:
        raise UserError(f"estimator {name!r} needs a critic; critic={{}} enables it with default settings")
    if blocks["critic"] is not None and not needed:
        raise UserError(f"estimator {name!r} does not use a critic; leave it out")
    if estimator is not None:
        return
    if blocks["overlong"] is not None:
        raise UserError("overlong has no effect on TRL's own advantages; name an estimator")
    if blocks["regulariser"] is not None and blocks["regulariser"].applied_to == "reward":
        raise UserError("a KL in the reward has no effect on TRL's own advantages; name an estimator")


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
