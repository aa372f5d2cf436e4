"""Names of metrics that a rule may not take, because a log already has something else under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from troll.common.errors import UserError

RESERVED_METRICS = (
    # Measured alike for every rule, see `TrustRegion`; clip_fraction and kl_to_old may be the rule's own.
    *("ratio", "log_ratio_abs", "kl_to_old_sampled", "kept_mass"),
    # Means and extremes that are derived from metrics of rules; the constraint check reads some of them.
    *("ratio_mean", "ratio_max", "kl_to_old_max", "kl_projected_max", "kl_violation_max"),
    *("solver_residual_max", "kept_mass_min"),
    # The trainer's own, and those that TRL and transformers log.
    *(
        "entropy",
        "kept_tokens",
        "support_full",
        "kl",
        "kl_to_reference",
        "kl_coefficient",
        "policy_loss",
        "aux_loss",
    ),
    *("pretraining_loss", "entropy_coef", "update_skipped", "generated_samples", "overlong_penalty"),
    *("dynamic_sampling_batches", "greedy_success", "loss", "grad_norm", "learning_rate", "epoch", "reward"),
    *("reward_std", "frac_reward_zero_std", "num_tokens", "step_time", "total_flos"),
    # Columns of metrics.jsonl.
    *("step", "rollout_batch", "time", "wall_s", "cpu_s", "success", "response_length", "truncated"),
    "groups_without_signal",
)
"""Whole names."""
RESERVED_BEGINNINGS = (
    *("eval_", "train_", "validation_", "rewards/", "completions/", "sampling/", "critic/", "tools/"),
    *("profiling/", "time/"),
)
"""What no name may begin with: groups of metrics in the same log, some of which are left out of the file."""


def check_metrics(where: str, metrics: Mapping[Any, Tensor]) -> None:
    """Refuse a rule's metrics whose names are taken.

    Args:
        where: how messages call the rule.
        metrics: what the rule returned, by name.

    Raises:
        UserError: a name is no text, or reserved; the message lists those that are.
    """
    for name in metrics:
        if not isinstance(name, str):
            raise UserError(f"{where}: metric {name!r}: its name must be text")
        if name in RESERVED_METRICS or name.startswith(RESERVED_BEGINNINGS):
            raise UserError(
                f"{where}: metric {name!r} has a reserved name; give it another than "
                f"{', '.join(sorted(RESERVED_METRICS))}, and none that begins with "
                f"{', '.join(RESERVED_BEGINNINGS)}"
            )
