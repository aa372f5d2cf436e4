"""Sources of the package that give the same numbers: their runs may stand in one table.

A run records the digest of all source that can change its numbers. Most changes of that source change none: a
comment, a message, one more number in the log. Where runs have shown it, ``equal_sources.yaml`` says so and
names archived runs from each source; the tests compare those number for number.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from troll.common.files import read_yaml

FILE = Path(str(files(__package__) / "equal_sources.yaml"))
_TIME = "time"
"""The one entry of a line of ``metrics.jsonl`` that is no number of the run."""


class EqualSources(BaseModel):
    """An entry of the file.

    Attributes:
        sources: digests, oldest first.
        changed: what differs between them.
        other_rules: trust regions whose numbers did change: their runs are made again.
        evidence: pairs of archives, as paths below the repository's root: one run, made from an older and a
            newer source of the entry.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    sources: tuple[str, ...] = Field(min_length=2)
    changed: str
    other_rules: tuple[str, ...] = ()
    evidence: tuple[tuple[str, str], ...] = Field(min_length=1)


@cache
def entries() -> Sequence[EqualSources]:
    """What the package's file says."""
    return TypeAdapter(list[EqualSources]).validate_python(read_yaml(FILE))


def oldest_equal(source: str, rule: str = "") -> str:
    """The oldest source that gives the same numbers as this one; itself where none is known.

    Args:
        source: a digest of `troll.training.manifest.source_digest`.
        rule: of the run's trust region; empty for base models.
    """
    for entry in entries():
        if source in entry.sources and rule not in entry.other_rules:
            return entry.sources[0]
    return source


def changed_in(source: str, rule: str) -> bool:
    """Whether a rule's numbers changed between this source and those that give the same for other rules.

    Args:
        source: as for `oldest_equal`.
        rule: of the run's trust region.
    """
    return any(source in entry.sources and rule in entry.other_rules for entry in entries())


def first_difference(old: Path, new: Path) -> str | None:
    """Where two archived runs of one configuration first differ, in words; None where they are the same.

    Times are left out. The newer run may have numbers that the older one lacks, but not the other way round.

    Args:
        old: the archive of the run from the older source.
        new: the archive of the run from the newer source.
    """
    with zipfile.ZipFile(old) as before, zipfile.ZipFile(new) as after:
        if _comment(before)["config"] != _comment(after)["config"]:
            return "configurations differ"
        if before.read("grades.json") != after.read("grades.json"):
            return "grades differ"
        lines, others = (
            [json.loads(line) for line in file.read("metrics.jsonl").splitlines()] for file in (before, after)
        )
    if len(lines) != len(others):
        return f"{len(lines)} and {len(others)} steps"
    for line, other in zip(lines, others, strict=True):
        for name, value in line.items():
            if name != _TIME and value != other.get(name):
                return f"step {line['step']}, {name}: {value} and {other.get(name)}"
    return None


def source_of(path: Path) -> str:
    """The digest of the source that an archived run was made from."""
    with zipfile.ZipFile(path) as file:
        return str(_comment(file)["source"])


def _comment(file: zipfile.ZipFile) -> Mapping[str, Any]:
    comment: Mapping[str, Any] = json.loads(file.comment)
    return comment
