"""The lock file: pins the revision and the contents of every repository of the hub that is used.

The first download of a repository records its current revision and the digest of every part that was read.
Later runs request that revision and refuse other contents. Data sets and models share one file, in which
models are called ``models/<owner>/<name>``.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import only_writer, read_json, write_json

LOCK_VARIABLE = "TROLL_DATA_LOCK"
DEFAULT_LOCK = Path("resources/data.lock.json")
MODELS = "models/"
"""Prefix of models' names in the lock file; names of data sets have none."""

Found = Mapping[str, int | str]
"""Facts about a part: its number of rows or bytes, and its SHA-256."""


def lock_path() -> Path:
    """Returns ``TROLL_DATA_LOCK``, or ``resources/data.lock.json`` in the working directory."""
    return Path(os.environ.get(LOCK_VARIABLE) or DEFAULT_LOCK)


def _read() -> dict[str, Any]:
    path = lock_path()
    return read_json(path) if path.exists() else {}


def pinned(repository: str) -> dict[str, Any]:
    """Returns a repository's entry: its ``revision`` and sections of parts; empty if there is none."""
    entry: dict[str, Any] = _read().get(repository, {})
    return entry


def check(repository: str, revision: str, section: str, parts: Mapping[str, Found]) -> list[str]:
    """Compares the parts found with those in the lock file.

    Args:
        repository: its name in the lock file.
        revision: of the parts; empty for a mirror's copy.
        section: of the repository's entry.
        parts: facts by name.

    Returns:
        The names of parts that the lock file lacks.

    Raises:
        UserError: a part differs.
    """
    pinned_parts = pinned(repository).get(section, {})
    for name, facts in parts.items():
        if name in pinned_parts and pinned_parts[name] != facts:
            where = f"{repository.removeprefix(MODELS)} ({name})" + f" at revision {revision}" * bool(
                revision
            )
            recorded = _words(pinned_parts[name])
            raise UserError(f"{where}: {_words(facts)}, but {lock_path()} says {recorded}")
    return [name for name in parts if name not in pinned_parts]


def _words(facts: Found) -> str:
    unit = next(key for key in facts if key != "sha256")
    return f"{facts[unit]} {unit} with sha256 {facts['sha256']}"


def pin(repository: str, revision: str, section: str, found: Mapping[str, Found]) -> None:
    """Checks the parts found and adds new ones to the lock file; safe if several processes do so at once."""
    if not check(repository, revision, section, found):
        return
    path = lock_path()
    with only_writer(path.parent):
        lock = _read()
        entry = lock.setdefault(repository, {})
        if entry.setdefault("revision", revision) != revision:
            raise UserError(
                f"{repository.removeprefix(MODELS)}: another process pinned revision {entry['revision']} in "
                f"{path}; run this again"
            )
        new = {name: dict(found[name]) for name in check(repository, revision, section, found)}
        entry.setdefault(section, {}).update(new)
        write_json(path, lock)


@contextmanager
def asking(what: str, remedy: str) -> Iterator[None]:
    """Turns any error of the hub into a one-line `UserError`: its first line, and what helps."""
    try:
        yield
    except Exception as error:  # of several libraries, without a common class
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"hub: {what} cannot be read ({reason}); {remedy}") from None


def named_mirror(variable: str) -> Path | None:
    """Returns the mirror's directory from an environment variable; None if it is unset."""
    root = os.environ.get(variable)
    if root and not Path(root).is_dir():
        raise UserError(f"{variable}={root}: no such directory; name the mirror, or unset it to use the hub")
    return Path(root) if root else None


def named_revision(what: str, revision: str | None) -> str:
    """Returns a revision as text; `UserError` if the hub gave none."""
    if not revision:
        raise UserError(f"hub: {what} has no revision")
    return str(revision)
