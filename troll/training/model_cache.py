"""A cache shared by all experiments, keyed by everything that can change the cached files.

Snakemake's cache between workflows (``cache: True``, 9.19) does not serve this purpose: it requires
``--cache``, only keeps declared outputs, and includes every parameter of a job in its key, so experiments
cannot share results; it also ignores the processor, the version of the numbers, and damage.

The cache directory is ``resources/base-models`` in the working directory. An entry, ``<name>-<key>/``,
contains ``files/`` and, written last, ``record.json`` with their digests; an entry without a matching record
is invalid. If several processes need the same entry, one makes it and the others wait.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from troll.common.digests import damage, digest_of_json, facts_of
from troll.common.errors import UserError
from troll.common.files import LOCK, fresh_directory, only_writer, read_json, write_json
from troll.common.progress import say

VARIABLE = "TROLL_BASE_MODELS"
"""Environment variable for another directory; 0 disables the cache."""
DEFAULT = Path("resources/base-models")
_OFF = "0"
_FILES, _RECORD, _DIGEST = "files", "record.json", "sha256"


@dataclass(frozen=True)
class CacheEntry:
    """A cached entry."""

    path: Path  # its directory
    made: Any  # the return value of its maker, from JSON

    @property
    def files(self) -> Path:
        """The directory of the cached files."""
        return self.path / _FILES


class _DamagedError(Exception):
    """An entry differs from its record; the message describes the difference."""


def cache_directory() -> Path | None:
    """The cache directory, which may not exist yet; None if disabled. Rejects a path to a file."""
    value = os.environ.get(VARIABLE)
    if value == _OFF:
        return None
    place = Path(value) if value else DEFAULT
    with suppress(OSError):  # `take_or_make` reports an unreachable directory
        if place.exists() and not place.is_dir():
            named = f"{VARIABLE}={value}" if value else str(place)
            raise UserError(f"{named}: is not a directory; set {VARIABLE} to one, or to {_OFF} for none")
    return place


def take_or_make(
    name: str, identity: Mapping[str, Any], files: Path, make: Callable[[], Mapping[str, Any]]
) -> CacheEntry | None:
    """Creates the directory ``files``: copies it from the cache, or makes it and adds it to the cache.

    ``identity`` is everything that can change the files. ``make`` creates the directory; its return value is
    stored with the files, as JSON. Returns the cached entry, or None if the files were made. If the cache
    cannot be written, prints a message and continues.
    """
    here = False  # whether the files were made

    def made(entry_files: Path) -> Mapping[str, Any]:
        nonlocal here
        facts, here = make(), True
        shutil.copytree(files, entry_files, copy_function=shutil.copyfile, dirs_exist_ok=True)
        return facts

    try:
        found = cached(name, identity, made)
    except OSError as error:
        if not here or (place := cache_directory()) is None:
            raise
        entry = _entry(place, name, identity)[1]
        say(f"{entry}: cannot be written ({error.strerror}), so it is not kept there")
        return None
    if here:
        return None
    if found is not None:
        facts = read_json(found.path / _RECORD)["files"]
        try:
            with fresh_directory(files) as temporary:
                shutil.copytree(found.files, temporary, copy_function=shutil.copyfile, dirs_exist_ok=True)
                if (problem := damage(temporary, facts)) is not None:  # changed after it was verified
                    raise _DamagedError(problem)
            return found
        except _DamagedError as problem:
            say(f"{found.path}: {problem}; it is made again")
    make()
    return None


def cached(
    name: str, identity: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any]]
) -> CacheEntry | None:
    """Returns a cached entry for use inside the cache, by reading or linking; makes it if it is missing.

    ``name`` and ``identity`` are those of `take_or_make`; ``make`` creates the files in the given directory.
    None if the cache is disabled or cannot be written.
    """
    place = cache_directory()
    if place is None:
        return None
    plain, entry = _entry(place, name, identity)
    with suppress(_DamagedError):  # without the lock, so a read-only cache can be used
        if (record := _whole(entry, plain)) is not None:
            return CacheEntry(entry, record["made"])
    with ExitStack() as stack:
        try:
            stack.enter_context(only_writer(entry))
        except OSError as error:
            say(f"{place}: cannot be written ({error.strerror}), so nothing is kept there")
            return None
        try:
            if (record := _whole(entry, plain)) is not None:
                return CacheEntry(entry, record["made"])
        except _DamagedError as problem:
            say(f"{entry}: {problem}; it is made again")
        _clear(entry)
        with fresh_directory(entry / _FILES) as temporary:
            made = make(temporary)
        return CacheEntry(entry, _write_record(entry, plain, made)["made"])


def entry_of(name: str, identity: Mapping[str, Any]) -> Path | None:
    """The files of an existing entry, without verifying them; None if there is no entry."""
    place = cache_directory()
    if place is None:
        return None
    entry = _entry(place, name, identity)[1]
    with suppress(OSError):  # an unreachable cache is empty
        return entry / _FILES if (entry / _RECORD).exists() else None
    return None


def _entry(place: Path, name: str, identity: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The identity as stored in a record, and the directory of the entry."""
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain, place / f"{name}-{digest_of_json(plain)[:20]}"


def _whole(entry: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of an entry, after verifying its files; None if there is no entry."""
    try:
        if not (entry / _RECORD).exists():
            return None
    except OSError:  # an unreachable cache is empty
        return None
    try:
        record = read_json(entry / _RECORD)
    except UserError as error:
        raise _DamagedError(str(error).removeprefix(f"{entry}/")) from None
    digest = record.pop(_DIGEST, None) if isinstance(record, dict) else None
    if digest != digest_of_json(record):
        raise _DamagedError(f"the contents of {_RECORD} have changed")
    if record["identity"] != identity:
        raise _DamagedError(f"{_RECORD} is that of another entry")
    try:
        problem = damage(entry / _FILES, record["files"])
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    if problem is not None:
        raise _DamagedError(problem)
    return dict(record)


def _clear(entry: Path) -> None:
    (entry / _RECORD).unlink(missing_ok=True)
    for leftover in entry.iterdir():  # of a process that was killed
        if leftover.is_dir():
            shutil.rmtree(leftover)
        elif leftover.name != LOCK:
            leftover.unlink()


def _write_record(entry: Path, identity: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    record = {"identity": identity, "files": facts_of(entry / _FILES), "made": made}
    record = json.loads(json.dumps(record))
    write_json(entry / _RECORD, record | {_DIGEST: digest_of_json(record)})
    return record
