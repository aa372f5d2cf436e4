"""Makes the tables and figures of the registry: each entry's function with the results that it asks for."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.data.results import Results
from troll.analysis.data.tidy import BASE
from troll.analysis.registry import Entry, Kind, entries
from troll.analysis.render.formats import write_table
from troll.analysis.render.style import write_figure
from troll.analysis.render.substitutes import mark_rehearsal, mark_substitutes
from troll.common.errors import UserError, unknown

_GIVEN = ("runs", "items", "expected", "skipped")


def make(entry: Entry, results: Results, task: str | None = None) -> Any:
    """Calls the function of an entry: a DataFrame for a table, a Figure for a figure.

    Args:
        entry: of the registry.
        results: what its function may ask for, by the names of its parameters.
        task: for entries that are made for each task.
    """
    module, _, name = entry.function.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"troll.analysis.{module}"), name)
    tables = entries("table")
    arguments: dict[str, Any] = dict(entry.settings)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _GIVEN:
            arguments[parameter.name] = getattr(results, parameter.name)
        elif parameter.name == "task" and entry.per_task:
            arguments["task"] = task
        elif parameter.name in tables and parameter.default is parameter.empty:
            arguments[parameter.name] = make(tables[parameter.name], results)
    return function(**arguments)


def table(name: str, results: Results) -> pd.DataFrame:
    """A table by name, data sets that replace the paper's marked, and a rehearsal's too.

    Raises:
        UserError: there is no table of this name.
    """
    frame: pd.DataFrame = make(_known("table", name), results)
    frame.attrs["notes"] = [*frame.attrs.get("notes", []), *_restored_note(results)]
    return mark_rehearsal(mark_substitutes(frame, results.substitutes), results.rehearsal)


def _restored_note(results: Results) -> list[str]:
    """How many runs were made here and how many elsewhere, where a table has both."""
    runs = results.runs.loc[results.runs["trust_region"] != BASE, "run_id"].unique()
    restored = len({*runs} & {*results.restored})
    if not restored or restored == len(runs):
        return []
    return [f"{restored} of {len(runs)} runs were restored from the archive, the others were made here."]


def _known(kind: Kind, name: str) -> Entry:
    known = entries(kind)
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}; valid: {', '.join(known)}")
    return known[name]


def make_table(name: str, results: Results, stem: Path) -> None:
    """Writes ``<stem>.csv``, ``.md`` and ``.tex``.

    Raises:
        UserError: there is no table of this name.
    """
    write_table(table(name, results), stem)


def make_figure(name: str, results: Results, stem: Path, task: str | None = None) -> None:
    """Writes ``<stem>.pdf`` and ``<stem>.png``.

    Raises:
        UserError: there is no figure of this name; or it is one per task and no task of the table is named.
    """
    entry = _known("figure", name)
    if entry.per_task and task is None:
        raise UserError(f"figure {name!r} is made for one task; name it with --task")
    tasks = dict.fromkeys(map(str, results.runs["task"]))
    if task is not None and not entry.per_task:
        raise UserError(f"figure {name!r} is of all tasks; leave out --task")
    if task is not None and task not in tasks:
        raise UserError(f"--task: {unknown('task', task, tasks)}")
    write_figure(make(entry, results, task), stem)
