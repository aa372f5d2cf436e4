"""Finished runs in small files that git can track: what tables are made from, without weights and samples.

A run is archived as it ends and restored instead of being made again, where the configuration is the same and
the source gives the same numbers. So a lost machine costs the runs that were under way, and others add to a
release without repeating it.
"""

import json
import lzma
import re
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from troll.analysis.data.equal_sources import oldest_equal
from troll.analysis.data.run_files import read_base_files, read_run_files
from troll.common.digests import digest_of_json
from troll.common.errors import UserError
from troll.common.files import atomic_path, parse_json, write_json

_FILES = ("run.yaml", "metrics.jsonl", "manifest.json", "grades.json")
_SUITES, _GRADED = "suites/*.json", "suites/graded.json"
_SUITE = re.compile(r"suites/[^/\\]+\.json")
RESTORED = "restored.json"
"""In a restored directory: what it was restored from. Directories without it were made here."""
# What reading a ZIP file raises whose bytes have changed.
_DAMAGE = (zipfile.BadZipFile, lzma.LZMAError, struct.error, ValueError, OSError, EOFError, RuntimeError)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # no time of its own, so that the same files give the same bytes


def archive_run(directory: Path, out: Path, evaluation: Any) -> None:
    """Archives a finished run, or a graded base model.

    Args:
        directory: with ``manifest.json`` and ``grades.json``; of a run also ``run.yaml`` and
            ``metrics.jsonl``.
        out: the archive, a ZIP file.
        evaluation: how the run was evaluated, as JSON has it: part of what it is.

    Raises:
        UserError: the run is not finished, a file of it is broken, or the archive cannot be written.
    """
    if lacking := _lacking(directory):
        raise UserError(f"{directory / lacking}: missing; only finished runs that are graded can be archived")
    config, source = _made_of(directory)
    paths = [path for name in _FILES if (path := directory / name).exists()]
    paths += sorted(directory.glob(_SUITES))
    key = _key(config, evaluation, source)
    with atomic_path(out) as temporary, zipfile.ZipFile(temporary, "w") as file:
        file.comment = json.dumps(key, sort_keys=True).encode()
        for path in paths:
            name = path.relative_to(directory).as_posix()
            file.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_LZMA)


def _lacking(directory: Path) -> str | None:
    """A file without which a run, or a base model, is not whole; None where all are there."""
    of_run = any((directory / name).exists() for name in _FILES[:2])
    needed = _FILES if of_run else _FILES[2:]
    return next((name for name in reversed(needed) if not (directory / name).is_file()), None)


def _made_of(directory: Path) -> tuple[Any, str]:
    """Configuration and source of what a directory holds, after reading it as the tidy tables will.

    Raises:
        UserError: a file is broken, or the manifest does not say what a key is made of.
    """
    path = directory / "manifest.json"
    if (directory / "run.yaml").exists():
        files = read_run_files(directory)
        config: Any = files.settings
    else:
        files = read_base_files(directory)
        config = files.manifest.get("config")
        if not isinstance(config, dict):
            raise UserError(f"{path}: config: expected the settings of a base model, found {config!r}")
        if "trust_region" in config:
            raise UserError(f"{directory / 'run.yaml'}: missing, although {path} is the manifest of a run")
    if "source" not in files.digests:
        raise UserError(f"{path}: digests.source: is missing")
    return config, files.digests["source"]


def _key(config: Any, evaluation: Any, source: str) -> dict[str, str]:
    plain = json.loads(json.dumps([config, evaluation]))  # as it is after a file: lists for tuples
    return {"config": digest_of_json(plain), "source": source}


def archived(path: Path, config: Any, evaluation: Any, source: str) -> bool:
    """Whether an archive holds a run of this configuration and evaluation, from this source or an equal one.

    Args:
        path: of the archive; it need not exist.
        config: of the run or base model, as ``run.yaml`` or the base model's manifest has it.
        evaluation: as for `archive_run`.
        source: `troll.training.manifest.source_digest`; see `troll.analysis.data.equal_sources`.

    Raises:
        UserError: there is an archive that cannot be read.
    """
    if not path.exists():
        return False
    try:
        with zipfile.ZipFile(path) as file:
            known = parse_json(file.comment.decode())
            made_of, made_by = known["config"], known["source"]
    except (*_DAMAGE, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not an archived run ({error}); remove it, and the run is made again"
        ) from None
    rule = config.get("trust_region", {}).get("rule", "")  # a base model has none
    return bool(
        made_of == _key(config, evaluation, source)["config"]
        and oldest_equal(made_by, rule) == oldest_equal(source, rule)
    )


def restore_run(path: Path, directory: Path, *, suites: bool = False) -> None:
    """Puts the files of an archived run where the run would have left them, with a note that says so.

    Args:
        path: the archive.
        directory: of the run.
        suites: the grades on further data sets, in place of all others.

    Raises:
        UserError: the archive is damaged, or not that of a whole run.
    """
    try:
        with zipfile.ZipFile(path) as file:
            contents = {name: file.read(name) for name in file.namelist()}  # checks each CRC
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except _DAMAGE as error:
        raise UserError(f"{path}: damaged ({error}); remove it, and the run is made again") from None
    strange = [name for name in contents if name not in _FILES and not _SUITE.fullmatch(name)]
    if strange:
        raise UserError(f"{path}: {strange[0]}: not a file of a run; remove the archive")
    if damage := _damage(contents, suites):
        raise UserError(f"{path}: damaged ({damage}); remove it, and the run is made again")
    write_json(directory / RESTORED, {"archive": path.as_posix()})
    for name, content in contents.items():
        if suites != (name not in _FILES):
            continue
        with atomic_path(directory / name) as temporary:
            temporary.write_bytes(content)


def _damage(contents: Mapping[str, bytes], suites: bool) -> str:
    """What keeps these files from being those of a run or base model; empty if nothing does."""
    with tempfile.TemporaryDirectory() as name:  # they are read as a run's are, and nothing is left of them
        directory = Path(name)
        for member, content in contents.items():
            path = directory / member
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        lacking = _GRADED if suites and _GRADED not in contents else _lacking(directory)
        if lacking:
            return f"{lacking} is missing"
        try:
            _made_of(directory)
        except UserError as error:
            return str(error).replace(f"{directory}/", "")
    return ""
