"""Names of places, the directories of runs and base models below ``results/<experiment>``.

A place is ``runs/<model>/<task>/<trust region>/<estimator>/<condition>/seed<k>`` or ``base/<model>/<task>``.
"""

import re
from collections.abc import Iterable, Mapping

from troll.experiment.experiment import BASE, COORDINATES, Run

Wildcards = Mapping[str, str]
"""The values of a job's wildcards by name, as Snakemake passes them to input functions."""


def one_of(names: Iterable[str]) -> str:
    """Returns a regular expression that matches exactly these names."""
    return "|".join(map(re.escape, names)) or "(?!)"


def verbatim(text: str) -> str:
    """Escapes braces, which Snakemake would format: users' paths may contain them."""
    return text.replace("{", "{{").replace("}", "}}")


def run_id(wildcards: Wildcards) -> str:
    """Returns the run id that a job's wildcards stand for."""
    return "/".join([*(wildcards[name] for name in COORDINATES), f"seed{wildcards['seed']}"])


def run_id_of(place: str) -> str:
    """Returns the name of a place in the tables, which leave out the directory ``runs/``."""
    return place.removeprefix("runs/")


def task_of(wildcards: Wildcards) -> str:
    """Returns the task of the place that a job's wildcards stand for."""
    return wildcards["checkpoint_dir"].split("/")[2]


def place_of_run(run: Run) -> str:
    """Returns the place of a run."""
    return f"runs/{run.run_id}"


def place_of_base(model: str, task: str) -> str:
    """Returns the place of a base model."""
    return f"{BASE}/{model}/{task}"


def places_of(runs: Iterable[Run]) -> list[str]:
    """Returns the places of runs and of the base models that they start from, without duplicates."""
    every = list(runs)
    bases = dict.fromkeys(place_of_base(run.model, run.task) for run in every)
    return [*map(place_of_run, every), *bases]
