"""Reading and writing experiment files and run files; what is wrong with one is a single line."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from troll.checks import explain, problems, run_problems
from troll.errors import UserError
from troll.experiments import Experiment
from troll.files import read_yaml, write_text
from troll.settings import Training


def _parse_shape(data: Any, source: str) -> Experiment:
    """The file's keys and types; names, settings and combinations are not looked at."""
    if not isinstance(data, dict):
        raise UserError(f"{source}: expected a mapping with keys {', '.join(Experiment.model_fields)}")
    try:
        return Experiment.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{source}: {explain(error, Experiment)}") from None


def parse_experiment(data: Any, source: str) -> Experiment:
    """Checks the contents of an experiment file.

    Args:
        data: the parsed YAML.
        source: what to call the file in messages.

    Raises:
        UserError: the first problem, as one line with file, field, value and the valid choices.
    """
    experiment = _parse_shape(data, source)
    for problem in itertools.chain(problems(experiment), run_problems(experiment)):
        raise UserError(f"{source}: {problem}")
    return experiment


def load_experiment(path: Path) -> Experiment:
    """Reads and checks an experiment file.

    Raises:
        UserError: it is missing, no YAML, or wrong.
    """
    return parse_experiment(read_yaml(path, "experiment file"), str(path))


def read_experiment(path: Path) -> Experiment:
    """Reads an experiment file that has been checked before: keys and types only, without torch, at once.

    Raises:
        UserError: it is missing, no YAML, or has a wrong key or type.
    """
    return _parse_shape(read_yaml(path, "experiment file"), str(path))


def write_run_file(path: Path, config: Mapping[str, Any]) -> None:
    """Writes a run.yaml."""
    write_text(path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def read_run_file(path: Path) -> dict[str, Any]:
    """Reads a run.yaml.

    Raises:
        UserError: it is missing, no mapping, or has settings of training that this version does not know.
    """
    config = read_yaml(path, "run file")
    if not isinstance(config, dict) or "run_id" not in config:
        raise UserError(f"{path}: not a run file; `troll configure` writes them")
    try:
        Training.model_validate(config.get("training"))
    except ValidationError as error:
        problem = explain(error, Training, "training")
        raise UserError(f"{path}: {problem}; delete a file of another version, and write it again") from None
    return config
