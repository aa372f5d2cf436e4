"""Reads and writes experiment files and run files; errors in them are reported as one line."""

import itertools
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from troll.common.errors import UserError
from troll.common.explain import explain, validated
from troll.common.files import read_yaml, write_text
from troll.experiment.experiment import Experiment
from troll.experiment.run_config import RunConfig
from troll.experiment.validation import problems, problems_without_torch, run_problems

# Marks a template of YTE, through which Snakemake reads configuration files, even with `snakemake -n`.
_TEMPLATE = "__use_yte__"


def _parse_shape(data: Any, source: str) -> Experiment:
    """Checks the file's keys and types, but not names, settings and combinations."""
    if not isinstance(data, dict):
        raise UserError(f"{source}: expected a mapping with keys {', '.join(Experiment.model_fields)}")
    return validated(Experiment, data, source)


def parse_experiment(data: Any, source: str) -> Experiment:
    """Parses and checks the contents of an experiment file, which messages call ``source``."""
    experiment = _parse_shape(data, source)
    for problem in itertools.chain(problems(experiment), run_problems(experiment)):
        raise UserError(f"{source}: {problem}")
    return experiment


def read_configuration(path: Path) -> Any:
    """Reads an experiment file without checking its contents."""
    data = read_yaml(path, "experiment file")
    if isinstance(data, dict) and _TEMPLATE in data:
        raise UserError(
            f"{path}: {_TEMPLATE}: Snakemake runs the code in such a file before anything can check it; "
            "remove the key, and write plain values"
        )
    return data


def load_experiment(path: Path) -> Experiment:
    """Reads and checks an experiment file."""
    return parse_experiment(read_configuration(path), str(path))


def read_experiment(path: Path) -> Experiment:
    """Reads an experiment file quickly, to list its runs: without torch and without checking settings."""
    experiment = _parse_shape(read_configuration(path), str(path))
    # Checks a copy, because the list of runs is cached and the caller may change the seeds.
    for problem in problems_without_torch(experiment.model_copy()):
        raise UserError(f"{path}: {problem}")
    return experiment


def write_run_file(path: Path, config: RunConfig) -> None:
    """Writes a run.yaml."""
    write_text(path, yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True))


def read_run_file(path: Path) -> RunConfig:
    """Reads a run.yaml."""
    data = read_yaml(path, "run file")
    if not isinstance(data, dict) or "run_id" not in data:
        raise UserError(f"{path}: not a run file; `troll job configure` writes run files")
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        problem = explain(error, RunConfig)
        raise UserError(f"{path}: {problem}; delete a file of another version to write it again") from None
