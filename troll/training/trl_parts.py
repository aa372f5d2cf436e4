"""The parts of TRL and transformers that the trainer relies on without being documented by them.

Checked when this module is imported: a release without one of them is named, with what is missing, instead of
training in another way.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from packaging.version import Version
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import add_response_schema
from trl.trainer.utils import RepeatSampler

from troll.common.errors import UserError

__all__ = [
    "ADDED",
    "DROPPED",
    "READS_CALLS_WITH_JMESPATH",
    "GRPOConfig",
    "GRPOTrainer",
    "RepeatSampler",
    "add_response_schema",
    "check_parts",
    "option",
]

METHODS: Mapping[type, tuple[str, ...]] = {
    GRPOTrainer: (
        *("_calculate_rewards", "_compute_loss", "_generate", "_generate_and_score_completions"),
        *(
            "_get_per_token_logps_and_entropies",
            "_get_train_sampler",
            "_prepare_inputs",
            "_tokenize_prompts",
            "get_off_policy_mask",
        ),
    ),
    Trainer: (
        *("_get_output_dir", "_prepare_for_training", "_save_checkpoint", "_save_optimizer_and_scheduler"),
        *("get_batch_samples", "prediction_step", "training_step"),
    ),
}
"""Methods that are overridden or called."""

ATTRIBUTES: Mapping[Callable[..., Any], tuple[str, ...]] = {
    GRPOTrainer.__init__: (
        *("_buffered_inputs", "_last_world_entropy", "_metrics", "_pending_extra_logs", "_pending_metrics"),
        *(
            "_step",
            "aux_loss_enabled",
            "beta",
            "chat_template",
            "entropy_coef",
            "epsilon_high",
            "epsilon_low",
        ),
        *("generation_config", "importance_sampling_level", "loss_type", "max_completion_length"),
        *("num_generations", "num_generations_eval", "num_iterations", "off_policy_mask_threshold"),
        *("ref_model", "reward_weights", "router_aux_loss_coef", "temperature", "top_entropy_quantile"),
        *("use_adaptive_entropy", "use_vllm", "vllm_importance_sampling_correction"),
    ),
    RepeatSampler.__init__: (
        *("batch_size", "data_source", "generator", "mini_repeat_count", "num_samples", "repeat_count"),
        *("seed", "shuffle"),
    ),
}
"""Attributes that constructors set, and which are read or set here."""

DROPPED: Mapping[str, Any] = {
    "use_liger_kernel": False,
    "use_transformers_paged": False,
    "vllm_importance_sampling_cap": None,
}
"""Options that TRL 2.0 drops, and their values where they are missing."""

ADDED = frozenset(["log_multimodal"])
"""Options that the oldest supported releases do not have yet."""

READS_CALLS_WITH_JMESPATH = Version(version("trl")) < Version("1.10")
"""Whether TRL needs that package, which it does not install, to read calls of tools."""


def missing_parts() -> list[str]:
    """Returns the parts that the installed releases lack, as ``Class.name``."""
    methods = [
        f"{kind.__name__}.{name}"
        for kind, names in METHODS.items()
        for name in names
        if not hasattr(kind, name)
    ]
    attributes = [
        f"{made.__qualname__.removesuffix('.__init__')}.{name}"
        for made, names in ATTRIBUTES.items()
        for name in names
        if name not in made.__code__.co_names
    ]
    return methods + attributes


def check_parts() -> None:
    """Raises if the installed releases lack a part, which training would otherwise do without."""
    if missing := missing_parts():
        raise UserError(
            f"trl {version('trl')} and transformers {version('transformers')} lack {', '.join(missing)}, "
            "which TrustRegionTrainer uses; pip install 'trl>=1.8,<2' 'transformers>=5.17'"
        )


def option(args: GRPOConfig, name: str) -> Any:
    """The value of an option that TRL drops in 2.0."""
    return getattr(args, name, DROPPED[name])


check_parts()
