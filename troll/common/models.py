"""Loads saved models, and says in one line what keeps one from being loaded or trusted."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from troll.common.digests import damage
from troll.common.errors import UserError
from troll.common.files import read_json
from troll.common.machine_errors import about_memory

MANIFEST = "manifest.json"
CHECKPOINT = "checkpoint"


class _File(BaseModel):
    bytes: int
    sha256: str


class _Manifest(BaseModel):
    """What of a manifest tells of the checkpoint beside it; nothing in those of older versions."""

    model_config = ConfigDict(extra="ignore")
    checkpoint: dict[str, _File] = {}


def check_checkpoint(checkpoint: Path) -> None:
    """Makes sure that a checkpoint is what its run wrote, where a manifest is beside it."""
    path = checkpoint.parent / MANIFEST
    if checkpoint.name != CHECKPOINT or not path.is_file():
        return
    try:
        manifest = _Manifest.model_validate(read_json(path))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        wrong = f"{where}: {error.errors()[0]['msg']}" if where else "no JSON object"
        raise UserError(f"{path}: not a manifest ({wrong})") from None
    problem = damage(checkpoint, {name: file.model_dump() for name, file in manifest.checkpoint.items()})
    if problem is not None:
        raise UserError(
            f"{checkpoint}: is not what {path} says ({problem}); delete {checkpoint.parent}, make it again"
        )


def load_model(checkpoint: Path, **options: Any) -> Any:
    """A causal language model."""
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True, **options)
    except Exception as error:  # of several libraries with classes of their own
        if about_memory(error):
            raise
        raise loading_error(checkpoint, error) from None
    missing = sorted(report["missing_keys"])
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{checkpoint}: has no weights for {missing[0]}{others}; they would be random")
    return model


def loading_error(checkpoint: Path, error: Exception) -> UserError:
    """What to say of a model that does not load."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"{checkpoint}: not a model that can be loaded ({reason})")
