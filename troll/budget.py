"""What an experiment with models of the hub would cost, estimated from published step times."""

from collections.abc import Sequence
from dataclasses import dataclass

from troll.analysis.published import read_published
from troll.experiments import Experiment, Run
from troll.settings import Training

# What the published step times were measured on: Qwen3-4B and the paper's batch, on its four GPUs.
_BILLIONS = 4.0
_GPUS = 4
_RESPONSES = 256 * 8
_TOKENS = 4096
_CRITIC = 2.0  # a critic as large as the policy, which is trained beside it: our guess
# Bytes for each parameter: a download in bfloat16; weights in float32; those with AdamW's two moments.
_DOWNLOAD, _WEIGHTS, _CHECKPOINT = 2, 4, 12


@dataclass(frozen=True)
class Cost:
    """Of some runs together.

    Attributes:
        runs: how many.
        unknown: how many of them are of models whose size the file does not say; they count as nothing.
        gpu_hours: of training.
        disk_gb: of final checkpoints, in 10^9 bytes.
    """

    runs: int
    unknown: int
    gpu_hours: float
    disk_gb: float


def step_seconds() -> dict[str, float]:
    """Published seconds of one rollout batch with its updates, by method: clip and troll."""
    rows = [row for row in read_published() if row["metric"] == "step_runtime_s"]
    return {str(row["method"]).lower(): float(row["value"]) for row in rows}


def gpu_hours(training: Training, billions: float, *, projected: bool) -> float:
    """GPU-hours of a run: in proportion to parameters, responses and their longest length.

    Args:
        training: of the run.
        billions: parameters of the policy.
        projected: whether TROLL's step time counts, or clip's.
    """
    batch = step_seconds()["troll" if projected else "clip"]
    batch *= billions / _BILLIONS
    batch *= training.prompts_per_batch * training.responses_per_prompt / _RESPONSES
    batch *= training.max_response_tokens / _TOKENS
    batch *= _CRITIC if training.critic is not None else 1.0
    return batch * training.rollout_batches * _GPUS / 3600


def cost_of(experiment: Experiment, runs: Sequence[Run]) -> Cost:
    """The cost of some runs."""
    hours = disk = 0.0
    unknown = 0
    for run in runs:
        hub = experiment.models[run.model].hub
        if hub is None or hub.billions is None:
            unknown += 1
            continue
        projected = experiment.trust_regions[run.trust_region].rule.startswith("troll")
        hours += gpu_hours(experiment.training_of(run), hub.billions, projected=projected)
        disk += hub.billions * _WEIGHTS
    return Cost(len(runs), unknown, hours, disk)


def disk_gb(experiment: Experiment) -> float:
    """Disk for the experiment's models of the hub, in 10^9 bytes: download, results, a run's checkpoints."""
    models = [experiment.models[name].hub for name in dict.fromkeys(run.model for run in experiment.runs())]
    sizes = [hub.billions for hub in models if hub is not None and hub.billions is not None]
    if not sizes:
        return 0.0
    kept = _CHECKPOINT * max(sizes) * experiment.training.checkpoints_kept
    return cost_of(experiment, experiment.runs()).disk_gb + sum(sizes) * _DOWNLOAD + kept


def budget_lines(experiment: Experiment) -> list[str]:
    """The budget by group, as lines of text."""
    runs = experiment.runs()
    groups = {**experiment.groups(), "all": runs}
    seeds = len(experiment.seeds)
    lines = [f"budget of {experiment.experiment} ({seeds} seed{'s' if seeds > 1 else ''}), estimated:"]
    lines.append(f"  {'group':<18}{'runs':>6}{'GPU-hours':>12}{'checkpoints':>14}")
    for name, members in groups.items():
        cost = cost_of(experiment, members)
        hours = f"{cost.gpu_hours:,.0f}" if cost.gpu_hours >= 10 else f"{cost.gpu_hours:.1f}"
        lines.append(f"  {name:<18}{cost.runs:>6}{hours:>12}{cost.disk_gb:>11,.0f} GB")
    known = {run.model: experiment.models[run.model].hub for run in runs}
    sizes = [hub.billions for hub in known.values() if hub is not None and hub.billions is not None]
    kept = experiment.training.checkpoints_kept
    if sizes:
        lines.append(
            f"  and {sum(sizes) * _DOWNLOAD:,.0f} GB for {len(sizes)} models; up to "
            f"{max(sizes) * _CHECKPOINT * kept:,.0f} GB for the checkpoints of a run while it trains"
        )
    unknown = cost_of(experiment, runs).unknown
    if unknown:
        lines.append(f"  {unknown} runs are of models without hub.billions and count as nothing")
    seconds = step_seconds()
    return [
        *lines,
        f"  estimates: a rollout batch of Qwen3-4B takes {seconds['clip']:.0f} s (clip) or "
        f"{seconds['troll']:.0f} s (troll) on {_GPUS} GPUs,",
        "  as published; others in proportion to parameters, responses and longest response, twice with a",
        "  critic. Validation, sampling and grading are left out. All counts runs of several groups once.",
    ]
