"""Finished runs in small files that git can track: what tables are made from, without weights and samples.

A run is archived as it ends and restored instead of being made again, where the configuration is the same and
the source gives the same numbers. So a lost machine costs the runs that were under way, and others add to a
release without repeating it.
"""

import json
import lzma
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

from troll.analysis.data.equal_sources import oldest_equal
from troll.common.digests import digest_of_json
from troll.common.errors import UserError
from troll.common.files import atomic_path, read_json, read_yaml, write_json

_FILES = ("run.yaml", "metrics.jsonl", "manifest.json", "grades.json")
_SUITES = "suites/*.json"
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
        UserError: the run is not finished, or the archive cannot be written.
    """
    manifest = read_json(directory / "manifest.json")
    is_run = (directory / "run.yaml").exists()
    paths = [directory / name for name in (_FILES if is_run else _FILES[2:])]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path}: missing; only finished runs that are graded can be archived")
    paths += sorted(directory.glob(_SUITES))
    key = _key(_config(directory, manifest), evaluation, manifest["digests"]["source"])
    with atomic_path(out) as temporary, zipfile.ZipFile(temporary, "w") as file:
        file.comment = json.dumps(key, sort_keys=True).encode()
        for path in paths:
            name = path.relative_to(directory).as_posix()
            file.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_LZMA)


def _config(directory: Path, manifest: Any) -> Any:
    path = directory / "run.yaml"
    return read_yaml(path) if path.exists() else manifest["config"]


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
            known = json.loads(file.comment)
            made_of, made_by = known["config"], known["source"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, OSError) as error:
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
        UserError: the archive is damaged.
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
    write_json(directory / RESTORED, {"archive": path.as_posix()})
    for name, content in contents.items():
        if suites != (name not in _FILES):
            continue
        with atomic_path(directory / name) as temporary:
            temporary.write_bytes(content)
