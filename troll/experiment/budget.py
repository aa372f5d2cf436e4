"""Estimates GPU-hours and disk of an experiment with pretrained models, from published step times."""

from collections.abc import Sequence
from dataclasses import dataclass

from troll.common.errors import UserError
from troll.common.hub import in_mirror
from troll.experiment.experiment import Experiment, Run
from troll.experiment.model_settings import Hub, Wheel
from troll.experiment.published import read_published
from troll.experiment.settings import Training
from troll.experiment.sizes import validation_responses

# The published step times were measured with Qwen3-4B and the paper's batch on four GPUs.
_BILLIONS = 4.0
_GPUS = 4
_RESPONSES = 256 * 8
_TOKENS = 4096
_CRITIC = 2.0  # our guess for a critic as large as the policy
# Bytes per parameter: download in bfloat16, weights in float32, weights with AdamW's two moments.
_DOWNLOAD, _WEIGHTS, _CHECKPOINT = 2, 4, 12


@dataclass(frozen=True)
class Budget:
    """What some runs need together."""

    runs: int
    unknown: int  # runs of models of unknown size, which are not counted in the other figures
    gpu_hours: float  # of training
    disk_gb: float  # of final checkpoints, in 10^9 bytes


def billions_of(hub: Hub | Wheel | None) -> float | None:
    """Returns 10^9 parameters of a pretrained model: of its copy in the mirror, or as the file says.

    None if neither tells, and for a model made from scratch. The mirror's weights are assumed to be bfloat16.
    """
    if not isinstance(hub, Hub):
        return hub.billions if hub is not None else None
    try:
        directory = in_mirror(hub.id)
    except UserError:
        directory = None
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors")) if directory else 0
    return weights / _DOWNLOAD / 1e9 if weights else hub.billions


def step_seconds() -> dict[str, float]:
    """Returns the published seconds of one rollout batch with its updates, for clip and troll."""
    rows = [row for row in read_published() if row["metric"] == "step_runtime_s"]
    return {str(row["method"]).lower(): float(row["value"]) for row in rows}


def gpu_hours(
    training: Training, billions: float, *, projected: bool, validation_responses: int = 0
) -> float:
    """Estimates the GPU-hours of a run, in proportion to parameters, responses and longest response.

    A response of a validation counts as much as one that is trained on, which is more than it takes.
    """
    batch = step_seconds()["troll" if projected else "clip"]
    batch *= billions / _BILLIONS
    batch *= training.prompts_per_batch * training.responses_per_prompt / _RESPONSES
    batch *= training.max_response_tokens / _TOKENS
    batch *= _CRITIC if training.critic is not None else 1.0
    batches = float(training.rollout_batches)
    if training.validate_every:  # also before the first and after the last batch
        validations = 1 + -(-training.rollout_batches // training.validate_every)
        responses = training.prompts_per_batch * training.responses_per_prompt
        batches += validations * validation_responses / responses
    return batch * batches * _GPUS / 3600


def budget_of(experiment: Experiment, runs: Sequence[Run]) -> Budget:
    """Estimates the budget of some runs."""
    hours = disk = 0.0
    unknown = 0
    for run in runs:
        billions = billions_of(experiment.models[run.model].pretrained)
        if billions is None:
            unknown += 1
            continue
        projected = experiment.trust_regions[run.trust_region].rule.startswith("troll")
        hours += gpu_hours(
            experiment.training_of(run),
            billions,
            projected=projected,
            validation_responses=validation_responses(run.task, experiment.tasks[run.task]),
        )
        disk += billions * _WEIGHTS
    return Budget(len(runs), unknown, hours, disk)


def disk_gb(experiment: Experiment) -> float:
    """Estimates the disk space that pretrained models need, in 10^9 bytes.

    Counts the downloads, the final checkpoints of all runs and the checkpoints of one run in training.
    """
    _, downloads, checkpoints = _models(experiment)
    return budget_of(experiment, experiment.runs()).disk_gb + downloads + checkpoints


def _models(experiment: Experiment) -> tuple[int, float, float]:
    """Returns how many pretrained models have a known size; GB of downloads and of a run's checkpoints."""
    names = dict.fromkeys(run.model for run in experiment.runs())
    sizes = [billions_of(experiment.models[name].pretrained) for name in names]
    known = [size for size in sizes if size is not None]
    kept = experiment.training.checkpoints_kept
    return len(known), sum(known) * _DOWNLOAD, max(known, default=0.0) * _CHECKPOINT * kept


def budget_lines(experiment: Experiment) -> list[str]:
    """Returns the budget by group as lines of text."""
    seeds = len(experiment.seeds)
    lines = [f"budget of {experiment.experiment} ({seeds} seed{'s' if seeds > 1 else ''}), estimated:"]
    lines.append(f"  {'group':<18}{'runs':>6}{'GPU-hours':>12}{'checkpoints':>14}")
    for name, members in {**experiment.groups(), "all": experiment.runs()}.items():
        budget = budget_of(experiment, members)
        hours = f"{budget.gpu_hours:,.0f}" if budget.gpu_hours >= 10 else f"{budget.gpu_hours:.1f}"
        lines.append(f"  {name:<18}{budget.runs:>6}{hours:>12}{budget.disk_gb:>11,.0f} GB")
    models, downloads, checkpoints = _models(experiment)
    if models:
        lines.append(
            f"  plus {downloads:,.0f} GB for {models} models, and up to {checkpoints:,.0f} GB for the "
            "checkpoints of each run in training"
        )
    if unknown := budget_of(experiment, experiment.runs()).unknown:
        lines.append(f"  not counted: {unknown} runs of models without `billions`")
    seconds = step_seconds()
    return [
        *lines,
        f"  estimates: a rollout batch of Qwen3-4B takes {seconds['clip']:.0f} s (clip) or "
        f"{seconds['troll']:.0f} s (troll) on {_GPUS} GPUs,",
        "  as published; other runs scale with parameters, responses and longest response, and a critic",
        "  doubles the time. With validation; without sampling and grading. `all` counts each run once.",
    ]
