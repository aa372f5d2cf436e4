"""What becomes of every option of `trl.GRPOConfig` here: none is ignored without a word.

Options of `transformers.TrainingArguments` are the training loop's own, which is used as it is. Of the
others, each is in one of the tables below; a test compares them with the installed TRL's fields, so that an
option of a new release cannot go unnoticed.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from trl import GRPOConfig

from troll.common.errors import UserError

BY_TRL = frozenset(
    [
        "learning_rate",
        "logging_steps",
        "gradient_checkpointing",
        "bf16",
        "lr_scheduler_kwargs",
        "torch_empty_cache_steps",
        "model_init_kwargs",
        "trust_remote_code",
        "ds3_gather_for_generation",
        "disable_dropout",
        "remove_unused_columns",
        "num_generations",
        "num_generations_eval",
        "max_completion_length",
        "shuffle_dataset",
        "pad_to_multiple_of",
        "generation_batch_size",
        "steps_per_generation",
        "chat_template_kwargs",
        "repetition_penalty",
        "generation_kwargs",
        "cache_implementation",
        "use_vllm",
        "vllm_mode",
        "vllm_model_impl",
        "vllm_enable_sleep_mode",
        "vllm_structured_outputs_regex",
        "vllm_server_base_url",
        "vllm_server_host",
        "vllm_server_port",
        "vllm_server_timeout",
        "vllm_group_port",
        "vllm_gpu_memory_utilization",
        "vllm_max_model_length",
        "vllm_tensor_parallel_size",
        "reward_weights",
        "mask_truncated_completions",
        "sync_ref_model",
        "ref_model_mixup_alpha",
        "ref_model_sync_steps",
        "max_tool_calling_iterations",
        "vllm_importance_sampling_mode",
        "vllm_importance_sampling_clip_max",
        "vllm_importance_sampling_clip_min",
        "log_completions",
        "log_multimodal",
        "num_completions_to_print",
        "log_unique_prompts",
        "log_completions_hub_repo",
        "use_transformers_continuous_batching",
        "transformers_continuous_batching_config",
        "use_transformers_paged",
        "vllm_importance_sampling_cap",
    ]
)
"""TRL's own code acts on them, and nothing of it is replaced here."""

BY_US = frozenset(
    [
        "temperature",
        "num_iterations",
        "beta",
        "use_bias_correction_kl",
        "cast_lm_head_to_fp32",
        "vllm_importance_sampling_correction",
        "top_entropy_quantile",
        "off_policy_mask_threshold",
        "router_aux_loss_coef",
        "entropy_coef",
        "use_adaptive_entropy",
        "entropy_coef_min",
        "entropy_coef_max",
        "entropy_coef_delta",
        "entropy_target",
    ]
)
"""Our loss acts on them as TRL's does, for every trust region."""

RULE_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "epsilon": ("epsilon_low", "epsilon_high"),
    "epsilon_high": ("epsilon_high",),
    "delta": ("dual_clip",),
    "sapo_temperature_neg": ("temperature_negative",),
    "sapo_temperature_pos": ("temperature_positive",),
    "vespo_k_pos": ("k_positive",),
    "vespo_lambda_pos": ("lambda_positive",),
    "vespo_k_neg": ("k_negative",),
    "vespo_lambda_neg": ("lambda_negative",),
}
"""Options of TRL's own losses, and the settings of trust regions that mean the same (see `rule_settings`)."""

CISPO_SETTINGS: Mapping[str, tuple[str, ...]] = {**RULE_SETTINGS, "epsilon_high": ("ratio_max",)}
"""The same for ``cispo``: its largest weight is TRL's ``epsilon_high``. Elsewhere that is another thing."""

AGGREGATIONS: Mapping[str, str] = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
    "cispo": "token-mean",
    "sapo": "seq-mean-token-mean",
    "vespo": "token-mean",
}
"""How ``GRPOConfig.loss_type`` aggregates (TRL 1.16, grpo_trainer.py)."""

LOSS_RULES: Mapping[str, tuple[str, ...]] = {
    "cispo": ("cispo", "cispo-verl"),
    "sapo": ("sapo",),
    "vespo": ("vespo",),
}
"""Loss types that are a rule of their own, and the trust regions that are meant by them."""

SEQUENCE_RULES = ("gspo-clip", "gspo-clip-tight", "luspo", "troll-seq")
"""Trust regions on the ratio of whole responses (``importance_sampling_level="sequence"``)."""


def _cuts_the_distribution(args: Any) -> str | None:
    sampling = {name: getattr(args, name) for name in ("top_p", "top_k", "min_p")}
    sampling |= {key: value for key, value in (args.generation_kwargs or {}).items() if key in sampling}
    neutral = {"top_p": (1.0, None), "top_k": (0, -1, None), "min_p": (0.0, None)}
    for name, value in sampling.items():
        if value not in neutral[name]:
            return (
                f"{name} is {value}: training needs samples of the whole distribution; "
                f"leave it at {neutral[name][0]}"
            )
    return None


def _aggregation(args: Any) -> str | None:
    if args.loss_type in AGGREGATIONS:
        return None
    return f"loss_type={args.loss_type!r} has no counterpart here; valid: {', '.join(AGGREGATIONS)}"


def _loss_rule(args: Any) -> str | None:
    names = LOSS_RULES.get(args.loss_type)
    if names is None or args.trust_region in names:
        return None
    return (
        f"loss_type={args.loss_type!r} is a trust region here, and trust_region is {args.trust_region!r}; "
        f"set trust_region={names[0]!r} or leave loss_type at 'dapo'"
    )


def _level(args: Any) -> str | None:
    level = args.importance_sampling_level
    if level not in ("token", "sequence"):
        return f"importance_sampling_level={level!r} is not known; valid: token, sequence"
    if level == "token" or args.trust_region in SEQUENCE_RULES:
        return None
    return (
        "importance_sampling_level='sequence' belongs to a trust region on whole responses, and trust_region "
        f"is {args.trust_region!r}; valid: {', '.join(SEQUENCE_RULES)}"
    )


def _of_trls_advantages(name: str) -> Callable[[Any], str | None]:
    def check(args: Any) -> str | None:
        if args.estimator is None or not _is_set(args, name):
            return None
        return (
            f"{name}={getattr(args, name)!r} has no effect on the advantages of estimator "
            f"{args.estimator!r}; leave one of the two out"
        )

    return check


def _liger(args: Any) -> str | None:
    if not args.use_liger_kernel:
        return None
    return "use_liger_kernel is not supported: the sparse head was never tried with Liger; leave it out"


CONDITIONAL: Mapping[str, Callable[[Any], str | None]] = {
    "top_p": _cuts_the_distribution,
    "top_k": _cuts_the_distribution,
    "min_p": _cuts_the_distribution,
    "loss_type": lambda args: _aggregation(args) or _loss_rule(args),
    "importance_sampling_level": _level,
    "scale_rewards": _of_trls_advantages("scale_rewards"),
    "multi_objective_aggregation": _of_trls_advantages("multi_objective_aggregation"),
    "use_liger_kernel": _liger,
}
"""Options with a meaning under a condition: what is wrong with the others, as one line."""


def _is_set(args: Any, name: str) -> bool:
    default = next(field.default for field in fields(GRPOConfig) if field.name == name)
    return bool(getattr(args, name) != default)


def check_options(args: Any) -> None:
    """Refuses an option that would have no effect, or another one than its documentation says.

    Args:
        args: a `troll.training.config.TrustRegionConfig`.

    Raises:
        UserError: see `CONDITIONAL`.
    """
    for check in CONDITIONAL.values():
        problem = check(args)
        if problem:
            raise UserError(problem)
    if args.regulariser is not None:
        for name in ("beta", "use_bias_correction_kl"):
            if _is_set(args, name):
                raise UserError(
                    f"{name} and regulariser both set the KL to the reference; leave one of them out"
                )


def rule_settings(args: Any, valid: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the trust region: its own, and those that options of TRL's loss give.

    Args:
        args: a `troll.training.config.TrustRegionConfig`.
        valid: the rule's settings, by name.

    Raises:
        UserError: the trust region has no setting of the option's meaning, or the setting is given twice.
    """
    settings = dict(args.trust_region_settings or {})
    own = set(settings)
    for option, names in (CISPO_SETTINGS if args.trust_region == "cispo" else RULE_SETTINGS).items():
        if not _is_set(args, option):
            continue
        meant = [name for name in names if name in valid]
        value = getattr(args, option)
        if not meant:
            raise UserError(
                f"{option}={value!r} means nothing to trust region {args.trust_region!r}; its settings "
                f"(trust_region_settings): {', '.join(valid) or 'none'}"
            )
        if own & set(meant):
            raise UserError(
                f"{option} and trust_region_settings both set {', '.join(meant)}; leave one of them out"
            )
        settings |= dict.fromkeys(meant, value)
    high = settings.get("epsilon_high", 0.2)
    if _is_set(args, "delta") and args.delta <= 1.0 + high:
        raise UserError(
            f"delta={args.delta} must be above 1 + epsilon_high = {1.0 + high}: below, it would cap tokens "
            "that clipping leaves alone"
        )
    return settings


def aggregation_of(args: Any, rule: str | None, estimator: str | None) -> str:
    """How losses of tokens become one number.

    Args:
        args: a `troll.training.config.TrustRegionConfig`.
        rule: the aggregation that the trust region insists on, if any.
        estimator: the one that belongs to the estimator, if any.

    Returns:
        The rule's, else the configuration's, else the estimator's, else what ``loss_type`` means in TRL.

    Raises:
        UserError: a ``loss_type`` was chosen that means another one.
    """
    meant = AGGREGATIONS[args.loss_type]
    chosen = rule or args.aggregation or estimator or meant
    if _is_set(args, "loss_type") and chosen != meant:
        who = "the trust region" if rule else "aggregation" if args.aggregation else "the estimator"
        raise UserError(
            f"loss_type={args.loss_type!r} aggregates by {meant}, but {who} by {chosen}; "
            "leave loss_type at 'dapo'"
        )
    return chosen
