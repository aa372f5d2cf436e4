"""Keys of runs: digests of configuration and evaluation, which identify the runs that a file plans."""

import json
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from troll.common.digests import digest_of_json
from troll.experiment.experiment import BASE, Experiment, Run, resolve, resolve_base
from troll.experiment.settings import Suite


def key_of(config: Any, evaluation: Any) -> str:
    """Returns the digest of what defines a run and its grades."""
    return digest_of_json(
        json.loads(json.dumps([config, evaluation]))
    )  # turns tuples into lists, as files do


def largest_values(experiment: Experiment, runs: Iterable[Run], setting: str) -> dict[str, int]:
    """Returns a training setting by run or base model (``runs/<run_id>``, ``base/<model>/<task>``).

    A base model gets the largest value of its runs.
    """
    largest: dict[str, int] = {}
    for run in runs:
        value = getattr(experiment.training_of(run), setting)
        for place in (f"runs/{run.run_id}", f"{BASE}/{run.model}/{run.task}"):
            largest[place] = max(value, largest.get(place, 0))
    return largest


def suites_of(experiment: Experiment, task: str, skipped: Collection[str] = ()) -> dict[str, Suite]:
    """Returns the suites of a task, the further data sets that its models are evaluated on."""
    suites = experiment.tasks[task].evaluate_on
    return {name: suite for name, suite in suites.items() if name not in skipped}


def planned_keys(
    experiment: Experiment, runs: Iterable[Run], skipped: Collection[str] = ()
) -> dict[str, str]:
    """Returns the keys of runs by run_id, and of their base models by ``base/<model>/<task>``."""
    every = list(runs)
    tokens = largest_values(experiment, every, "max_response_tokens")
    shared = experiment.how_evaluated()

    @cache
    def evaluation(task: str, max_tokens: int) -> dict[str, Any]:
        suites = {name: suite.model_dump() for name, suite in suites_of(experiment, task, skipped).items()}
        return {**shared, "max_tokens": max_tokens, "suites": suites}

    keys = {
        run.run_id: key_of(
            resolve(experiment, run).model_dump(), evaluation(run.task, tokens[f"runs/{run.run_id}"])
        )
        for run in every
    }
    for model, task in dict.fromkeys((run.model, run.task) for run in every):
        place = f"{BASE}/{model}/{task}"
        config = resolve_base(experiment, model, task).model_dump()
        keys[place] = key_of(config, evaluation(task, tokens[place]))
    return keys
