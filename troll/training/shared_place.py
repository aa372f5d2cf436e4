"""What is made once for all experiments, in directories known by everything that can change their files.

Looked at first: Snakemake's cache between workflows (``cache: True``, 9.19). It works where ``--cache`` is
given and nowhere else, keeps declared outputs alone, takes every parameter of a job into its key, so that of
two experiments neither finds what the other made, and knows nothing of processors, of the version of the
numbers, or of damage. So this is a place of our own.

The place is ``resources/base-models`` where the command runs. An entry, ``<name>-<key>/``, holds ``files/``
and, written last, ``record.json`` with their digests; without a record that fits them there is no entry. Of
several processes that want the same entry one makes it, and the others wait.
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
from troll.common.files import LOCK, only_writer, read_json, write_json
from troll.common.progress import say
from troll.training.outputs import fresh_directory

VARIABLE = "TROLL_BASE_MODELS"
"""Names another directory; 0 for none: everything is then made anew, and nothing kept."""
DEFAULT = Path("resources/base-models")
_OFF = "0"
_FILES, _RECORD, _DIGEST = "files", "record.json", "sha256"


@dataclass(frozen=True)
class Taken:
    """What was taken from the place."""

    entry: Path  # the directory that it was taken from
    made: Any  # what its maker said of it, as JSON has it

    @property
    def files(self) -> Path:
        """Where the files lie in the place."""
        return self.entry / _FILES


class _DamagedError(Exception):
    """An entry is not what its record says; the message says in what way."""


def shared_place() -> Path | None:
    """The place, which need not exist yet; None where there is none. Refuses what is no directory."""
    value = os.environ.get(VARIABLE)
    if value == _OFF:
        return None
    place = Path(value) if value else DEFAULT
    with suppress(OSError):  # of a place that cannot be reached, `take_or_make` speaks
        if place.exists() and not place.is_dir():
            named = f"{VARIABLE}={value}" if value else str(place)
            raise UserError(f"{named}: is no directory; name one in {VARIABLE}, or {_OFF} for none")
    return place


def take_or_make(
    name: str, identity: Mapping[str, Any], files: Path, make: Callable[[], Mapping[str, Any]]
) -> Taken | None:
    """Puts ``files`` where they are wanted: copies from the place, or made now and then kept there.

    What was taken is returned. ``identity`` is everything that can change the files. ``make`` makes the
    directory, and what it returns is kept beside the files, as JSON. A place that cannot be written is a
    line, and no error.
    """

    def taken(entry: Path, plain: Mapping[str, Any]) -> Taken | None:
        return _take(entry, plain, files)

    def kept(entry: Path, plain: Mapping[str, Any]) -> None:
        made = make()
        try:
            _clear(entry)
            with fresh_directory(entry / _FILES) as temporary:
                shutil.copytree(files, temporary, copy_function=shutil.copyfile, dirs_exist_ok=True)
            _write_record(entry, plain, made)
        except OSError as error:
            say(f"{entry}: cannot be written ({error.strerror}), so that it is not kept there")

    return _obtain(name, identity, taken, kept, make)


def keep(name: str, identity: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any]]) -> Taken | None:
    """Files that stay in the place, for whoever reads or links them there; made now if they are not there.

    Arguments are those of `take_or_make`. None where there is no place, or none that can be written.
    """

    def taken(entry: Path, plain: Mapping[str, Any]) -> Taken | None:
        record = _whole(entry, plain)
        return None if record is None else Taken(entry, record["made"])

    def kept(entry: Path, plain: Mapping[str, Any]) -> Taken:
        _clear(entry)
        with fresh_directory(entry / _FILES) as temporary:
            made = make(temporary)
        return Taken(entry, _write_record(entry, plain, made)["made"])

    return _obtain(name, identity, taken, kept, lambda: None)


def _obtain(
    name: str,
    identity: Mapping[str, Any],
    take: Callable[[Path, Mapping[str, Any]], Taken | None],
    make: Callable[[Path, Mapping[str, Any]], Taken | None],
    without: Callable[[], object],
) -> Taken | None:
    """What is taken from an entry, or made in it; ``without`` is called where there is no place for one."""
    place = shared_place()
    if place is None:
        without()
        return None
    plain, entry = _entry(place, name, identity)
    with suppress(_DamagedError):  # without the lock, for which a place would have to be writable
        if (taken := take(entry, plain)) is not None:
            return taken
    with ExitStack() as stack:
        try:
            stack.enter_context(only_writer(entry))
        except OSError as error:
            say(f"{place}: cannot be written ({error.strerror}), so that nothing is kept there")
            without()
            return None
        try:
            if (taken := take(entry, plain)) is not None:
                return taken
        except _DamagedError as problem:
            say(f"{entry}: {problem}; it is made again")
        return make(entry, plain)


def entry_of(name: str, identity: Mapping[str, Any]) -> Path | None:
    """The files of an entry that is there, unread; None where there is none."""
    place = shared_place()
    if place is None:
        return None
    entry = _entry(place, name, identity)[1]
    with suppress(OSError):  # a place that cannot be reached holds nothing
        return entry / _FILES if (entry / _RECORD).exists() else None
    return None


def _entry(place: Path, name: str, identity: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The identity as a record has it, and the directory of its entry."""
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain, place / f"{name}-{digest_of_json(plain)[:20]}"


def _whole(entry: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of an entry whose files are what it says; None where there is no entry."""
    try:
        if not (entry / _RECORD).exists():
            return None
    except OSError:  # a place that cannot be reached holds nothing
        return None
    record = _record(entry, identity)
    facts: Mapping[str, Mapping[str, Any]] = record["files"]
    try:
        problem = damage(entry / _FILES, facts)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    if problem is not None:
        raise _DamagedError(problem)
    return record


def _take(entry: Path, identity: Mapping[str, Any], files: Path) -> Taken | None:
    """Copies an entry's files, and looks at the copies; None where there is no entry."""
    record = _whole(entry, identity)
    if record is None:
        return None
    facts: Mapping[str, Mapping[str, Any]] = record["files"]
    with fresh_directory(files) as temporary:
        for name in facts:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(entry / _FILES / name, temporary / name)
        if (problem := damage(temporary, facts)) is not None:  # somebody has changed it since
            raise _DamagedError(problem)
    return Taken(entry, record["made"])


def _record(entry: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    try:
        record = read_json(entry / _RECORD)
    except UserError as error:
        raise _DamagedError(str(error).removeprefix(f"{entry}/")) from None
    digest = record.pop(_DIGEST, None) if isinstance(record, dict) else None
    if digest != digest_of_json(record):
        raise _DamagedError(f"the contents of {_RECORD} have changed")
    if record["identity"] != identity:
        raise _DamagedError(f"{_RECORD} is that of something else")
    return dict(record)


def _clear(entry: Path) -> None:
    (entry / _RECORD).unlink(missing_ok=True)
    for left in entry.iterdir():  # of a maker that was killed
        if left.is_dir():
            shutil.rmtree(left)
        elif left.name != LOCK:
            left.unlink()


def _write_record(entry: Path, identity: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    record = {"identity": identity, "files": facts_of(entry / _FILES), "made": made}
    record = json.loads(json.dumps(record))
    write_json(entry / _RECORD, record | {_DIGEST: digest_of_json(record)})
    return record
