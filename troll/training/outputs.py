"""Directories and models that are written atomically."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from troll.common.files import by_umask


@contextmanager
def fresh_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary directory next to ``path``, which replaces ``path`` on success."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        temporary.chmod(by_umask(0o777))
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_model(model: Any, tokenizer: Any, path: Path, state: Mapping[str, Any] | None = None) -> None:
    """Saves model and tokenizer for ``from_pretrained``; ``state``: all weights of a sharded model."""
    with fresh_directory(path) as temporary:
        model.save_pretrained(temporary, state_dict=state)
        tokenizer.save_pretrained(temporary)
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
