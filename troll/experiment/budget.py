"""What an experiment with models of the hub would cost, estimated from published step times."""

from collections.abc import Sequence
from dataclasses import dataclass

from troll.common.errors import UserError
from troll.common.hub import in_mirror
from troll.experiment.experiment import Experiment, Run
from troll.experiment.model_settings import Hub, Wheel
from troll.experiment.published import read_published
from troll.experiment.settings import Training

# What the published step times were measured on: Qwen3-4B and the paper's batch, on its four GPUs.
_BILLIONS = 4.0
_GPUS = 4
_RESPONSES = 256 * 8
_TOKENS = 4096
_CRITIC = 2.0  # a critic as large as the policy, which is trained beside it: our guess
# Bytes for each parameter: a download in bfloat16; weights in float32; those with AdamW's two moments.
_DOWNLOAD, _WEIGHTS, _CHECKPOINT = 2, 4, 12


@dataclass(frozen=True)
class Budget:
    """What some runs together need."""

    runs: int
    unknown: int  # how many of them are of models of unknown size; they count as nothing
    gpu_hours: float  # of training
    disk_gb: float  # of final checkpoints, in 10^9 bytes


def billions_of(hub: Hub | Wheel | None) -> float | None:
    """10^9 parameters of a pretrained model: those of its copy in the mirror, else what the file says.

    None where neither tells, and for a model made from scratch. Bytes are counted as bfloat16.
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
    """Published seconds of one rollout batch with its updates, by method: clip and troll."""
    rows = [row for row in read_published() if row["metric"] == "step_runtime_s"]
    return {str(row["method"]).lower(): float(row["value"]) for row in rows}


def gpu_hours(training: Training, billions: float, *, projected: bool) -> float:
    """GPU-hours of a run: in proportion to parameters, responses and their longest length."""
    batch = step_seconds()["troll" if projected else "clip"]
    batch *= billions / _BILLIONS
    batch *= training.prompts_per_batch * training.responses_per_prompt / _RESPONSES
    batch *= training.max_response_tokens / _TOKENS
    batch *= _CRITIC if training.critic is not None else 1.0
    return batch * training.rollout_batches * _GPUS / 3600


def budget_of(experiment: Experiment, runs: Sequence[Run]) -> Budget:
    """The estimated budget of some runs."""
    hours = disk = 0.0
    unknown = 0
    for run in runs:
        billions = billions_of(experiment.models[run.model].pretrained)
        if billions is None:
            unknown += 1
            continue
        projected = experiment.trust_regions[run.trust_region].rule.startswith("troll")
        hours += gpu_hours(experiment.training_of(run), billions, projected=projected)
        disk += billions * _WEIGHTS
    return Budget(len(runs), unknown, hours, disk)


def disk_gb(experiment: Experiment) -> float:
    """Disk for the experiment's pretrained models, in 10^9 bytes: download, results, a run's checkpoints."""
    _, downloads, checkpoints = _models(experiment)
    return budget_of(experiment, experiment.runs()).disk_gb + downloads + checkpoints


def _models(experiment: Experiment) -> tuple[int, float, float]:
    """Pretrained models of known size; 10^9 bytes of their downloads, and of a run's checkpoints at most."""
    names = dict.fromkeys(run.model for run in experiment.runs())
    sizes = [billions_of(experiment.models[name].pretrained) for name in names]
    known = [size for size in sizes if size is not None]
    kept = experiment.training.checkpoints_kept
    return len(known), sum(known) * _DOWNLOAD, max(known, default=0.0) * _CHECKPOINT * kept


def budget_lines(experiment: Experiment) -> list[str]:
    """The budget by group, as lines of text."""
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
            f"  and {downloads:,.0f} GB for {models} models; up to {checkpoints:,.0f} GB for the checkpoints "
            "of a run while it trains"
        )
    if unknown := budget_of(experiment, experiment.runs()).unknown:
        lines.append(f"  {unknown} runs are of models without `billions` and count as nothing")
    seconds = step_seconds()
    return [
        *lines,
        f"  estimates: a rollout batch of Qwen3-4B takes {seconds['clip']:.0f} s (clip) or "
        f"{seconds['troll']:.0f} s (troll) on {_GPUS} GPUs,",
        "  as published; others in proportion to parameters, responses and longest response, twice with a",
        "  critic. Validation, sampling and grading are left out. All counts runs of several groups once.",
    ]
