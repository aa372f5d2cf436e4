"""A local mirror of the data sets: files whose sizes and digests are known beforehand (``mirror.yaml``)."""

import functools
import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from troll.common.errors import UserError
from troll.common.lock_file import named_mirror

VARIABLE = "TROLL_DATA_MIRROR"


@dataclass(frozen=True)
class MirrorFile:
    """What a file of the mirror must be."""

    rows: int
    bytes: int
    sha256: str


@functools.cache
def mirror_files() -> dict[str, MirrorFile]:
    """The known files, by path inside the mirror."""
    table = yaml.safe_load(Path(__file__).with_name("mirror.yaml").read_text(encoding="utf-8"))
    return {path: MirrorFile(**entry) for path, entry in table.items()}


def mirror() -> Path | None:
    """The mirror's directory, if the environment names one."""
    return named_mirror(VARIABLE)


def read_mirror(root: Path, name: str) -> list[dict[str, Any]]:
    """Rows of a file of the mirror, after its digest and its number of rows have been found right."""
    expected = mirror_files()[name]
    path = root / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; unset {VARIABLE} to use the hub") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected.sha256:
        kind = "truncated" if len(content) < expected.bytes else "wrong"
        raise UserError(
            f"{path}: a {kind} file: {len(content)} bytes with sha256 {digest}, expected {expected.bytes} "
            f"bytes with {expected.sha256}"
        )
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8")
    # Not splitlines, which also splits at characters that JSON leaves alone.
    rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    if len(rows) != expected.rows:
        raise UserError(f"{path}: {len(rows)} rows, expected {expected.rows}")
    return rows
