"""Reads files with one-line errors, and writes them atomically so that none is ever half-written."""

import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.progress import say
from troll.common.strict_yaml import parse_yaml

LOCK = ".lock"
"""The file that `only_writer` locks; it is never deleted, and its existence does not mean a held lock."""


def replaceable(path: Path) -> Path:
    """Returns the path to write a file to: ``path``, or its target if it is a symbolic link."""
    try:
        target = Path(os.path.realpath(path))
        mode = path.stat().st_mode
    except FileNotFoundError:
        return target
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another path") from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is {_KINDS.get(stat.S_IFMT(mode), 'not a regular file')}; name a file")
    return target


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def by_umask(mode: int) -> int:
    """Returns the permissions of a new file: ``mode`` without the bits of the umask."""
    mask = os.umask(0o077)  # the umask can only be read by setting it
    os.umask(mask)
    return mode & ~mask


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to ``path``; renames it to ``path`` on success, deletes it on an error."""
    path = replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(by_umask(0o666))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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


@contextmanager
def only_writer(directory: Path) -> Iterator[bool]:
    """Locks ``directory`` for this process, after waiting for any other process that holds the lock.

    The operating system releases the lock when its process ends, even if it is killed.

    Yields:
        Whether another process held the lock before.
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


def is_locked(path: Path, kind: int) -> bool | None:
    """Returns whether another open file stands in the way of a lock of ``path``.

    Args:
        path: of the file; nothing locks one that does not exist.
        kind: of the lock, which is released at once: ``fcntl.LOCK_SH`` or ``fcntl.LOCK_EX``.

    Returns:
        None if the file system does not support locks.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


def unwritable(directory: Path) -> Path | None:
    """Returns the first path that cannot be written, or None.

    Checks the directory, or the nearest existing one above it, and two levels below it.
    """
    inside = (path for depth in ("*", "*/*") for path in sorted(directory.glob(depth)))
    places = (nearest_existing(directory), *inside)
    # A path that no longer exists was another process's temporary file.
    return next((path for path in places if not os.access(path, os.W_OK) and path.exists()), None)


def nearest_existing(path: Path) -> Path:
    """Returns the absolute path, or the nearest directory above it that exists."""
    return next(candidate for candidate in (path.absolute(), *path.absolute().parents) if candidate.exists())


def read_yaml(path: Traversable, kind: str = "file") -> Any:
    """Reads a YAML file, also from a package's data; ``kind`` is what messages call it."""
    return _parsed(path, parse_yaml, "YAML", kind)


def _parsed(path: Traversable, parse: Callable[[str], Any], language: str, kind: str) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such {kind}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # invalid syntax or encoding
        raise UserError(f"{path}: not {language} ({error})") from None


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line, atomically."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def parse_json(text: str) -> Any:
    """Parses JSON.

    Raises:
        ValueError: not JSON, nested too deeply, or a number with more digits than Python reads; the message
            is one line.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # from int(), with a message for programmers
        raise ValueError(f"a number has more than {sys.get_int_max_str_digits():,} digits") from None


def read_json(path: Path) -> Any:
    """Reads a JSON file."""
    return _parsed(path, parse_json, "JSON", "file")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Reads one JSON object per line."""
    rows = []
    try:
        with path.open("rb") as lines:  # decoded line by line, so that encoding errors are located, too
            for number, line in enumerate(lines, start=1):
                row = parse_json(line.decode("utf-8"))
                if not isinstance(row, dict):
                    raise UserError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
                rows.append(row)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # invalid JSON or encoding
        raise UserError(f"{path}:{len(rows) + 1}: not JSON ({error})") from None
    return rows
