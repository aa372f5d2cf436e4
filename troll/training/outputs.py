"""Saved models, which are written atomically."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from troll.common.files import by_umask, fresh_directory
from troll.common.tokenizers import fix_date


def save_model(model: Any, tokenizer: Any, path: Path, state: Mapping[str, Any] | None = None) -> None:
    """Saves model and tokenizer for ``from_pretrained``; ``state``: all weights of a sharded model.

    The chat template shows a fixed date, see `troll.common.tokenizers`.
    """
    with fresh_directory(path) as temporary:
        model.save_pretrained(temporary, state_dict=state)
        fix_date(tokenizer).save_pretrained(temporary)
        for file in temporary.iterdir():  # safetensors writes files that only the owner can read
            file.chmod(by_umask(0o666))


def whole_state(trainer: Any) -> dict[str, Any] | None:
    """Gathers the weights of a sharded model on the main process; None if the model is not sharded.

    Must be called by all processes.
    """
    if not trainer.is_fsdp_enabled:
        return None
    state: dict[str, Any] = trainer.accelerator.get_state_dict(trainer.model)
    return state
