"""Digests of files, by which later changes of a written directory are found."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

Facts = Mapping[str, Mapping[str, Any]]
"""``bytes`` and ``sha256`` of files, by their path relative to a directory."""


def digest_of_json(value: Any) -> str:
    """Returns the SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Returns the SHA-256 of a file, which may be larger than memory."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def sha256_of_files(paths: Iterable[Path], root: Path) -> str:
    """Returns one digest of the names relative to ``root`` and the contents of files, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(bytes.fromhex(sha256_of_file(path)))
    return digest.hexdigest()


def facts_of(directory: Path, leave_out: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Returns size and digest of every file in and below a directory, except those named in ``leave_out``."""
    return {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in leave_out
    }


def damage(directory: Path, facts: Facts) -> str | None:
    """Describes the first difference between files and their recorded facts; None if they are intact."""
    for name, recorded in facts.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != recorded["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {recorded['bytes']}"
    changed = (
        name for name, recorded in facts.items() if sha256_of_file(directory / name) != recorded["sha256"]
    )
    return next((f"the contents of {name} have changed" for name in changed), None)
