"""Computation and writing of the tables and figures in the registry."""

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.data.provenance import machine_name
from troll.analysis.data.results import Results
from troll.analysis.data.summaries import require_one
from troll.analysis.data.tidy import BASE
from troll.analysis.registry import Entry, Kind, entries
from troll.analysis.render.formats import listed, write_table
from troll.analysis.render.style import write_figure
from troll.analysis.render.substitutes import mark_rehearsal, mark_substitutes
from troll.common.errors import UserError, unknown

_GIVEN = ("runs", "items", "expected", "skipped")


def make(entry: Entry, results: Results, task: str | None = None) -> Any:
    """Calls the function of an entry; returns a DataFrame for a table, a Figure for a figure."""
    require_one(results.runs)
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
    """Returns a table by name, with marks for substitute data sets and rehearsals."""
    frame: pd.DataFrame = make(_entry("table", name), results)
    frame.attrs["notes"] = [*frame.attrs.get("notes", []), *_places_note(results)]
    return mark_rehearsal(mark_substitutes(frame, results.substitutes), results.rehearsal)


def _places_note(results: Results) -> list[str]:
    """Returns a note on the machines and libraries of the runs, if there are several."""
    runs = results.runs.loc[results.runs["trust_region"] != BASE].drop_duplicates(["experiment", "run_id"])
    versions = runs["digest_environment"].astype(str)
    places = Counter(zip(map(machine_name, runs["hardware"]), versions, strict=True))
    if len(places) < 2:
        return []
    parts = [f"{count} on {name} with versions {digest[:7]}" for (name, digest), count in places.items()]
    return [f"The runs were made in {len(places)} places: {listed(parts)}."]


def _entry(kind: Kind, name: str) -> Entry:
    registered = entries(kind)
    if name not in registered:
        raise UserError(f"unknown {kind} {name!r}; valid: {', '.join(registered)}")
    return registered[name]


def make_table(name: str, results: Results, stem: Path, formats: Sequence[str] = ("csv", "markdown")) -> None:
    """Writes a table as ``<stem>.csv`` and ``<stem>.md``, or in other formats of `formats.FORMATS`."""
    write_table(table(name, results), stem, formats)


def make_figure(
    name: str, results: Results, stem: Path, task: str | None = None, formats: Sequence[str] = ("png",)
) -> None:
    """Writes a figure as ``<stem>.png``, or in other formats of `style.FORMATS`."""
    entry = _entry("figure", name)
    if entry.per_task and task is None:
        raise UserError(f"figure {name!r} is made for one task; name it with --task")
    tasks = dict.fromkeys(map(str, results.runs["task"]))
    if task is not None and not entry.per_task:
        raise UserError(f"figure {name!r} covers all tasks; leave out --task")
    if task is not None and task not in tasks:
        raise UserError(f"--task: {unknown('task', task, tasks)}")
    write_figure(make(entry, results, task), stem, formats)
