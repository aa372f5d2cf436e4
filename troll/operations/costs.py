"""`troll check --cost`: GPU-hours, disk and memory of an experiment's runs, corrected by runs that ended."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from troll.common.files import parse_json
from troll.experiment.budget import Estimate, Hours, budget_lines, hours_of
from troll.experiment.experiment import Experiment, Run
from troll.experiment.files import load_experiment
from troll.operations.gpu_fit import known_card, memory_lines, refuse_impossible

# After runs of the same model have ended, others are expected within this factor of their mean; our guess.
_CORRECTED_SPREAD = 1.3


def cost_lines(experiment: Experiment, results: Path, only: Sequence[str] = ()) -> list[str]:
    """Returns the estimates for an experiment, or for some of its groups, as lines of text."""
    root = results / experiment.experiment
    return [
        *budget_lines(experiment, only, corrected(experiment, root)),
        *memory_lines(experiment, experiment.runs(only), known_card(experiment)),
    ]


def show_costs(file: Path, results: Path, only: Sequence[str] = ()) -> None:
    """Prints the estimates for an experiment file; raises a `UserError` if a run cannot fit the GPUs."""
    experiment = load_experiment(file)
    print("\n".join(cost_lines(experiment, results, only)))
    refuse_impossible(experiment, experiment.runs(only), file)


def ended_hours(run: Run, root: Path) -> float | None:
    """Returns the GPU-hours that a finished run took, from its manifest; None if it has not ended on GPUs."""
    try:
        text = (root / "runs" / run.run_id / "manifest.json").read_text(encoding="utf-8")
        manifest: Any = parse_json(text)
        seconds, gpus = float(manifest["wall_s"]), manifest["config"]["training"]["gpus"]
        on_gpus = bool(manifest["hardware"]["gpus"])
    except (OSError, LookupError, TypeError, ValueError):
        return None
    return seconds * max(1, gpus) / 3600 if on_gpus and 0 < seconds < math.inf else None


def corrected(experiment: Experiment, root: Path) -> Estimate:
    """Returns `hours_of` with runs that have ended as they were, and others in proportion to them.

    The factor is the geometric mean of measured over estimated hours, over the ended runs of the same model;
    without one, over all ended runs.
    """
    measured: dict[str, float] = {}
    ratios: dict[str, list[float]] = {}
    for run in experiment.runs():
        hours = ended_hours(run, root)
        expected = hours_of(experiment, run) if hours is not None else None
        if hours is not None and expected is not None:
            measured[run.run_id] = hours
            ratios.setdefault(run.model, []).append(hours / expected.likely)
    everything = [ratio for of_model in ratios.values() for ratio in of_model]

    def estimate(experiment: Experiment, run: Run) -> Hours | None:
        if run.run_id in measured:
            return Hours(*[measured[run.run_id]] * 3)
        hours = hours_of(experiment, run)
        known = ratios.get(run.model)
        if hours is None or not everything:
            return hours
        factor = geometric_mean(known or everything)
        if not known:
            return Hours(hours.likely * factor, hours.low * factor, hours.high * factor)
        likely = hours.likely * factor
        return Hours(likely, likely / _CORRECTED_SPREAD, likely * _CORRECTED_SPREAD)

    return estimate
