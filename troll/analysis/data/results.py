"""The results of one experiment as everything else reads them: its tidy tables, and what it had planned."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.data.runs import marked
from troll.analysis.data.tidy import BASE, ITEM_COLUMNS, RUN_COLUMNS, Tidy, concatenated, read_tidy
from troll.analysis.sequential import Looks
from troll.common.errors import UserError
from troll.common.files import read_json, write_json

PLAN = "plan.json"
"""Beside the tidy table: what was planned, for cells that say "not run" or "skipped", and substitute data."""

_KINDS: Mapping[str, type] = {
    "expected": list,
    "skipped": dict,
    "substitutes": dict,
    "mixed": list,
    "rehearsal": bool,
    "looks": dict,
    "claims": list,
    "summary": str,
}
_WORDS = {list: "a list", dict: "an object", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Results:
    """What tables, figures and verdicts are made from."""

    runs: pd.DataFrame
    items: pd.DataFrame
    # coordinates of the planned runs, each with the ``rule`` of its trust region
    expected: Sequence[Mapping[str, object]] | None = None
    # reason by task, for tasks that this machine cannot run
    skipped: Mapping[str, str] = field(default_factory=dict)
    # what there is in place of the paper's data set, by task
    substitutes: Mapping[str, str] = field(default_factory=dict)
    mixed: Sequence[str] = ()  # ids of runs that were made otherwise than most, and admitted
    rehearsal: bool = False  # whether these are runs of `troll rehearse`, with meaningless numbers
    looks: Looks | None = None  # when seeds were looked at, where they were added after looking
    # what the experiment file names as its files of claims; none: those of the package
    claims: Sequence[str] = ()
    summary: str = ""  # what the experiment file says of itself in one line


def write_plan(
    directory: Path,
    expected: Sequence[Mapping[str, object]],
    skipped: Mapping[str, str],
    substitutes: Mapping[str, str] | None = None,
    mixed: Collection[str] = (),
    looks: Looks | None = None,
    claims: Sequence[str] = (),
    *,
    summary: str = "",
    rehearsal: bool = False,
) -> None:
    """Records what an experiment planned beside its results."""
    plan: dict[str, Any] = {"expected": [dict(run) for run in expected], "skipped": dict(skipped)}
    plan |= {"substitutes": dict(substitutes)} if substitutes else {}
    plan |= {"mixed": sorted(mixed)} if mixed else {}
    plan |= {"looks": {"first": looks.first, "most": looks.most}} if looks else {}
    plan |= {"claims": list(claims)} if claims else {}
    plan |= {"summary": summary} if summary else {}
    write_json(directory / PLAN, plan | ({"rehearsal": True} if rehearsal else {}))


def rehearsed(directories: Sequence[Path]) -> bool:
    """Whether one of these runs or base models was made by `troll rehearse`, as its manifest says."""
    manifests = [path / "manifest.json" for path in directories]
    manifest_contents = [read_json(path) for path in manifests if path.exists()]
    configs = [manifest.get("config") for manifest in manifest_contents if isinstance(manifest, dict)]
    return any(config.get("rehearsal", False) for config in configs if isinstance(config, dict))


def read_results(directory: Path) -> Results:
    """The tidy tables of results/<experiment>, with its plan where there is one.

    Tables may hold runs that are not planned, of a board that grows rule by rule: these are left out.
    """
    path = directory / PLAN
    plan = read_json(path) if path.exists() else {}
    keys = [*_KINDS]
    if not isinstance(plan, dict) or set(plan) - {*keys}:
        raise UserError(f"{path}: expected an object with {', '.join(keys[:-1])} and {keys[-1]}")
    for name, value in plan.items():
        kind = _KINDS[name]
        if not isinstance(value, kind) and not (value is None and name in ("expected", "looks")):
            raise UserError(f"{path}: {name}: expected {_WORDS[kind]}, found {value!r}")
    if plan.get("expected") is not None:
        plan["expected"] = planned_of(plan["expected"], f"{path}: expected")
    if plan.get("looks"):
        plan["looks"] = looks_of(plan["looks"], f"{path}: looks")
    tidy = read_tidy(directory)
    if plan.get("expected") is not None:
        tidy = _planned(tidy, plan["expected"])
    tidy = marked(tidy, plan.get("mixed", ()))
    return Results(tidy.runs, tidy.items, **plan)


_PLANNED = ("model", "task", "trust_region", "estimator", "condition", "seed")


def _planned(tidy: Tidy, expected: Sequence[Mapping[str, object]]) -> Tidy:
    """The rows of planned runs and of base models."""
    names = [name for name in _PLANNED if all(name in run for run in expected)]
    if not names:
        return tidy
    planned = {tuple(str(run[name]) for name in names) for run in expected}
    table = tidy.runs[["run_id", *_PLANNED]].drop_duplicates("run_id").astype(str)
    rows = zip(*(table[name] for name in ("run_id", "trust_region", *names)), strict=True)
    kept = [run_id for run_id, region, *row in rows if region == BASE or tuple(row) in planned]
    return tidy if len(kept) == len(table) else tidy.of_runs(kept)


@dataclass(frozen=True)
class Plan:
    """What the workflow hands to the job that collects; what is not explained here is as for `Results`."""

    expected: Sequence[Mapping[str, object]] | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    looks: Looks | None = None
    summary: str = ""
    # what makes each run the planned one, by run id, base models included
    keys: Mapping[str, str] = field(default_factory=dict)


def plan_of(value: Mapping[str, Any], where: str) -> Plan:
    """The plan from its JSON."""
    names = {item.name for item in fields(Plan)}
    if unknown := set(value) - names:
        raise UserError(f"{where}: {min(unknown)}: unknown; a plan has {', '.join(sorted(names))}")
    for name in ("skipped", "keys"):
        if not isinstance(value.get(name, {}), dict):
            raise UserError(f"{where}: {name}: expected an object, found {value[name]!r}")
    expected, looks = value.get("expected"), value.get("looks")
    return Plan(
        None if expected is None else planned_of(expected, f"{where}: expected"),
        value.get("skipped", {}),
        None if looks is None else looks_of(looks, f"{where}: looks"),
        str(value.get("summary", "")),
        value.get("keys", {}),
    )


def planned_of(value: object, where: str) -> list[Mapping[str, object]]:
    """The coordinates of the planned runs from their JSON."""
    if not isinstance(value, list) or not all(isinstance(run, dict) for run in value):
        raise UserError(f"{where}: expected a list of objects, one for each planned run")
    return value


def looks_of(value: object, where: str) -> Looks:
    """The plan of the looks from its JSON."""
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
