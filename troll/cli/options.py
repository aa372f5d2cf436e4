"""Options that several commands share, and readers of their values."""

import contextlib
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from troll.common.errors import UserError
from troll.common.explain import validated
from troll.common.files import read_json, read_yaml
from troll.common.processor import available_cores

_ADDED = (".csv", ".md", ".tex", ".json", ".png", ".svg", ".pdf")


def core_count(text: str) -> int:
    """Returns the number that ``--cores`` asks for."""
    if text == "all":
        return available_cores()
    with contextlib.suppress(ValueError):
        if (count := int(text)) > 0:
            return count
    raise UserError(
        f"--cores: must be a positive integer or all, as in `make results CORES=2` (got {text!r})"
    )


def without_suffix(path: Path | None) -> Path | None:
    """Drops a suffix that the command adds itself, so that OUT.csv is accepted for OUT."""
    return path.with_suffix("") if path is not None and path.suffix in _ADDED else path


Out = Annotated[Path, typer.Option(help="where to write")]
Stem = Annotated[Path, typer.Option(help="where to write; suffixes are added", callback=without_suffix)]
Log = Annotated[Path | None, typer.Option(help="file for everything but progress and errors")]
Config = Annotated[Path, typer.Option(help="JSON or YAML file of complete settings; the workflow writes it")]

File = Annotated[Path, typer.Argument(help="an experiment file")]
ProtocolFile = Annotated[Path, typer.Argument(help="file of a protocol: rules, their search spaces, seeds")]
ResultsRoot = Annotated[Path, typer.Option("--results", help="directory with the results of each experiment")]
DEFAULT_RESULTS = Path("results")
Only = Annotated[list[str] | None, typer.Option(help="a group of runs; may be repeated")]
Cores = Annotated[str, typer.Option("--cores", "-c", help="number of CPU cores, or all")]

Results = Annotated[Path, typer.Option(help="directory with tidy/ and plan.json")]
Formats = Annotated[
    list[str] | None, typer.Option("--format", help="png, svg or pdf; may be repeated; default: png")
]
Ledger = Annotated[
    list[str] | None, typer.Option(help="a file of claims; may be repeated; default: the experiment's")
]

Task = Annotated[str, typer.Option(help="name of the task")]
Gpus = Annotated[int, typer.Option(help="required number of GPUs; 0 uses one if there is one", min=0)]

_Model = TypeVar("_Model", bound=BaseModel)


def read_mapping(path: Path) -> dict[str, Any]:
    """Reads a mapping from a JSON or YAML file; `UserError` if the file has something else."""
    settings = read_json(path) if path.suffix == ".json" else read_yaml(path, "settings file")
    if not isinstance(settings, dict):
        raise UserError(f"{path}: must be a mapping of settings (found {type(settings).__name__})")
    return settings


def read_settings(path: Path, model: type[_Model]) -> _Model:
    """Reads settings from a JSON or YAML file and validates them."""
    return validated(model, read_mapping(path), path)


def seed_list(text: str) -> list[int]:
    """Parses the seeds of an option such as ``0,1,2``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len({*map(int, parts)}) < len(parts):
        raise UserError(f"--seeds: must be a list of distinct integers, such as 0,1,2 (got {text!r})")
    return [int(part) for part in parts]
