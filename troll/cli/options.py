"""What several commands' options share."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from troll.common.errors import UserError
from troll.common.explain import explain
from troll.common.files import parse_json, read_json, read_yaml

_ADDED = (".csv", ".md", ".tex", ".json", ".png", ".svg", ".pdf")


def without_suffix(path: Path | None) -> Path | None:
    """A path to which suffixes are added: one that somebody wrote already is not there twice."""
    return path.with_suffix("") if path is not None and path.suffix in _ADDED else path


Out = Annotated[Path, typer.Option(help="where to write")]
Stem = Annotated[Path, typer.Option(help="where to write; suffixes are added", callback=without_suffix)]
Log = Annotated[Path | None, typer.Option(help="file for everything but progress and errors")]
Config = Annotated[Path, typer.Option(help="file of resolved settings, JSON or YAML; the workflow writes it")]

File = Annotated[Path, typer.Argument(help="an experiment file")]
ProtocolFile = Annotated[Path, typer.Argument(help="the protocol: rules, their spaces, seeds")]
ResultsRoot = Annotated[Path, typer.Option("--results", help="directory that holds results by experiment")]
DEFAULT_RESULTS = Path("results")
Only = Annotated[list[str] | None, typer.Option(help="a group of its runs; may be repeated")]
Cores = Annotated[int, typer.Option(help="processors; 0 for all", min=0)]

Results = Annotated[Path, typer.Option(help="directory with tidy/ and plan.json, as collect wrote them")]
Formats = Annotated[
    list[str] | None,
    typer.Option("--format", help="png, svg or pdf; may be repeated; default png"),
]
Ledger = Annotated[
    list[str] | None, typer.Option(help="a file of claims; may be repeated; default the experiment's")
]

Task = Annotated[str, typer.Option(help="name of the task")]
Temperature = Annotated[float, typer.Option(help="0 is greedy")]
MaxTokens = Annotated[int, typer.Option(help="longest response")]
BatchSize = Annotated[int, typer.Option(help="responses at a time")]
Seed = Annotated[int, typer.Option(help="seed of the random streams")]
Chat = Annotated[str, typer.Option(help="chat template: on, off; auto: if there is one")]
Thinking = Annotated[bool, typer.Option("--thinking", help="let a model that can (Qwen3) think first")]
CutPrompts = Annotated[bool, typer.Option("--cut-prompts", help="cut the start of prompts that are too long")]
OnlyPresent = Annotated[
    bool, typer.Option("--only-present", help="grade only the problems that have a sample")
]
Split = Annotated[str | None, typer.Option(help="split of the public data set; default test")]
EngineName = Annotated[str, typer.Option("--engine", help="transformers or vllm")]
Gpus = Annotated[int, typer.Option(help="fail if there are fewer GPUs; 0 uses one if there is one", min=0)]
EngineOptions = Annotated[
    str, typer.Option(help="arguments of vllm.LLM as JSON, such as tensor_parallel_size")
]


_Model = TypeVar("_Model", bound=BaseModel)


def json_value(option: str, text: str) -> Any:
    """The value of an option that is given as JSON.

    Raises:
        UserError: it is not JSON.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{option}: not JSON ({error})") from None


def json_object(option: str, text: str) -> dict[str, Any]:
    """As `json_value`, for an option that must be an object.

    Raises:
        UserError: it is not JSON, or not an object.
    """
    value = json_value(option, text)
    if not isinstance(value, dict):
        raise UserError(f"{option}: expected a JSON object, found {type(value).__name__}")
    return value


def read_settings(path: Path, model: type[_Model]) -> _Model:
    """The settings in a file of JSON or YAML.

    Raises:
        UserError: it is missing, cannot be read, or has a wrong key or value.
    """
    settings = read_json(path) if path.suffix == ".json" else read_yaml(path, "file of settings")
    if not isinstance(settings, dict):
        raise UserError(f"{path}: must be a mapping of settings (found {type(settings).__name__})")
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, model)}") from None


def seed_list(text: str) -> list[int]:
    """The seeds of an option such as ``0,1,2``.

    Raises:
        UserError: they are no distinct whole numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len({*map(int, parts)}) < len(parts):
        raise UserError(f"--seeds: must be a list of distinct integers, such as 0,1,2 (got {text!r})")
    return [int(part) for part in parts]
