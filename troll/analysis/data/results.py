"""The results of an experiment: its tidy tables and its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field

from troll.analysis.data.runs import marked
from troll.analysis.data.tidy import BASE, ITEM_COLUMNS, RUN_COLUMNS, Tidy, concatenated, read_tidy
from troll.common.errors import UserError
from troll.common.explain import validated
from troll.common.files import read_json, write_json
from troll.common.settings import StrictModel

PLAN = "plan.json"
"""File beside the tidy tables: planned and skipped runs, and data sets that replace the paper's."""


class Plan(StrictModel):
    """An experiment's plan and, after collecting, what is known of its runs; the contents of `PLAN`."""

    # coordinates of the planned runs, each with the ``rule`` of its trust region
    expected: list[dict[str, Any]] | None = None
    skipped: dict[str, str] = Field({})  # reason by task, for tasks that this machine cannot run
    substitutes: dict[str, str] = Field({})  # the data set that replaces the paper's, by task
    mixed: list[str] = Field([])  # ids of runs that were admitted although their provenance differs
    claims: list[str] = Field([])  # the experiment file's claims files; empty: those of the package
    summary: str = ""  # the experiment file's one-line summary
    rehearsal: bool = False  # whether these are runs of `troll rehearse`, with meaningless numbers
    # key of each planned run by run id, including base models; only the collecting job reads it
    keys: dict[str, str] = Field({})


@dataclass(frozen=True)
class Results:
    """The inputs of tables, figures and verdicts; the fields after the tables are those of `Plan`."""

    runs: pd.DataFrame
    items: pd.DataFrame
    expected: Sequence[Mapping[str, object]] | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    substitutes: Mapping[str, str] = field(default_factory=dict)
    mixed: Sequence[str] = ()
    claims: Sequence[str] = ()
    summary: str = ""
    rehearsal: bool = False


def write_plan(directory: Path, plan: Plan) -> None:
    """Writes the plan of an experiment to its results directory, without ``keys`` and empty fields."""
    fields = plan.model_dump(exclude={"keys"})
    write_json(
        directory / PLAN,
        {name: value for name, value in fields.items() if value or name in ("expected", "skipped")},
    )


def rehearsed(directories: Sequence[Path]) -> bool:
    """Returns whether the manifest of any of these runs or base models records `troll rehearse`."""
    paths = [path / "manifest.json" for path in directories]
    manifests = [read_json(path) for path in paths if path.exists()]
    configs = [manifest.get("config") for manifest in manifests if isinstance(manifest, dict)]
    return any(config.get("rehearsal", False) for config in configs if isinstance(config, dict))


def read_results(directory: Path) -> Results:
    """Returns the tidy tables of results/<experiment>, with its plan if it has one.

    Runs that are not planned are left out; the tables of a board that grows rule by rule may have some.
    """
    path = directory / PLAN
    plan = validated(Plan, read_json(path) if path.exists() else {}, path)
    tidy = read_tidy(directory)
    if plan.expected is not None:
        tidy = _planned(tidy, plan.expected, path)
    tidy = marked(tidy, plan.mixed)
    return Results(tidy.runs, tidy.items, **plan.model_dump(exclude={"keys"}))


_PLANNED = ("model", "task", "trust_region", "estimator", "condition", "seed")


def _planned(tidy: Tidy, expected: Sequence[Mapping[str, object]], path: Path) -> Tidy:
    """Returns the rows of planned runs and base models."""
    try:
        planned = {tuple(str(run[name]) for name in _PLANNED) for run in expected}
    except KeyError as error:
        raise UserError(f"{path}: expected: a run has no {error}; collect the runs again") from None
    table = tidy.runs[["run_id", *_PLANNED]].drop_duplicates("run_id").astype(str)
    rows = zip(*(table[name] for name in ("run_id", "trust_region", *_PLANNED)), strict=True)
    kept = [run_id for run_id, region, *row in rows if region == BASE or tuple(row) in planned]
    return tidy if len(kept) == len(table) else tidy.of_runs(kept)


def tables_of(every: Sequence[Results]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the concatenated run and item tables of several experiments."""
    runs = concatenated([results.runs for results in every], RUN_COLUMNS)
    return runs, concatenated([results.items for results in every], ITEM_COLUMNS)


def read_tables(directories: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`tables_of` the results in these directories."""
    return tables_of([read_results(directory) for directory in directories])
