"""Proof that released tables and figures are those of the tidy table: make them again and compare."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.image import imread

from troll.analysis.artefacts import (
    FIGURES,
    TABLES,
    TASK_FIGURES,
    Evidence,
    evidence,
    make_figure,
    make_table,
)
from troll.analysis.claims import judge, read_claims
from troll.analysis.ledger import write_claims
from troll.analysis.runs import ITEM_COLUMNS, RUN_COLUMNS
from troll.errors import UserError
from troll.files import read_json, write_json

PLAN = "plan.json"
"""Beside the tidy table: what was planned, for cells that say "not run" or "skipped", and stand-in data."""
_TABLES, _FIGURES = (".csv", ".md", ".tex", ".html"), (".png", ".pdf")


def write_plan(
    directory: Path,
    expected: Sequence[Mapping[str, object]],
    skipped: Mapping[str, str],
    stand_ins: Mapping[str, str] | None = None,
) -> None:
    """Records what an experiment planned beside its results.

    Args:
        directory: results/<experiment>.
        expected: coordinates of the planned runs.
        skipped: reason by task.
        stand_ins: what there is in place of the paper's data set, by task.
    """
    plan = {"expected": [dict(run) for run in expected], "skipped": dict(skipped)}
    write_json(directory / PLAN, plan | ({"stand_ins": dict(stand_ins)} if stand_ins else {}))


def read_evidence(directory: Path) -> Evidence:
    """The tidy tables of results/<experiment>, with its plan where there is one.

    Raises:
        UserError: a table is missing or broken.
    """
    path = directory / PLAN
    plan = read_json(path) if path.exists() else {}
    if not isinstance(plan, dict) or set(plan) - {"expected", "skipped", "stand_ins"}:
        raise UserError(f"{path}: expected an object with expected, skipped and stand_ins")
    return evidence(directory / "runs.parquet", directory / "items.parquet", **plan)


def read_tables(directories: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tidy tables and the tables of test problems of several experiments, one below the other."""
    given = [read_evidence(directory) for directory in directories]
    runs = pd.concat([one.runs for one in given], ignore_index=True)
    items = pd.concat([one.items for one in given], ignore_index=True)
    return runs.astype(dict(RUN_COLUMNS)), items.astype(dict(ITEM_COLUMNS))


def check_results(
    directory: Path, *, given: Evidence | None = None, claims: Sequence[Path] = ()
) -> list[Path]:
    """Makes every table and figure of an experiment again from its tidy table and compares them.

    CSV, Markdown, LaTeX, HTML and PDF files have to be the same bytes, PNG files the same pixels.

    Args:
        directory: results/<experiment>, with ``runs.parquet``, ``items.parquet``, ``tables/``, ``figures/``.
        given: the evidence, where the plan is known otherwise than from ``plan.json``.
        claims: the files that ``claims.md`` and ``claims.json`` were judged by; those are compared too.

    Returns:
        The files that were compared.

    Raises:
        UserError: a file differs, cannot be made from the tidy table, or there is none; every one is named.
    """
    known = given or read_evidence(directory)
    tracked = [
        *_files(directory / "tables", _TABLES),
        *_files(directory / "figures", _FIGURES),
        *(_files(directory, (".md", ".json"), "claims.*") if claims else ()),
    ]
    if not tracked:
        raise UserError(f"{directory}: no tables or figures to check")
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        foreign = [path for path in _stems(tracked) if not _make(path, directory, fresh, known, claims)]
        if foreign:
            raise UserError(
                f"{_names(foreign, directory)}: not made from the tidy table; "
                "released tables and figures have to be, so remove or rename them"
            )
        different = [path for path in tracked if not _same(path, fresh / path.relative_to(directory))]
    if different:
        raise UserError(
            f"{_names(different, directory)}: not what {directory / 'runs.parquet'} gives; make them again"
        )
    return tracked


def _files(directory: Path, suffixes: Sequence[str], pattern: str = "*") -> list[Path]:
    return sorted(path for path in directory.glob(pattern) if path.suffix in suffixes)


def _stems(paths: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(path.with_suffix("") for path in paths))


def _names(paths: Sequence[Path], directory: Path) -> str:
    return ", ".join(str(path.relative_to(directory)) for path in paths)


def _make(stem: Path, directory: Path, fresh: Path, given: Evidence, claims: Sequence[Path]) -> bool:
    """Makes the files of one stem; returns whether the tidy table knows how."""
    target = fresh / stem.relative_to(directory)
    if stem.parent == directory:
        judged = judge(read_claims(claims), given.runs, given.items)
        inputs = [directory / "runs.parquet", directory / "items.parquet", *claims]
        write_claims(judged, given.runs, inputs, target)
        return True
    if stem.parent.name == "tables":
        if stem.name in TABLES:
            make_table(stem.name, given, target)
        return stem.name in TABLES
    if stem.name in FIGURES:
        make_figure(stem.name, given, target)
        return True
    name, _, task = stem.name.partition("_")
    if name in TASK_FIGURES and task in set(given.runs["task"]):
        make_figure(name, given, target, task)
        return True
    return False


def _same(old: Path, new: Path) -> bool:
    if not new.exists():
        return False
    if old.suffix == ".png":
        try:
            return np.array_equal(imread(old), imread(new))
        except (OSError, SyntaxError):  # not an image any more
            return False
    return old.read_bytes() == new.read_bytes()
