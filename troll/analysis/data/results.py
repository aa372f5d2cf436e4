"""The results of an experiment: its tidy tables and its plan."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field

from troll.analysis.data.runs import marked
from troll.analysis.data.tidy import BASE, ITEM_COLUMNS, RUN_COLUMNS, Tidy, concatenated, read_tidy
from troll.common.explain import validated
from troll.common.files import read_json, write_json
from troll.common.settings import StrictModel

PLAN = "plan.json"
"""File beside the tidy tables: planned and skipped runs, and data sets that replace the paper's."""


class _Planned(StrictModel):
    expected: list[dict[str, Any]] | None = None
    skipped: dict[str, str] = Field({})
    summary: str = ""


class Plan(_Planned):
    """The plan that the workflow passes to the collecting job; the other fields are those of `Results`."""

    keys: dict[str, str] = Field({})  # key of each planned run by run id, including base models


class _PlanFile(_Planned):
    substitutes: dict[str, str] = Field({})
    mixed: list[str] = Field([])
    rehearsal: bool = False
    claims: list[str] = Field([])


@dataclass(frozen=True)
class Results:
    """The inputs of tables, figures and verdicts."""

    runs: pd.DataFrame
    items: pd.DataFrame
    # coordinates of the planned runs, each with the ``rule`` of its trust region
    expected: Sequence[Mapping[str, object]] | None = None
    # reason by task, for tasks that this machine cannot run
    skipped: Mapping[str, str] = field(default_factory=dict)
    # the data set that replaces the paper's, by task
    substitutes: Mapping[str, str] = field(default_factory=dict)
    mixed: Sequence[str] = ()  # ids of runs that were admitted although their provenance differs
    rehearsal: bool = False  # whether these are runs of `troll rehearse`, with meaningless numbers
    # the experiment file's claims files; empty: those of the package
    claims: Sequence[str] = ()
    summary: str = ""  # the experiment file's one-line summary


def write_plan(
    directory: Path,
    expected: Sequence[Mapping[str, object]],
    skipped: Mapping[str, str],
    substitutes: Mapping[str, str] | None = None,
    mixed: Collection[str] = (),
    claims: Sequence[str] = (),
    *,
    summary: str = "",
    rehearsal: bool = False,
) -> None:
    """Writes the plan of an experiment to its results directory."""
    plan = {"expected": [dict(run) for run in expected], "skipped": dict(skipped)}
    further = {
        "substitutes": dict(substitutes or {}),
        "mixed": sorted(mixed),
        "claims": list(claims),
        "summary": summary,
        "rehearsal": rehearsal,
    }
    write_json(directory / PLAN, plan | {name: value for name, value in further.items() if value})


def rehearsed(directories: Sequence[Path]) -> bool:
    """Whether the manifest of any of these runs or base models records `troll rehearse`."""
    paths = [path / "manifest.json" for path in directories]
    manifests = [read_json(path) for path in paths if path.exists()]
    configs = [manifest.get("config") for manifest in manifests if isinstance(manifest, dict)]
    return any(config.get("rehearsal", False) for config in configs if isinstance(config, dict))


def read_results(directory: Path) -> Results:
    """The tidy tables of results/<experiment>, with its plan if it has one.

    Runs that are not planned are left out; the tables of a board that grows rule by rule may have some.
    """
    path = directory / PLAN
    plan = validated(_PlanFile, read_json(path) if path.exists() else {}, path)
    tidy = read_tidy(directory)
    if plan.expected is not None:
        tidy = _planned(tidy, plan.expected)
    tidy = marked(tidy, plan.mixed)
    return Results(tidy.runs, tidy.items, **dict(plan))


_PLANNED = ("model", "task", "trust_region", "estimator", "condition", "seed")


def _planned(tidy: Tidy, expected: Sequence[Mapping[str, object]]) -> Tidy:
    """The rows of planned runs and base models."""
    names = [name for name in _PLANNED if all(name in run for run in expected)]
    if not names:
        return tidy
    planned = {tuple(str(run[name]) for name in names) for run in expected}
    table = tidy.runs[["run_id", *_PLANNED]].drop_duplicates("run_id").astype(str)
    rows = zip(*(table[name] for name in ("run_id", "trust_region", *names)), strict=True)
    kept = [run_id for run_id, region, *row in rows if region == BASE or tuple(row) in planned]
    return tidy if len(kept) == len(table) else tidy.of_runs(kept)


def tables_of(every: Sequence[Results]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The concatenated run and item tables of several experiments."""
    runs = concatenated([results.runs for results in every], RUN_COLUMNS)
    return runs, concatenated([results.items for results in every], ITEM_COLUMNS)


def read_tables(directories: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`tables_of` the results in these directories."""
    return tables_of([read_results(directory) for directory in directories])
