"""What several commands' options share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from troll.errors import UserError

Out = Annotated[Path, typer.Option(help="where to write")]
Stem = Annotated[Path, typer.Option(help="where to write, without suffix")]
Config = Annotated[str, typer.Option(help="resolved settings as JSON; the workflow passes them")]
EngineName = Annotated[str, typer.Option("--engine", help="transformers or vllm")]
EngineOptions = Annotated[
    str, typer.Option(help="arguments of vllm.LLM as JSON, such as tensor_parallel_size")
]


def parse_json(option: str, text: str) -> Any:
    """The value of an option that is given as JSON.

    Raises:
        UserError: it is no JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{option}: not JSON ({error})") from None


def json_object(option: str, text: str) -> dict[str, Any]:
    """As `parse_json`, for an option that must be an object.

    Raises:
        UserError: it is no JSON, or no object.
    """
    value = parse_json(option, text)
    if not isinstance(value, dict):
        raise UserError(f"{option}: expected a JSON object, found {type(value).__name__}")
    return value
