"""How each option of `trl.GRPOConfig` is handled; no option is silently ignored.

Options of `transformers.TrainingArguments` belong to the training loop, which is used unchanged. A test names
how every other option is handled, to detect the options of a new release of TRL.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from accelerate.utils import is_peft_model

from troll.common.errors import UserError
from troll.training.trl_parts import GRPOConfig, option

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
"""Options of TRL's losses, and the equivalent settings of trust regions."""

CISPO_SETTINGS: Mapping[str, tuple[str, ...]] = {**RULE_SETTINGS, "epsilon_high": ("ratio_max",)}
"""The same for ``cispo``, where TRL's ``epsilon_high`` is the largest weight and not a clipping bound."""

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
"""Loss types that correspond to a trust region, and the valid trust regions for each."""

SEQUENCE_RULES = ("gspo-clip", "gspo-clip-tight", "luspo", "troll-seq", "vespo")
"""Trust regions on the ratio of whole responses (``importance_sampling_level="sequence"``)."""

SAMPLES: Mapping[str, tuple[Any, ...]] = {
    "do_sample": (True,),
    "top_k": (0, -1),
    "token_healing": (False,),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    **dict.fromkeys(("num_beams", "num_beam_groups"), (1,)),
    **dict.fromkeys(("top_p", "typical_p", "guidance_scale"), (1.0,)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), (1.0,)),
    **dict.fromkeys(("min_p", "epsilon_cutoff", "eta_cutoff", "penalty_alpha"), (0.0,)),
    **dict.fromkeys(("diversity_penalty", "presence_penalty", "frequency_penalty"), (0.0,)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("min_length", "min_new_tokens", "min_tokens"), (0,)),
    **dict.fromkeys(("bad_words", "bad_words_ids", "force_words_ids", "constraints"), ([],)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "sequence_bias"), ([],)),
    **dict.fromkeys(("top_h", "dola_layers", "watermarking_config", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), ()),
    **dict.fromkeys(("allowed_token_ids", "structured_outputs"), ()),
}
"""Options that change the sampling distribution, and their neutral values in addition to None.

Of `transformers.GenerationConfig` and of vLLM's ``SamplingParams``.
"""


def _restricts(name: str, value: Any, temperature: float, where: str) -> str | None:
    neutral = (temperature,) if name == "temperature" else SAMPLES.get(name)
    if neutral is None or value is None or value in neutral:
        return None
    return f"{where}{name} is {value}: training needs samples of the full distribution; " + (
        f"leave it at {neutral[0]}" if neutral else "leave it out"
    )


def _is_adapted(layer: Any) -> bool:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return isinstance(layer, BaseTunerLayer)


def check_model(args: Any, model: Any, given: Any) -> None:
    """Rejects a model that cannot learn, or whose ``generation_config`` changes the distribution.

    An adapter on the head would not be trained, as the loss reads the weight below it; TRL refuses it from
    1.15 on.
    Responses must be sampled from the distribution that is scored. ``given`` is TRL's generation config,
    whose unset options default to the model's; None if another engine samples.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            "no parameter of the model is trainable; load an adapter with is_trainable=True, or set "
            "requires_grad of the parameters to train"
        )
    if is_peft_model(model) and _is_adapted(model.get_output_embeddings()):
        raise UserError(
            "an adapter on the head, lm_head, would not be trained: the loss reads the weight below it; "
            "leave it out of target_modules, or train a copy of the head: modules_to_save=['lm_head']"
        )
    used = None if given is None else model._prepare_generation_config(given)[0]
    for name in (*SAMPLES, "temperature"):
        value = getattr(used, name, None)
        if problem := _restricts(name, value, args.temperature, "generation_config of the model: "):
            raise UserError(problem)


_DEFAULTS = {field.name: field.default for field in fields(GRPOConfig)}


def options_set(args: Any) -> dict[str, Any]:
    """Returns the options of TRL that differ from their defaults."""
    known = {name: getattr(args, name) for name in _DEFAULTS if hasattr(args, name)}
    return {name: value for name, value in known.items() if value != _DEFAULTS[name]}


def check_options(args: Any, rule: str, given: Mapping[str, Any]) -> None:
    """Rejects options that would have no effect or not the documented one.

    Args:
        rule: name of the trust region.
        given: see `options_set`.
    """
    for problem in _problems(args, rule, given):
        raise UserError(problem)


def _problems(args: Any, rule: str, given: Mapping[str, Any]) -> Iterator[str]:
    sampled = {name: getattr(args, name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
    for where, options in (("", sampled), ("generation_kwargs: ", args.generation_kwargs or {})):
        for name, value in options.items():
            if problem := _restricts(name, value, args.temperature, where):
                yield problem
    corrected = args.vllm_importance_sampling_correction
    if args.use_vllm and args.vllm_structured_outputs_regex is not None and not corrected:
        yield (
            "vllm_structured_outputs_regex samples from a restricted distribution; set "
            "vllm_importance_sampling_correction to true, which corrects for that"
        )
    if args.loss_type not in AGGREGATIONS:
        yield f"loss_type={args.loss_type!r} is not supported; valid: {', '.join(AGGREGATIONS)}"
    names = LOSS_RULES.get(args.loss_type, (rule,))
    if rule not in names:
        yield (
            f"loss_type={args.loss_type!r} is a trust region here, and trust_region is {rule!r}; "
            f"set trust_region={names[0]!r} or leave loss_type at 'dapo'"
        )
    level = args.importance_sampling_level
    if level not in ("token", "sequence"):
        yield f"importance_sampling_level={level!r} is invalid; valid: token, sequence"
    if level == "sequence" and rule not in SEQUENCE_RULES:
        yield (
            "importance_sampling_level='sequence' needs a sequence-level trust region, but trust_region "
            f"is {rule!r}; valid: {', '.join(('troll', 'clip', *SEQUENCE_RULES))}"
        )
    for name in ("scale_rewards", "multi_objective_aggregation"):
        if name in given and args.estimator is not None:
            yield (
                f"{name}={given[name]!r} has no effect on the advantages of estimator "
                f"{args.estimator!r}; leave one of the two out"
            )
    if args.use_vllm and (args.policy_lag or args.trust_region_anchor == "sampler"):
        yield (
            "policy_lag and trust_region_anchor='sampler' need rollouts by transformers: vLLM does not "
            "return the sampling policy's distributions; leave them out or set use_vllm to false"
        )
    if rule == "vespo" and args.use_vllm and corrected:
        yield (
            "TRL's vespo includes the importance-sampling correction for vLLM in its sequence weights, which "
            "is not implemented here; set vllm_importance_sampling_correction to false"
        )
    if option(args, "use_liger_kernel"):
        yield (
            "use_liger_kernel is not supported: the sparse head has not been tested with Liger; leave it out"
        )
    for name in ("beta", "use_bias_correction_kl"):
        if name in given and args.regulariser is not None:
            yield f"{name} and regulariser both set the KL to the reference; leave one of them out"
