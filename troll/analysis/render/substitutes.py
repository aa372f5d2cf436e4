"""Marks for data sets that replace the paper's.

A mirror may hold another version of a data set (`troll.tasks.datasets.catalogue.DataSet.substitute`), which
is marked in every table that uses it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.render.formats import heading
from troll.common.files import read_json
from troll.tasks.datasets.catalogue import MATH_EVAL

MARK = "‡"


def marked(name: str, substitute: bool) -> str:
    """Returns the name of a data set, marked if it is a substitute."""
    return f"{name} {MARK}" if substitute else name


def substitute_note(notes: Mapping[str, str]) -> list[str]:
    """Returns the note of a table on its substitutes; empty without any."""
    if not notes:
        return []
    listed = "; ".join(f"{name}: {note}" if note else name for name, note in sorted(notes.items()))
    return [f"{MARK} stands in for the data set that the paper used ({listed})."]


def mark_substitutes(frame: pd.DataFrame, notes: Mapping[str, str]) -> pd.DataFrame:
    """Returns a table with its substitutes marked and explained in a note.

    Data sets are the values of ``task`` and the prefixes of columns ``<data set>/...``; a mean over the
    paper's MATH Eval is marked if any member is a substitute.
    """
    names = {str(name) for name in frame["task"]} if "task" in frame.columns else set()
    columns = {str(column): _sets(str(column).partition("/")) & set(notes) for column in frame.columns}
    touched = (names & set(notes)).union(*columns.values())
    if not touched:
        return frame
    changed = frame.copy()
    changed.attrs = dict(frame.attrs)
    if "task" in changed.columns:
        changed["task"] = [marked(str(name), str(name) in notes) for name in frame["task"]]
    changed.attrs["headings"] = {
        **frame.attrs.get("headings", {}),
        **{column: marked(heading(frame, column), True) for column, sets in columns.items() if sets},
    }
    listed = {name: notes[name] for name in sorted(touched)}
    changed.attrs["notes"] = [*frame.attrs.get("notes", []), *substitute_note(listed)]
    return changed


REHEARSAL = (
    "Rehearsal (troll rehearse): random models of a few thousand parameters, and coin flips for rewards. "
    "No number here means anything."
)


def mark_rehearsal(frame: pd.DataFrame, rehearsal: bool) -> pd.DataFrame:
    """Adds a note to a table of a rehearsal; other tables are unchanged."""
    if rehearsal:
        frame = frame.copy()
        frame.attrs["notes"] = [*frame.attrs.get("notes", []), REHEARSAL]
    return frame


def _sets(parts: tuple[str, str, str]) -> set[str]:
    """Returns the data sets of a column, from its name partitioned at the slash."""
    if not parts[1]:
        return set()
    return set(MATH_EVAL) if parts[0] == "math-eval" else {parts[0]}


def find_substitutes(directories: Sequence[Path]) -> dict[str, str]:
    """Returns the substitutes among the data sets that runs and base models were graded on: notes by name."""
    notes: dict[str, str] = {}
    for directory in directories:
        if (directory / "grades.json").exists():
            notes |= substitutes_of(read_json(directory / "grades.json"))
        if (directory / "suites/graded.json").exists():
            for grades in read_json(directory / "suites/graded.json").values():
                notes |= substitutes_of(grades)
    return dict(sorted(notes.items()))


def substitutes_of(grades: Mapping[str, Any]) -> dict[str, str]:
    """Returns the note on a file of grades' data by task; empty unless they are a substitute."""
    data = grades.get("data") or {}
    return {str(grades["task"]): str(data.get("note", ""))} if data.get("substitute") else {}
