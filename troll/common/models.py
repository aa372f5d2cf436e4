"""Loads saved models, with one-line errors for damaged ones."""

import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from troll.common.digests import damage
from troll.common.errors import UserError
from troll.common.files import read_json
from troll.common.machine_errors import about_memory

MANIFEST = "manifest.json"
CHECKPOINT = "checkpoint"
PRECISION = "precision"
"""What a manifest says of a large model's precision on a CPU; see `troll.training.precision`."""


class _File(BaseModel):
    bytes: int
    sha256: str


class _Manifest(BaseModel):
    """The part of a manifest that describes the checkpoint next to it; missing in older versions."""

    model_config = ConfigDict(extra="ignore")
    checkpoint: dict[str, _File] = {}


def check_checkpoint(checkpoint: Path) -> None:
    """Raises `UserError` if a checkpoint differs from the manifest next to it, if there is one."""
    path = checkpoint.parent / MANIFEST
    if checkpoint.name != CHECKPOINT or not path.is_file():
        return
    try:
        manifest = _Manifest.model_validate(read_json(path))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        wrong = f"{where}: {error.errors()[0]['msg']}" if where else "not a JSON object"
        raise UserError(f"{path}: not a manifest ({wrong})") from None
    problem = damage(checkpoint, {name: file.model_dump() for name, file in manifest.checkpoint.items()})
    if problem is not None:
        raise UserError(
            f"{checkpoint}: differs from {path} ({problem}); delete {checkpoint.parent} and make it again"
        )


def precision_beside(checkpoint: Path) -> dict[str, Any]:
    """Returns ``{"precision": ...}`` from the manifest next to a checkpoint; empty if it says nothing."""
    path = checkpoint.parent / MANIFEST
    if checkpoint.name != CHECKPOINT or not path.is_file():
        return {}
    recorded = read_json(path)
    return {PRECISION: recorded[PRECISION]} if isinstance(recorded, dict) and recorded.get(PRECISION) else {}


def in_bfloat16(precision: Mapping[str, Any]) -> bool:
    """Whether `precision_beside`, or the manifest itself, asks for bfloat16 on a CPU."""
    return bool(precision.get(PRECISION, {}).get("bfloat16"))


def parameters_of(files: Iterable[Path]) -> int:
    """Returns the number of parameters in safetensors files, from their headers; other files count nothing.

    Tied weights, which are saved once, count once. Imports no library, so that a command can choose the
    processor's code by it (`troll.common.processor.use_all_instructions`).
    """
    return sum(_parameters(path) for path in files if path.name.endswith(".safetensors"))


def _parameters(path: Path) -> int:
    try:
        with path.open("rb") as content:
            header = json.loads(content.read(int.from_bytes(content.read(8), "little")))
        return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError):
        return 0  # loading says what is wrong with the file


def load_model(checkpoint: Path, **options: Any) -> Any:
    """Loads a causal language model; `UserError` if that fails or weights are missing."""
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True, **options)
    except Exception as error:  # of several libraries, without a common class
        if about_memory(error):
            raise
        raise loading_error(checkpoint, error) from None
    missing = sorted(report["missing_keys"])
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{checkpoint}: has no weights for {missing[0]}{others}, which would be random")
    return model


def text_config(config: Any) -> Any:
    """Returns the part of a model's configuration that describes its language model.

    Models of text and images keep it apart from the rest, under a name of their own. Values of the language
    model, such as its vocabulary or context, must be read from here.
    """
    return config.get_text_config(decoder=True)


def context_of(config: Any) -> int | None:
    """Returns the longest prompt and response together, in tokens; None if the configuration has no limit."""
    limit = getattr(text_config(config), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def loading_error(checkpoint: Path, error: Exception) -> UserError:
    """Returns the error for a model that cannot be loaded."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if not checkpoint.is_dir():  # transformers would ask the hub for it
        reason = "no such directory"
    return UserError(f"{checkpoint}: cannot be loaded as a model ({reason})")
