"""Names of places: where runs and base models lie below ``results/<experiment>``, and what tables call them.

A place is ``runs/<model>/<task>/<trust region>/<estimator>/<condition>/seed<k>`` or ``base/<model>/<task>``.
"""

import re
from collections.abc import Iterable, Mapping

from troll.experiment.experiment import BASE, Run

Wildcards = Mapping[str, str]
"""The values of a job's wildcards by name, as Snakemake hands them to a function."""


def one_of(names: Iterable[str]) -> str:
    """A pattern that matches these names and nothing else."""
    return "|".join(map(re.escape, names)) or "(?!)"


def verbatim(text: str) -> str:
    """A text without names in braces for Snakemake: paths of users may hold braces."""
    return text.replace("{", "{{").replace("}", "}}")


def run_id(wildcards: Wildcards) -> str:
    """The run that a job's wildcards name."""
    names = ("model", "task", "trust_region", "estimator", "condition")
    return "/".join([*(wildcards[name] for name in names), f"seed{wildcards['seed']}"])


def run_id_of(place: str) -> str:
    """The name of a place in tables: runs stand there without the directory that holds them."""
    return place.removeprefix("runs/")


def task_of(wildcards: Wildcards) -> str:
    """The task of the place that a job's wildcards name."""
    return wildcards["checkpoint_dir"].split("/")[2]


def place_of_run(run: Run) -> str:
    """Where a run lies."""
    return f"runs/{run.run_id}"


def place_of_base(model: str, task: str) -> str:
    """Where a base model lies."""
    return f"{BASE}/{model}/{task}"


def places_of(runs: Iterable[Run]) -> list[str]:
    """Places of some runs and of the base models that they start from, each once."""
    every = list(runs)
    bases = dict.fromkeys(place_of_base(run.model, run.task) for run in every)
    return [*map(place_of_run, every), *bases]
