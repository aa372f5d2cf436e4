"""Loads data sets: from the local mirror if it has them, else from the hub or from evalplus.

The sources of a data set are never mixed: a mirror that has one of its files must have them all.
"""

import functools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from troll.common.digests import sha256_of_file
from troll.common.errors import UserError
from troll.common.files import read_jsonl
from troll.common.lock_file import lock_path
from troll.tasks.datasets import convert
from troll.tasks.datasets.catalogue import DATA_SETS, DataSet
from troll.tasks.datasets.convert import Row
from troll.tasks.datasets.dapo import split_dapo
from troll.tasks.datasets.hub import read_hub, rows_digest
from troll.tasks.datasets.mirror import VARIABLE, mirror, mirror_files, read_mirror
from troll.tasks.types import Problem

STAND_INS = "TROLL_REHEARSAL_ROWS"
"""Environment variable: directory of the rows that replace data sets in a rehearsal (`troll rehearse`)."""

# Provenance of a data set that the paper itself used.
_NO_SUBSTITUTE = {"substitute": False, "note": ""}


@dataclass(frozen=True)
class Loaded:
    """A split of a data set."""

    name: str
    split: str
    problems: tuple[Problem, ...]  # in the order of the source
    # ``source`` (mirror, hub, evalplus or rehearsal), the file or repository with its digest or revision,
    # ``substitute`` (whether it replaces the set that the paper used) and ``note``
    provenance: Mapping[str, Any]
    sha256: str  # of the problems as canonical JSON lines


def load(name: str, split: str = "test") -> Loaded:
    """Loads a split (``train``, ``test``, for some ``validation``, or ``all``) of one of `DATA_SETS`."""
    if name not in DATA_SETS:
        raise UserError(f"unknown data set {name!r}; valid: {', '.join(DATA_SETS)}")
    item = DATA_SETS[name]
    if split not in item.parts:
        raise UserError(f"data set {name} has no split {split!r}; valid: {', '.join(item.parts)}")
    return _load(name, split, mirror_of(item), lock_path(), os.environ.get(STAND_INS))


def mirror_of(item: DataSet) -> Path | None:
    """Returns the mirror's directory if it has a file of this data set; None if the hub has to be asked."""
    root = mirror()
    files = [part.file for part in item.parts.values() if part.file is not None]
    if item.name == "humaneval":  # reads its tests from HumanEval+
        files += [part.file for part in DATA_SETS["humaneval+"].parts.values() if part.file is not None]
    return root if root is not None and any((root / file).exists() for file in files) else None


@functools.lru_cache(maxsize=64)
def _load(name: str, split: str, root: Path | None, _lock: Path, _stand_ins_in: str | None) -> Loaded:
    item = DATA_SETS[name]
    if name == "dapo" and root is not None and split != "all" and _stand_ins(name, split) is None:
        whole = _load(name, "all", root, _lock, _stand_ins_in)
        splits, facts = split_dapo(whole.problems)
        return _loaded(name, split, splits[split], {**whole.provenance, "split": facts})
    rows, provenance = _rows(item, split, root)
    if name == "humaneval":
        plus, more = _rows(DATA_SETS["humaneval+"], "test", root)
        by_id = {row["task_id"]: row for row in plus}
        problems = [convert.humaneval(row, by_id[row["task_id"]]) for row in rows]
        provenance["inputs"] = more
    else:
        problems = [item.convert(row, number) for number, row in enumerate(rows)]
    return _loaded(name, split, problems, provenance)


def _loaded(name: str, split: str, problems: Sequence[Problem], provenance: Mapping[str, Any]) -> Loaded:
    for task_id, times in Counter(problem.task_id for problem in problems).items():
        if times > 1:
            raise UserError(f"data set {name}: task_id {task_id!r} occurs twice in split {split}")
    expected = None if provenance["source"] == "rehearsal" else DATA_SETS[name].parts[split].rows
    if expected is not None and len(problems) != expected:
        raise UserError(f"data set {name}: {len(problems)} problems in split {split}, expected {expected}")
    digest = rows_digest(problem.as_row() for problem in problems)
    return Loaded(name, split, tuple(problems), provenance, digest)


def _stand_ins(name: str, split: str) -> Path | None:
    """Returns the file of rows that replace a split in a rehearsal; None if there is none."""
    directory = os.environ.get(STAND_INS)
    path = Path(directory, name, f"{split}.jsonl") if directory else None
    return path if path is not None and path.exists() else None


def _rows(item: DataSet, split: str, root: Path | None) -> tuple[list[Row], dict[str, Any]]:
    part = item.parts[split]
    if (stand_ins := _stand_ins(item.name, split)) is not None:
        note = {"source": "rehearsal", "substitute": True, "note": "built-in rows of a rehearsal"}
        return [row for row in read_jsonl(stand_ins) if part.keep(row)], note
    if root is not None:
        if part.file is None:
            raise UserError(f"data set {item.name}: split {split!r} is on the hub only; unset {VARIABLE}")
        source = {"source": "mirror", "file": part.file, "sha256": mirror_files()[part.file].sha256}
        provenance = {**source, "substitute": item.substitute is not None, "note": item.substitute or ""}
        return [row for row in read_mirror(root, part.file) if part.keep(row)], provenance
    if item.evalplus is not None:
        return _evalplus_rows(item)
    if not part.hub:
        raise UserError(f"data set {item.name}: split {split!r} is in a local mirror only; set {VARIABLE}")
    pieces = [read_hub(piece) for piece in part.hub]
    source = {"source": "hub", "repository": part.hub[0].repository, "revision": pieces[-1][1]}
    return [row for rows, _ in pieces for row in rows if part.keep(row)], {**source, **_NO_SUBSTITUTE}


def _evalplus_rows(item: DataSet) -> tuple[list[Row], dict[str, Any]]:
    """Returns the rows of a release of evalplus, which keeps the inputs of its sets outside the hub."""
    try:
        from evalplus.data import humaneval, mbpp
    except ImportError:
        raise UserError("evalplus: not installed; install it: pip install 'troll[evaluate]'") from None
    expected = mirror_files()[item.parts["test"].file or ""]
    try:
        if item.evalplus == "humaneval":
            version, place = humaneval.HUMANEVAL_PLUS_VERSION, humaneval._ready_human_eval_plus_path()
        else:
            version, place = mbpp.MBPP_PLUS_VERSION, mbpp._ready_mbpp_plus_path()
        path = Path(place)
        rows: list[Row] = list(read_jsonl(path))
    except Exception as error:  # it uses several libraries, each with errors of its own
        raise UserError(
            f"evalplus: its data cannot be fetched ({type(error).__name__}); go online once, or name a local "
            f"mirror in {VARIABLE}"
        ) from None
    if len(rows) != expected.rows:
        raise UserError(f"{path}: {len(rows)} rows, expected {expected.rows}")
    source = {"source": "evalplus", "version": version, "sha256": sha256_of_file(path)}
    return rows, {**source, **_NO_SUBSTITUTE}
