"""The lock file: the revision of each repository on the hub that is used, and what was found in it.

The first download of a repository resolves its current revision and writes it down with the digest of every
part that was read. Later runs ask for that revision and refuse other content. Nothing is pinned beforehand:
a revision that nobody resolved would be invented. Data sets and models are in one file, models as
``models/<owner>/<name>``.
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
"""What names of models in the lock file start with; those of data sets start with nothing."""

Found = Mapping[str, int | str]
"""What identifies a part: its number of rows or bytes, and its SHA-256."""


def lock_path() -> Path:
    """The lock file: ``TROLL_DATA_LOCK``, or ``resources/data.lock.json`` where the command runs."""
    return Path(os.environ.get(LOCK_VARIABLE) or DEFAULT_LOCK)


def _read() -> dict[str, Any]:
    path = lock_path()
    return read_json(path) if path.exists() else {}


def pinned(repository: str) -> dict[str, Any]:
    """What the lock file says of a repository: ``revision`` and its parts; empty for an unknown one."""
    entry: dict[str, Any] = _read().get(repository, {})
    return entry


def check(repository: str, revision: str, section: str, parts: Mapping[str, Found]) -> list[str]:
    """Compares what was found, at this revision (empty for a mirror's copy), with what the lock file says."""
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
    """Checks what was found, and writes down what is new; other processes may do the same at this time."""
    if not check(repository, revision, section, found):
        return
    path = lock_path()
    with only_writer(path.parent):
        lock = _read()
        entry = lock.setdefault(repository, {})
        if entry.setdefault("revision", revision) != revision:
            raise UserError(
                f"{repository.removeprefix(MODELS)}: {path} has meanwhile got revision {entry['revision']}; "
                "run this again"
            )
        new = {name: dict(found[name]) for name in check(repository, revision, section, found)}
        entry.setdefault(section, {}).update(new)
        write_json(path, lock)


@contextmanager
def asking(what: str, remedy: str) -> Iterator[None]:
    """Says in one line that something on the hub cannot be read: the error's first line, and what helps."""
    try:
        yield
    except Exception as error:  # its errors come from several libraries below it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"hub: {what} cannot be read ({reason}); {remedy}") from None


def named_mirror(variable: str) -> Path | None:
    """The mirror that the environment names; None where it names none."""
    root = os.environ.get(variable)
    if root and not Path(root).is_dir():
        raise UserError(
            f"{variable}={root}: no such directory; name the mirror's, or unset it to use the hub"
        )
    return Path(root) if root else None


def named_revision(what: str, revision: str | None) -> str:
    """The revision that the hub names."""
    if not revision:
        raise UserError(f"hub: {what} names no revision")
    return str(revision)
