"""Directories that appear whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def fresh_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary directory beside ``path``; on success it takes the place of ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_model(model: Any, tokenizer: Any, path: Path) -> None:
    """Saves a model and its tokenizer, loadable by ``from_pretrained``."""
    with fresh_directory(path) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
