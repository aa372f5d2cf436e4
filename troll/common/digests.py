"""Digests of files: what a directory held when it was written, and what is wrong with it now."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

Facts = Mapping[str, Mapping[str, Any]]
"""``bytes`` and ``sha256`` of files, by their path inside of a directory."""


def digest_of_json(value: Any) -> str:
    """SHA-256 of a value as sorted JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's content; it may be larger than memory."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def sha256_of_files(paths: Iterable[Path], root: Path) -> str:
    """Digest of file names relative to ``root`` and of their contents, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(bytes.fromhex(sha256_of_file(path)))
    return digest.hexdigest()


def facts_of(directory: Path, leave_out: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Size and digest of every file in a directory and below."""
    return {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in leave_out
    }


def damage(directory: Path, facts: Facts) -> str | None:
    """What is wrong with the files of a directory, if anything is; sizes are looked at first."""
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
