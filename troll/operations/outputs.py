"""What an experiment has: tables and figures, and runs that are in its tables already."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from troll.analysis.registry import Entry, Kind, When, crossed, requested, stems, variants_of
from troll.experiment.base_seeds import kind_name
from troll.experiment.experiment import Experiment, Run
from troll.experiment.keys import planned_keys

if TYPE_CHECKING:
    from troll.analysis.data.archive import Held


def entries_of(
    kind: Kind, experiment: Experiment, runs: Iterable[Run], group: str | None = None
) -> list[Entry]:
    """The tables or figures of an experiment, or of a group of its runs."""
    by_setting = {run.group_id: run for run in runs}
    rules = {run.trust_region: rule_of(experiment, run) for run in by_setting.values()}
    applies: dict[When, bool] = {
        "always": True,
        "variants": bool(variants_of(rules)),
        "crossed": _varies_both(experiment, by_setting.values()),
        "base models": _varies_base_seed(experiment, by_setting.values()),
        "published": experiment.published,
    }
    return requested(kind, applies, group)


def figures_of(
    experiment: Experiment, runs: Collection[Run], group: str | None = None
) -> Iterator[tuple[Entry, str, str]]:
    """The figures of an experiment, or of a group of its runs, with the task of each and its file's stem.

    A figure of one task is there once for each; the task of others is empty.
    """
    tasks = dict.fromkeys(run.task for run in runs)
    for entry in entries_of("figure", experiment, runs, group):
        for task in tasks if entry.per_task else [""]:
            (stem,) = stems([entry], [task])
            yield entry, task, stem


def rule_of(experiment: Experiment, run: Run) -> str:
    """The rule of a run's trust region, whatever the experiment calls it."""
    return experiment.trust_regions[run.trust_region].rule


def made(experiment: Experiment, results: Path, skipped: Collection[str] = ()) -> "dict[str, Held]":
    """The planned runs and base models of an experiment that are in its tables, by run id.

    Where it keeps no archive there are none: its tables may be a release, and its runs are made.
    """
    if not experiment.archive:
        return {}
    from troll.analysis.data.archive import held

    rows = held(results)
    keys = planned_keys(experiment, experiment.runs(), skipped) if rows else {}
    return {name: rows[name] for name, key in keys.items() if name in rows and rows[name].counts_as(key)}


def _varies_both(experiment: Experiment, runs: Iterable[Run]) -> bool:
    """Whether some method was planned at two learning rates or more, each with the same two stalenesses."""
    pairs: dict[tuple[str, ...], list[tuple[float, tuple[int, int]]]] = {}
    for run in runs:
        training = experiment.training_of(run)
        stale = training.mini_batches * training.num_iterations, training.policy_lag
        method = run.model, run.task, run.trust_region, run.estimator
        pairs.setdefault(method, []).append((training.learning_rate, stale))
    return any(crossed(pairs_of) for pairs_of in pairs.values())


def _varies_base_seed(experiment: Experiment, runs: Iterable[Run]) -> bool:
    """Whether runs are planned from two base models that differ by their seed alone."""
    seeds = {run.model: experiment.models[run.model].base_seed for run in runs}
    kinds = [kind_name(model, seed) for model, seed in seeds.items() if seed is not None]
    return len(set(kinds)) < len(kinds)
