"""Registry of logged metrics and run summaries: name, unit, meaning and presentation.

Tables, figures, claims and the tables of docs/results.md use it. docs/adding.md explains how to add a metric.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

Scale = Literal["linear", "share", "log"]
"""How a figure draws a metric: unchanged, in percent, or on a logarithmic axis."""
Show = Literal["number", "percent", "whole", "five decimals"]
"""How a table formats a metric."""


@dataclass(frozen=True)
class Metric:
    """A metric that runs log."""

    name: str  # in ``metrics.jsonl`` and in the tidy table
    unit: str  # of its values; empty if dimensionless
    meaning: str  # in Markdown, for docs/results.md
    label: str = ""  # of an axis, with the displayed unit
    scale: Scale = "linear"  # of that axis
    # whether figures show one minus the value, such as the mass left out instead of the mass kept
    complement: bool = False
    axis: str = ""  # panels with the same name here share their limits
    bound: bool = False  # whether figures also draw the rule's KL bound
    heading: str = ""  # of a table's column
    show: Show = "number"
    # which of a run's values the table `constraint_check` shows; empty if the table omits the metric
    over_run: Literal["", "mean", "max", "min"] = ""
    in_points: bool = False  # whether verdicts give differences of its mean in percentage points


Over = Literal["", "late", "final", "first batch", "largest", "best", "drawdown", "auc"]
"""How a metric is reduced to one number per run: mean over the last third ("late") or tenth ("final") of the
steps or over the first batch, largest value, largest fall below the best so far, mean height of the curve."""


@dataclass(frozen=True)
class Summary:
    """A number that summarises a whole run."""

    name: str  # in tables and claims
    unit: str
    meaning: str  # in Markdown, for docs/results.md
    of: str = ""  # the metric it is computed from; empty if it has another source, such as the manifest
    over: Over = ""  # how it is computed from that metric
    suffix: str = ""  # what follows a difference in a verdict; shares are written in points
    heading: str = ""  # of a table's column
    show: Show = "number"
    label: str = ""  # of an axis
    scale: Scale = "linear"  # of that axis
    stored: str = ""  # its name in tidy tables and protocols, if different
    wall_clock: bool = False  # whether load on the machine increases it, unless each run has its own GPU


SHARE, NATS = "share", "nats per token"


_T = TypeVar("_T", Metric, Summary)


def _by_name(*entries: _T) -> Mapping[str, _T]:
    return {entry.name: entry for entry in entries}


METRICS = _by_name(
    Metric(
        *("success", SHARE, "correct responses of all that were sampled for the rollout batch"),
        label="training success (%)",
        scale="share",
        in_points=True,
    ),
    Metric(
        *(
            "validation_success",
            SHARE,
            "correct responses on the validation split; `validation_success/<data set>`: greedy responses to "
            "the test problems of a data set in [`validate_on`](configuration.md#tasksettings), and "
            "`validation_success/math-eval`: their mean over the seven sets of the paper's MATH Eval",
        ),
        label="validation success (%)",
        scale="share",
    ),
    Metric(
        *(
            "reward",
            "",
            "mean reward, where it is not the verifier's 0 or 1 (`tests: fraction`, `training.reward`)",
        ),
        label="training reward",
    ),
    Metric("validation_reward", "", "the same on the validation split", label="validation reward"),
    Metric("response_length", "tokens", "mean length of responses", label="response length (tokens)"),
    Metric("truncated", SHARE, "responses truncated at the length limit"),
    Metric("groups_without_signal", SHARE, "prompts whose responses were all correct or all wrong"),
    Metric("generated_samples", "responses", "number sampled so far"),
    Metric("loss", "", "loss of the optimiser step"),
    Metric("grad_norm", "", "norm of the gradient before clipping"),
    Metric("learning_rate", "", "learning rate of the optimiser step"),
    Metric(
        "not_finite",
        "",
        "1 in the last line of a run with a non-finite loss, which counts with a success of 0 "
        "([`not_finite`](configuration.md)); the manifest records the step",
    ),
    Metric("entropy", NATS, "entropy of the new policy", label="entropy (nats)"),
    Metric(
        *("kl_to_old", NATS, "KL(new || old) on kept tokens and tail, mean over tokens"),
        label="KL to old policy (nats)",
        scale="log",
    ),
    Metric(
        *("kl_to_old_max", NATS, "the same, maximum over tokens"),
        label="largest KL before (nats)",
        scale="log",
        axis="kl",
        bound=True,
        heading="Largest KL before",
        over_run="max",
    ),
    Metric("kl_to_old_sampled", NATS, "estimate of `kl_to_old` from the sampled tokens only"),
    Metric("ratio_mean", "", "probability ratio new / old of the sampled tokens, mean"),
    Metric("ratio_max", "", "the same, maximum", heading="Largest ratio", over_run="max"),
    Metric("log_ratio_abs", "", "absolute logarithm of that ratio, mean"),
    Metric(
        *("clip_fraction", SHARE, "tokens that the rule clipped, masked or projected"),
        label="tokens clipped or projected (%)",
        scale="share",
        heading="Clipped or projected (%)",
        show="percent",
        over_run="mean",
        in_points=True,
    ),
    Metric(
        "clipped_up", SHARE, "rules that clip: tokens with positive advantage whose gradient the clip removes"
    ),
    Metric("clipped_down", SHARE, "the same with negative advantage"),
    Metric("kept_tokens", "tokens", "number of tokens kept of the old distribution, mean"),
    Metric(
        "support_full",
        SHARE,
        "positions at which all K tokens are kept, so that more than `dropped_mass` may be dropped; for "
        "vocabularies above 4,096",
    ),
    Metric(
        *("kept_mass", SHARE, "mass of the kept tokens under the old policy, mean"),
        label="mass left out",
        scale="log",
        complement=True,
    ),
    Metric(
        *("kept_mass_min", SHARE, "the same, minimum"),
        heading="Least kept mass",
        show="five decimals",
        over_run="min",
    ),
    Metric("kl_projected", NATS, "TROLL: KL(projected || old), mean"),
    Metric(
        *("kl_projected_max", NATS, "the same, maximum"),
        label="largest KL after (nats)",
        scale="log",
        axis="kl",
        bound=True,
        heading="Largest KL after",
        over_run="max",
    ),
    Metric("kl_violation", NATS, "TROLL: excess of `kl_projected` over the bound, mean"),
    Metric("kl_violation_max", NATS, "the same, maximum", heading="Worst bound violation", over_run="max"),
    Metric("step_size", "", "TROLL: 1 / (η + 1), 1 inside the trust region", label="mean step β"),
    Metric("regression", NATS, "TROLL: regression term of the loss, without its weight"),
    Metric("solver_residual", "", "TROLL: |KL − bound| / bound of projected tokens, mean"),
    Metric("solver_residual_max", "", "the same, maximum", heading="Worst solver residual", over_run="max"),
    Metric(
        "solver_evaluations",
        "",
        "TROLL: KL evaluations of the solver, mean over all tokens (tokens that are not projected need none)",
        heading="Solver evaluations",
        over_run="mean",
    ),
    Metric("kl_bound", "nats", "`troll-adaptive`: bound of the step"),
    Metric("penalty_kl", NATS, "`kl-penalty`: KL(old || new) in the penalty"),
    Metric("multiplier", "", "`quatro-recon-*`: dual variable λ of the prompt"),
    Metric(
        "effective_advantage", "", "`quatro-recon-*`: A − λ (log w + log Z), which replaces the advantage"
    ),
    Metric("update_skipped", "0 or 1", "`kl-stop`: whether the step made no update"),
    Metric(
        "kl_to_reference", NATS, "with a `regulariser`: estimated KL to the base model on the rollout batch"
    ),
    Metric("kl_coefficient", "", "with a `regulariser`: weight of that KL"),
    Metric("critic/loss", "", "with a critic: its loss"),
    Metric("critic/clipped", SHARE, "with a critic: tokens whose gradient the value clip removes"),
    Metric("critic/grad_norm", "", "with a critic: norm of its gradient"),
    Metric(
        "critic/explained_variance", SHARE, "1 − Var(return − value) / Var(return) over the rollout batch"
    ),
    Metric(
        "sampling/sampling_logp_difference/mean",
        "nats",
        "|log old − log sampler| of the sampled tokens, where vLLM or a lagging policy sampled",
    ),
    Metric("sampling/sampling_logp_difference/max", "nats", "the same, maximum"),
    Metric("pretraining_loss", "", "with `pretraining`: loss on its texts"),
    Metric("overlong_penalty", "", "with `overlong`: mean over responses"),
    Metric(
        "trained_success",
        SHARE,
        "with `dynamic_sampling`: correct responses in the batch that is trained on, without the "
        "prompts that were replaced; with partial credit `trained_reward`, the mean reward",
    ),
    Metric("dynamic_sampling_batches", "", "with `dynamic_sampling`: batches sampled for this rollout batch"),
    Metric("greedy_success", SHARE, "with `remax`: success of the greedy responses"),
    Metric(
        "time/wall_s",
        "seconds",
        "wall-clock time since the start of training, including time before an interruption",
    ),
    Metric("time/cpu_s", "seconds", "processor time of the process, likewise"),
    Metric("time/step_time", "seconds", "duration of the step as measured by TRL, including sampling"),
)
"""Logged metrics by name, in the order of docs/results.md. Rules may log additional metrics."""
_FIRST = (
    *("clip_fraction", "kl_to_old_max", "kl_projected_max", "kl_violation_max", "solver_residual_max"),
    *("solver_evaluations", "kept_mass_min", "ratio_max"),
)
DIAGNOSTICS = (*_FIRST, *(name for name, metric in METRICS.items() if metric.over_run and name not in _FIRST))
"""Columns of the table `constraint_check`, in order: every metric that sets `over_run`."""


SUMMARIES = _by_name(
    Summary(
        *("late_kl", NATS, "late KL to the old policy", "kl_to_old", "late", " nats"),
        heading="Late KL (nats)",
        label="late KL to old policy (nats)",
        stored="kl",
        scale="log",
    ),
    Summary("kl_max", NATS, "largest KL over all tokens and steps", "kl_to_old_max", "largest", " nats"),
    Summary(
        *("entropy", NATS, "entropy, mean over the last tenth of the steps", "entropy", "final", " nats"),
        heading="Entropy, final (nats)",
        label="final entropy (nats)",
    ),
    Summary(
        "entropy_start", NATS, "entropy, mean over the first rollout batch", "entropy", "first batch", " nats"
    ),
    Summary(
        *("final", SHARE, "success in training, mean over the last tenth of the steps", "success", "final"),
        heading="Training success, final (%)",
        show="percent",
    ),
    Summary(
        *("peak", SHARE, "success of the best rollout batch", "success", "best"),
        heading="Training success, peak (%)",
        show="percent",
    ),
    Summary(
        *("max_drawdown", SHARE, "largest fall of success below its best so far", "success", "drawdown"),
        heading="Largest drop (points)",
        show="percent",
        label="largest drop (points)",
        stored="drop",
        scale="share",
    ),
    Summary(
        *("auc", SHARE, "mean height of the curve of success over steps (trapezoid rule)"),
        of="success",
        over="auc",
        heading="Mean height of curve (%)",
        stored="area",
        show="percent",
    ),
    Summary(
        *(
            "response_length",
            "tokens",
            "length of responses in training, mean over the last tenth of the steps",
        ),
        of="response_length",
        over="final",
        heading="Response length (tokens)",
        show="whole",
    ),
    Summary("steps", "steps", "number of optimiser steps", heading="Steps", show="whole"),
    Summary("hours", "hours", "wall-clock time of training", suffix=" h", heading="Hours", wall_clock=True),
    Summary(*("batch_s", "seconds", "wall-clock time per rollout batch with its updates"), wall_clock=True),
    Summary("batch_cpu_s", "seconds", "processor time per rollout batch with its updates"),
    Summary(
        *("peak_gib", "GiB", "peak memory of tensors on the first GPU; without a GPU, of the process"),
        suffix=" GiB",
    ),
)
"""Summaries that claims may name besides pass@k, in the order of error messages."""
PRESENT_NAMES = {summary.stored: name for name, summary in SUMMARIES.items() if summary.stored}
"""Present name by stored name, where they differ."""


def markdown(entries: Collection[Metric | Summary]) -> str:
    """Returns a table for docs/results.md: name, unit and meaning."""
    meanings = [entry.meaning.replace("|", "\\|") for entry in entries]
    rows = [
        f"| `{entry.name}` | {entry.unit} | {meaning} |"
        for entry, meaning in zip(entries, meanings, strict=True)
    ]
    return "\n".join(["| name | unit | meaning |", "| --- | --- | --- |", *rows]) + "\n"
