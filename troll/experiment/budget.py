"""Estimates GPU-hours and disk of an experiment with pretrained models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from troll.common.errors import UserError
from troll.common.hub import in_mirror
from troll.experiment.experiment import Experiment, Run
from troll.experiment.gpu_time import batch_seconds, run_seconds
from troll.experiment.model_settings import Hub, Wheel
from troll.experiment.model_shapes import shape_of
from troll.experiment.settings import Training
from troll.experiment.sizes import validation_responses

# Bytes per parameter: download in bfloat16, weights in float32, weights with AdamW's two moments.
_DOWNLOAD, _WEIGHTS, _CHECKPOINT = 2, 4, 12


@dataclass(frozen=True)
class Hours:
    """GPU-hours, estimated, and the range in which they are expected."""

    likely: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: "Hours") -> "Hours":
        """Adds ends to ends, as the error of an estimate is the same for all runs."""
        return Hours(self.likely + other.likely, self.low + other.low, self.high + other.high)

    def __str__(self) -> str:
        low, high = _rounded(self.low), _rounded(self.high)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Budget:
    """What some runs need together."""

    runs: int
    unknown: int  # runs of models of unknown size, which are not counted in the other figures
    hours: Hours  # of training
    disk_gb: float  # of final checkpoints, in 10^9 bytes


Estimate = Callable[[Experiment, Run], Hours | None]
"""Estimates the GPU-hours of a run; None if the size of its model is unknown."""


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


def uses_critic(experiment: Experiment, run: Run, training: Training) -> bool:
    """Whether a run trains a critic: its settings may contain one that its estimator does not use."""
    from troll.algorithms.advantages import ESTIMATORS

    needed = ESTIMATORS[experiment.estimators[run.estimator].rule].needs_values
    return needed and training.critic is not None


def hours_of(experiment: Experiment, run: Run) -> Hours | None:
    """Estimates the GPU-hours of a run; None if the size of its model is unknown."""
    source = experiment.models[run.model].pretrained
    billions, training = billions_of(source), experiment.training_of(run)
    if billions is None:
        return None
    seconds = batch_seconds(
        training,
        billions,
        projected=experiment.trust_regions[run.trust_region].rule.startswith("troll"),
        critic=uses_critic(experiment, run, training),
        shape=shape_of(source),
        validation=validation_responses(run.task, experiment.tasks[run.task]),
    )
    hours = run_seconds(training, seconds) * max(1, training.gpus) / 3600
    return Hours(hours, hours / seconds.spread, hours * seconds.spread)


def budget_of(experiment: Experiment, runs: Sequence[Run], estimate: Estimate = hours_of) -> Budget:
    """Estimates the budget of some runs."""
    total, disk, unknown = Hours(), 0.0, 0
    for run in runs:
        hours = estimate(experiment, run)
        billions = billions_of(experiment.models[run.model].pretrained)
        if hours is None or billions is None:
            unknown += 1
            continue
        total += hours
        disk += billions * _WEIGHTS
    return Budget(len(runs), unknown, total, disk)


def disk_gb(experiment: Experiment) -> float:
    """Estimates the disk space that pretrained models need, in 10^9 bytes.

    Counts the downloads, the final checkpoints of all runs and the checkpoints of one run in training.
    """
    _, downloads, checkpoints = _models(experiment, experiment.runs())
    sizes = [billions_of(experiment.models[run.model].pretrained) or 0.0 for run in experiment.runs()]
    return sum(sizes) * _WEIGHTS + downloads + checkpoints


def _models(experiment: Experiment, runs: Sequence[Run]) -> tuple[int, float, float]:
    """Returns how many pretrained models have a known size; GB of downloads and of a run's checkpoints."""
    names = dict.fromkeys(run.model for run in runs)
    sizes = {name: billions_of(experiment.models[name].pretrained) for name in names}
    known = {name: size for name, size in sizes.items() if size is not None}
    checkpoints = [0.0]
    for run in {run.group_id: run for run in runs if run.model in known}.values():
        training = experiment.training_of(run)
        models = 2 if uses_critic(experiment, run, training) else 1
        # A new checkpoint is complete before the oldest is removed.
        checkpoints.append(models * known[run.model] * _CHECKPOINT * (training.checkpoints_kept + 1))
    return len(known), sum(known.values()) * _DOWNLOAD, max(checkpoints)


def budget_lines(
    experiment: Experiment, only: Sequence[str] = (), estimate: Estimate = hours_of
) -> list[str]:
    """Returns the budget by group as lines of text: of all groups, or of those named.

    Raises:
        UserError: the experiment has no such group.
    """
    runs, groups, seeds = experiment.runs(only), experiment.groups(), len(experiment.seeds)
    lines = [
        f"budget of {experiment.experiment} ({seeds} seed{'s' if seeds > 1 else ''}), estimated:",
        f"  {'group':<18}{'runs':>6}{'GPU-hours':>22}{'checkpoints':>14}",
    ]
    shown = {name: groups[name] for name in only or groups}
    if len(shown) != 1:
        shown["all"] = runs
    for name, members in shown.items():
        budget = budget_of(experiment, members, estimate)
        lines.append(f"  {name:<18}{budget.runs:>6}{budget.hours!s:>22}{budget.disk_gb:>11,.0f} GB")
    models, downloads, checkpoints = _models(experiment, runs)
    if models:
        lines.append(
            f"  plus {downloads:,.0f} GB for {models} models, and up to {checkpoints:,.0f} GB for the "
            "checkpoints of each run in training"
        )
    if unknown := budget_of(experiment, runs, estimate).unknown:
        lines.append(f"  not counted: {unknown} runs of models without `billions`")
    return [
        *lines,
        "  `all` counts each run once; the evaluation of final checkpoints is not counted. How the estimates",
        "  are made, and how far they are off: docs/cluster.md, Estimates of GPU-hours.",
    ]


def _rounded(hours: float) -> str:
    """Formats hours with two digits, as an estimate has no more."""
    if hours < 10:
        return f"{hours:.1f}" if hours >= 0.95 else f"{hours:.2g}"
    digits = len(str(int(hours))) - 2
    return f"{round(hours, -digits):,.0f}"
