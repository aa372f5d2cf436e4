"""Reading and writing files so that nothing is ever half-written."""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from troll.errors import UserError
from troll.progress import say

LOCK = ".lock"
"""The file that `only_writer` locks; it stays, and says nothing when nobody holds it."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on success it is renamed to ``path``, on an error removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def only_writer(directory: Path) -> Iterator[bool]:
    """Holds ``directory`` for this process, after any other that is writing there has ended.

    The lock is the operating system's and ends with its process, however that dies.

    Yields:
        Whether another process had it and was waited for.
    """
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    waited = False
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            say(f"{directory}: another process is writing here; waiting for it to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield waited
    finally:
        os.close(handle)


def unwritable(directory: Path) -> Path | None:
    """The first place, down to two levels, that keeps a directory from being written; None if none does.

    Args:
        directory: it need not exist; then the nearest directory above it counts.
    """
    inside = (path for depth in ("*", "*/*") for path in sorted(directory.glob(depth)))
    places = (nearest_existing(directory), *inside)
    # What has gone in the meantime is a temporary file of somebody who is writing.
    return next((path for path in places if not os.access(path, os.W_OK) and path.exists()), None)


def nearest_existing(path: Path) -> Path:
    """The path, made absolute, or else the nearest directory above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def read_yaml(path: Path, kind: str = "file") -> Any:
    """Reads a YAML file.

    Args:
        path: where it is.
        kind: what it should be, for the message when it is not there.

    Raises:
        UserError: it is missing, unreadable or no YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such {kind}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text to a temporary name and renames it to ``path``."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line, atomically."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        UserError: the file is missing or no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Reads one JSON object per line.

    Raises:
        UserError: the file is missing, or a line (named by its number) is no JSON object.
    """
    rows = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise UserError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
                rows.append(row)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}:{len(rows) + 1}: not JSON ({error})") from None
    return rows


def sha256_of_files(paths: Iterable[Path], root: Path) -> str:
    """Digest of file names relative to ``root`` and of their contents, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        with path.open("rb") as content:  # a model's weights are larger than many a memory
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
