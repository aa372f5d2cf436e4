"""Directories that appear whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from troll.common.files import by_umask


@contextmanager
def fresh_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary directory beside ``path``; on success it takes the place of ``path``."""
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
    """Saves both for ``from_pretrained``; ``state`` has the weights where the model holds a part of them."""
    with fresh_directory(path) as temporary:
        model.save_pretrained(temporary, state_dict=state)
        tokenizer.save_pretrained(temporary)
        for file in temporary.iterdir():  # safetensors writes files that nobody else may read
            file.chmod(by_umask(0o666))


def whole_state(trainer: Any) -> dict[str, Any] | None:
    """All weights of a sharded model, on the main process; none where the model holds them itself.

    Every process has to call it: each gives its part.
    """
    if not trainer.is_fsdp_enabled:
        return None
    state: dict[str, Any] = trainer.accelerator.get_state_dict(trainer.model)
    return state
