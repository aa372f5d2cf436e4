"""Verification of released tables and figures: recomputes them from the tidy tables and compares."""

import csv
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

from troll.analysis.claims.ledger import write_claims
from troll.analysis.claims.verdicts import judge, read_claims
from troll.analysis.data.results import PLAN, Results, read_results
from troll.analysis.data.tidy import TIDY, table_files
from troll.analysis.registry import entries
from troll.analysis.report.document import PAGE, report
from troll.analysis.report.make import make_figure, make_table
from troll.common.errors import UserError
from troll.common.files import atomic_path, read_json, write_text

_ROUNDING = 1e-9
# Rounding changes pixels on the edges of curves slightly, and through the palette a few of them strongly.
_SHADE, _JUMP, _JUMPING = 16 / 255, 0.4, 1 / 2000


def check_results(
    directory: Path,
    *,
    results: Results | None = None,
    claims: Sequence[Path] = (),
    write: bool = False,
    figures: bool = True,
) -> list[Path]:
    """Recomputes every table, figure and page of an experiment from its tidy tables and compares by `same`.

    Returns:
        The checked files; with ``write`` those that differed, which are rewritten.

    Raises:
        UserError: files differ (without ``write``), do not come from the tidy tables, or do not exist.
    """
    expected = results or read_results(directory)
    tracked = [
        *_files(directory / "tables", (".csv",)),
        *(_files(directory / "figures", (".png",)) if figures else ()),
        *(_files(directory, (".md", ".json"), "claims.*") if claims else ()),
    ]
    if not tracked:
        raise UserError(f"{directory}: no tables/ or figures/ to check")
    if write or (directory / PAGE).exists():
        tracked.append(directory / PAGE)
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        foreign = [path for path in _stems(tracked) if not _make(path, directory, fresh, expected, claims)]
        if foreign:
            raise UserError(
                f"{_names(foreign, directory)}: not made from the tidy table, as all released tables and "
                "figures must be; remove or rename them"
            )
        different = [path for path in tracked if not same(path, fresh / path.relative_to(directory))]
        if different and (problem := _lacks_plan(directory / PLAN)):
            plan, names = directory / PLAN, _names(different, directory)
            raise UserError(
                f"{plan}: {problem}; without it these cannot be reproduced: {names}; "
                f"restore it (git checkout -- {plan}), or collect the runs again"
            )
        if write:
            for path in different:
                with atomic_path(path) as temporary:
                    shutil.copyfile(fresh / path.relative_to(directory), temporary)
            return different
    if different:
        raise UserError(
            f"{_names(different, directory)}: differ from what the tables in {directory / TIDY} give; "
            f"`troll release check {directory} --write` writes them again"
        )
    return tracked


def _lacks_plan(path: Path) -> str:
    """Returns why the plan names no runs, empty if it does; runs collected by hand may have no plan."""
    if not path.exists():
        return "no such file"
    plan = read_json(path)
    named = isinstance(plan, dict) and plan.get("expected") is not None
    return "" if named else "names no planned runs (`expected`)"


def _files(directory: Path, suffixes: Sequence[str], pattern: str = "*") -> list[Path]:
    """Returns paths in every format of files that exist in any: a missing one counts as a difference."""
    files = [path for path in directory.glob(pattern) if path.suffix in suffixes]
    return sorted(stem.with_name(stem.name + suffix) for stem in _stems(files) for suffix in suffixes)


def _stems(paths: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(path.with_suffix("") for path in paths))


def _names(paths: Sequence[Path], directory: Path) -> str:
    return ", ".join(str(path.relative_to(directory)) for path in paths)


def _make(stem: Path, directory: Path, fresh: Path, results: Results, claims: Sequence[Path]) -> bool:
    """Makes the files of one stem; returns whether it is a registered table, figure or page."""
    target = fresh / stem.relative_to(directory)
    if stem.parent == directory:
        judged = judge(read_claims(claims) if claims else [], results.runs, results.items)
        if stem.name == Path(PAGE).stem:
            write_text(fresh / PAGE, report(results, judged, directory))
        else:
            write_claims(judged, results.runs, [*table_files(directory).values(), *claims], target)
        return True
    if stem.parent.name == "tables":
        if stem.name in entries("table"):
            make_table(stem.name, results, target)
        return stem.name in entries("table")
    tasks = [str(task) for task in results.runs["task"].unique()]
    for entry in entries("figure").values():
        for task in tasks if entry.per_task else [None]:
            if stem.name == (f"{entry.name}_{task}" if task else entry.name):
                make_figure(entry.name, results, target, task)
                return True
    return False


def same(old: Path, new: Path) -> bool:
    """Returns whether two released files are equal.

    PNG files are compared by pixel and numbers in CSV and JSON by value, both up to rounding on other
    processors; other files by their bytes.
    """
    if not (old.exists() and new.exists()):
        return False
    if old.suffix == ".png":
        try:
            before, after = imread(old), imread(new)
            return before.shape == after.shape and _look_alike(before, after)
        except (OSError, SyntaxError):  # not an image
            return False
    if old.read_bytes() == new.read_bytes():
        return True
    if old.suffix == ".csv":
        return _alike(_cells(old), _cells(new))
    if old.suffix == ".json":
        try:
            return _alike(json.loads(old.read_text()), json.loads(new.read_text()))
        except ValueError:  # not JSON
            return False
    return False


def _look_alike(before: np.ndarray, after: np.ndarray) -> bool:
    changes = np.abs(before - after).max(axis=-1)
    return bool(changes.max() <= _JUMP and (changes > _SHADE).mean() <= _JUMPING)


def _cells(path: Path) -> list[list[Any]]:
    def value(cell: str) -> Any:
        try:
            return float(cell) if "." in cell else cell  # whole numbers and text must be equal
        except ValueError:
            return cell

    with path.open(newline="") as file:
        return [[value(cell) for cell in row] for row in csv.reader(file)]


def _alike(old: Any, new: Any) -> bool:
    """Returns whether two values are equal, floats up to rounding."""
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=_ROUNDING, abs_tol=_ROUNDING) or (old != old and new != new)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_alike, old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        return list(old) == list(new) and all(_alike(old[name], new[name]) for name in old)
    return type(old) is type(new) and bool(old == new)
