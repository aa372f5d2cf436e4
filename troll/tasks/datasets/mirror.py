"""Reads a local mirror of the data sets, whose files must match the sizes and digests in ``mirror.yaml``."""

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
    """The expected number of rows, size and digest of a file of the mirror."""

    rows: int
    bytes: int
    sha256: str


@functools.cache
def mirror_files() -> dict[str, MirrorFile]:
    """Returns the expected files, by path inside the mirror."""
    table = yaml.safe_load(Path(__file__).with_name("mirror.yaml").read_text(encoding="utf-8"))
    return {path: MirrorFile(**entry) for path, entry in table.items()}


def mirror() -> Path | None:
    """Returns the mirror's directory, or None if the environment names none."""
    return named_mirror(VARIABLE)


def read_mirror(root: Path, name: str) -> list[dict[str, Any]]:
    """Returns the rows of a file of the mirror, after checking its digest and its number of rows."""
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
    # Not splitlines, which also splits at characters that JSON strings may contain.
    rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    if len(rows) != expected.rows:
        raise UserError(f"{path}: {len(rows)} rows, expected {expected.rows}")
    return rows
