"""Reads data sets from the Hugging Face hub, pinned by the lock file (`troll.common.lock_file`)."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from troll.common import lock_file
from troll.common.errors import UserError


@dataclass(frozen=True)
class HubPart:
    """One split of one configuration of a data set on the hub."""

    repository: str  # ``owner/name``
    split: str  # name of the split on the hub
    config: str | None = None  # name of the configuration, if there are several
    rows: int | None = None  # required number of rows; None if unknown

    @property
    def key(self) -> str:
        """Its key in the lock file."""
        return f"{self.config or 'default'}/{self.split}"


def rows_digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns the SHA-256 of rows as canonical JSON lines, which does not depend on the file format."""
    digest = hashlib.sha256()
    for row in rows:
        text = json.dumps(row, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def read_hub(part: HubPart) -> tuple[list[dict[str, Any]], str]:
    """Returns the rows of a part and their revision; the first read pins both in the lock file."""
    revision = lock_file.pinned(part.repository).get("revision") or _resolve(part.repository)
    rows = _download(part, revision)
    where = f"{part.repository} ({part.key}) at revision {revision}"
    if part.rows is not None and len(rows) != part.rows:
        raise UserError(f"{where}: {len(rows)} rows, expected {part.rows}")
    facts: dict[str, dict[str, int | str]] = {part.key: {"rows": len(rows), "sha256": rows_digest(rows)}}
    lock_file.pin(part.repository, revision, "parts", facts)
    return rows, revision


def _asking(repository: str) -> AbstractContextManager[None]:
    return lock_file.asking(repository, "go online once, or name a local mirror in TROLL_DATA_MIRROR")


def _resolve(repository: str) -> str:
    """Returns the current revision of a data set on the hub."""
    from huggingface_hub import HfApi

    with _asking(repository):
        revision = HfApi().dataset_info(repository).sha
    return lock_file.named_revision(repository, revision)


def _download(part: HubPart, revision: str) -> list[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise UserError("datasets: not installed; pip install 'datasets>=5'") from None
    with _asking(part.repository):
        table = datasets.load_dataset(part.repository, part.config, split=part.split, revision=revision)
    return [dict(row) for row in table]
