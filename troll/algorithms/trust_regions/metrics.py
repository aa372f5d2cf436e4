"""Reserved names of metrics: the log uses them for values other than those of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from troll.common.errors import UserError

RESERVED_METRICS = (
    # Common to all rules, see `TrustRegion`; clip_fraction and kl_to_old may be reported by the rule.
    *("ratio", "log_ratio_abs", "kl_to_old_sampled", "kept_mass"),
    # Means and extremes derived from metrics of rules; the constraint check reads some of them.
    *("ratio_mean", "ratio_max", "kl_to_old_max", "kl_projected_max", "kl_violation_max"),
    *("solver_residual_max", "kept_mass_min"),
    # Logged by the trainer, by TRL and by transformers.
    *(
        "entropy",
        "kept_tokens",
        "support_full",
        "kl",
        "kl_to_reference",
        "kl_coefficient",
        "policy_loss",
        "aux_loss",
        "cispo_clip_ratio",
    ),
    *("pretraining_loss", "entropy_coef", "update_skipped", "generated_samples", "overlong_penalty"),
    *("dynamic_sampling_batches", "greedy_success", "loss", "grad_norm", "learning_rate", "epoch", "reward"),
    *("reward_std", "frac_reward_zero_std", "num_tokens", "step_time", "total_flos"),
    # Columns of metrics.jsonl.
    *("step", "rollout_batch", "time", "wall_s", "cpu_s", "success", "response_length", "truncated"),
    *("groups_without_signal", "trained_success", "trained_reward"),
)
"""Reserved names."""
RESERVED_BEGINNINGS = (
    *("eval_", "train_", "validation_", "rewards/", "completions/", "sampling/", "critic/", "tools/"),
    *("profiling/", "time/"),
)
"""Reserved prefixes: groups of metrics in the same log, some of which metrics.jsonl leaves out."""


def check_metrics(where: str, metrics: Mapping[Any, Tensor]) -> None:
    """Reject a rule's metrics whose names are reserved.

    Args:
        where: the rule, as named in error messages.
        metrics: the rule's metrics by name.

    Raises:
        UserError: a name is not a string, or is reserved; the message lists the reserved names.
    """
    for name in metrics:
        if not isinstance(name, str):
            raise UserError(f"{where}: metric {name!r}: its name must be text")
        if name in RESERVED_METRICS or name.startswith(RESERVED_BEGINNINGS):
            raise UserError(
                f"{where}: metric {name!r} has a reserved name; reserved are "
                f"{', '.join(sorted(RESERVED_METRICS))} and all names that begin with "
                f"{', '.join(RESERVED_BEGINNINGS)}"
            )
