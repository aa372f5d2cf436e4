"""The results of one experiment as everything else reads them: its tidy tables, and what it had planned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.data.tidy import ITEM_COLUMNS, RUN_COLUMNS, concatenated, read_items, read_runs
from troll.analysis.sequential import Looks
from troll.common.errors import UserError
from troll.common.files import read_json, write_json

PLAN = "plan.json"
"""Beside the tidy table: what was planned, for cells that say "not run" or "skipped", and substitute data."""

_KINDS: Mapping[str, type] = {
    "expected": list,
    "skipped": dict,
    "substitutes": dict,
    "restored": list,
    "rehearsal": bool,
    "looks": dict,
    "claims": list,
}
_WORDS = {list: "a list", dict: "an object", bool: "true or false"}


@dataclass(frozen=True)
class Results:
    """What tables, figures and verdicts are made from.

    Attributes:
        runs: the tidy table (`troll.analysis.data.tidy`).
        items: the table of test problems.
        expected: coordinates of the planned runs, each with the ``rule`` of its trust region.
        skipped: reason by task, for tasks that this machine cannot run.
        substitutes: what there is in place of the paper's data set, by task.
        restored: ids of runs that were not made here but restored from the archive.
        rehearsal: whether these are runs of `troll rehearse`, whose numbers mean nothing.
        looks: when seeds were looked at, where they were added after looking.
        claims: what the experiment file names as its files of claims; none: those of the package.
    """

    runs: pd.DataFrame
    items: pd.DataFrame
    expected: Sequence[Mapping[str, object]] | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    substitutes: Mapping[str, str] = field(default_factory=dict)
    restored: Sequence[str] = ()
    rehearsal: bool = False
    looks: Looks | None = None
    claims: Sequence[str] = ()


def write_plan(
    directory: Path,
    expected: Sequence[Mapping[str, object]],
    skipped: Mapping[str, str],
    substitutes: Mapping[str, str] | None = None,
    restored: Sequence[str] = (),
    looks: Looks | None = None,
    claims: Sequence[str] = (),
    *,
    rehearsal: bool = False,
) -> None:
    """Records what an experiment planned beside its results.

    Args:
        directory: results/<experiment>.
        expected: coordinates of the planned runs.
        skipped: reason by task.
        substitutes: what there is in place of the paper's data set, by task.
        restored: ids of runs that were restored from the archive.
        rehearsal: whether the runs are a rehearsal's.
        looks: when seeds are looked at, where they are added after looking.
        claims: the files of claims as the experiment file names them; none: those of the package.
    """
    plan: dict[str, Any] = {"expected": [dict(run) for run in expected], "skipped": dict(skipped)}
    plan |= {"substitutes": dict(substitutes)} if substitutes else {}
    plan |= {"restored": sorted(restored)} if restored else {}
    plan |= {"looks": {"first": looks.first, "most": looks.most}} if looks else {}
    plan |= {"claims": list(claims)} if claims else {}
    write_json(directory / PLAN, plan | ({"rehearsal": True} if rehearsal else {}))


def rehearsed(directories: Sequence[Path]) -> bool:
    """Whether one of these runs or base models was made by `troll rehearse`, as its manifest says."""
    manifests = [path / "manifest.json" for path in directories]
    known = [read_json(path) for path in manifests if path.exists()]
    configs = [manifest.get("config") for manifest in known if isinstance(manifest, dict)]
    return any(config.get("rehearsal", False) for config in configs if isinstance(config, dict))


def read_results(directory: Path) -> Results:
    """The tidy tables of results/<experiment>, with its plan where there is one.

    Raises:
        UserError: a table is missing or broken.
    """
    path = directory / PLAN
    plan = read_json(path) if path.exists() else {}
    known = [*_KINDS]
    if not isinstance(plan, dict) or set(plan) - {*known}:
        raise UserError(f"{path}: expected an object with {', '.join(known[:-1])} and {known[-1]}")
    for name, value in plan.items():
        kind = _KINDS[name]
        if not isinstance(value, kind) and not (value is None and name in ("expected", "looks")):
            raise UserError(f"{path}: {name}: expected {_WORDS[kind]}, found {value!r}")
    if plan.get("expected") is not None:
        plan["expected"] = planned_of(plan["expected"], f"{path}: expected")
    if plan.get("looks"):
        plan["looks"] = looks_of(plan["looks"], f"{path}: looks")
    return Results(read_runs(directory / "runs.parquet"), read_items(directory / "items.parquet"), **plan)


def planned_of(value: object, where: str) -> list[Mapping[str, object]]:
    """The coordinates of the planned runs from their JSON.

    Raises:
        UserError: they are none.
    """
    if not isinstance(value, list) or not all(isinstance(run, dict) for run in value):
        raise UserError(f"{where}: expected a list of objects, one for each planned run")
    return value


def looks_of(value: object, where: str) -> Looks:
    """The plan of the looks from its JSON.

    Raises:
        UserError: it is none.
    """
    try:
        if not isinstance(value, dict) or set(value) != {"first", "most"}:
            raise ValueError("expected first and most")
        return Looks(int(value["first"]), int(value["most"]))
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {error}") from None


def tables_of(every: Sequence[Results]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tidy tables and the tables of test problems of several experiments, one below the other."""
    runs = concatenated([results.runs for results in every], RUN_COLUMNS)
    return runs, concatenated([results.items for results in every], ITEM_COLUMNS)


def read_tables(directories: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`tables_of` what is in these directories."""
    return tables_of([read_results(directory) for directory in directories])
