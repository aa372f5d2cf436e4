"""The tables and figures that an experiment makes, and its runs that are already in the tables."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from troll.analysis.registry import BASELINE, Entry, Kind, When, crossed, requested, stems, variants_of
from troll.experiment.base_seeds import kind_name
from troll.experiment.directories import released_directory
from troll.experiment.experiment import Experiment, Run
from troll.experiment.keys import planned_keys

if TYPE_CHECKING:
    from troll.analysis.data.archive import ArchivedRun


def entries_of(
    kind: Kind, experiment: Experiment, runs: Iterable[Run], group: str | None = None
) -> list[Entry]:
    """Lists the tables or figures of an experiment, or of a group of its runs."""
    by_setting = {run.group_id: run for run in runs}
    rules = {run.trust_region: rule_of(experiment, run) for run in by_setting.values()}
    applies: dict[When, bool] = {
        "always": True,
        "compared": len(rules) > 1 and BASELINE in rules,
        "variants": bool(variants_of(rules)),
        "crossed": _varies_both(experiment, by_setting.values()),
        "base models": _varies_base_seed(experiment, by_setting.values()),
        "published": experiment.published,
    }
    return requested(kind, applies, group)


def figures_of(
    experiment: Experiment, runs: Collection[Run], group: str | None = None
) -> Iterator[tuple[Entry, str, str]]:
    """Yields each figure of an experiment, or of a group of its runs, with its task and its file's stem.

    Figures made per task appear once for each task; for the others, the task is empty.
    """
    tasks = dict.fromkeys(run.task for run in runs)
    for entry in entries_of("figure", experiment, runs, group):
        for task in tasks if entry.per_task else [""]:
            (stem,) = stems([entry], [task])
            yield entry, task, stem


def rule_of(experiment: Experiment, run: Run) -> str:
    """Returns the rule of a run's trust region, as opposed to the experiment's name for that trust region."""
    return experiment.trust_regions[run.trust_region].rule


def reusable_runs(
    experiment: Experiment, results: Path, skipped: Collection[str] = ()
) -> "dict[str, ArchivedRun]":
    """Returns the planned runs and base models that are already in the experiment's tables, by run id.

    Those appended here win over those of the release, which do not count if the experiment is to be repeated.
    Empty if the experiment does not keep an archive: all runs are made.
    """
    if not experiment.archive:
        return {}
    from troll.analysis.data.archive import archived_runs

    tables = (
        [archived_runs(results)]
        if experiment.repeat
        else [archived_runs(released_directory(results)), archived_runs(results)]
    )
    keys = planned_keys(experiment, experiment.runs(), skipped) if any(tables) else {}
    return {
        name: rows[name]
        for rows in tables
        for name, key in keys.items()
        if name in rows and rows[name].counts_as(key)
    }


def _varies_both(experiment: Experiment, runs: Iterable[Run]) -> bool:
    """Whether any method is planned at two or more learning rates, each with the same two stalenesses."""
    pairs: dict[tuple[str, ...], list[tuple[float, tuple[int, int]]]] = {}
    for run in runs:
        training = experiment.training_of(run)
        stale = training.mini_batches * training.num_iterations, training.policy_lag
        method = run.model, run.task, run.trust_region, run.estimator
        pairs.setdefault(method, []).append((training.learning_rate, stale))
    return any(crossed(pairs_of) for pairs_of in pairs.values())


def _varies_base_seed(experiment: Experiment, runs: Iterable[Run]) -> bool:
    """Whether runs are planned from two base models that differ only in their seed."""
    seeds = {run.model: experiment.models[run.model].base_seed for run in runs}
    kinds = [kind_name(model, seed) for model, seed in seeds.items() if seed is not None]
    return len(set(kinds)) < len(kinds)
