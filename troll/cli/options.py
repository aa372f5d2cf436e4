"""What several commands' options share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from troll.common.errors import UserError
from troll.common.explain import explain
from troll.common.files import parse_json

if TYPE_CHECKING:
    from troll.analysis.data.results import Results

AROUND_A_RUN = "Around a run"
"""The part of `troll --help` with the commands that people type; the workflow calls the others."""


_ADDED = (".csv", ".md", ".tex", ".json", ".png", ".svg", ".pdf")


def without_suffix(path: Path | None) -> Path | None:
    """A path to which suffixes are added: one that somebody wrote already is not there twice."""
    return path.with_suffix("") if path is not None and path.suffix in _ADDED else path


Out = Annotated[Path, typer.Option(help="where to write")]
Stem = Annotated[Path, typer.Option(help="where to write; suffixes are added", callback=without_suffix)]
Log = Annotated[Path | None, typer.Option(help="file for everything but progress and errors")]
Config = Annotated[str, typer.Option(help="resolved settings as JSON; the workflow passes them")]
EngineName = Annotated[str, typer.Option("--engine", help="transformers or vllm")]
Gpus = Annotated[int, typer.Option(help="fail where there are fewer GPUs; 0 uses one if there is one", min=0)]
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


def settings_of(option: str, text: str, model: type[_Model]) -> _Model:
    """The settings of an option that is given as a JSON object.

    Raises:
        UserError: it is not a JSON object, or one with a wrong key or value.
    """
    try:
        return model.model_validate(json_object(option, text))
    except ValidationError as error:
        raise UserError(f"{option}: {explain(error, model)}") from None


Ledger = Annotated[
    list[str] | None, typer.Option(help="a file of claims, may be repeated; none: those of the experiment")
]


def claim_files(ledger: Sequence[str] | None, known: "Results | None" = None) -> list[Path]:
    """The files of claims that were named, or those of the experiment, or the package's."""
    from troll.analysis.claims.packaged import DEFAULT, claims_file

    return [claims_file(name) for name in ledger or (known.claims if known else ()) or [DEFAULT]]
