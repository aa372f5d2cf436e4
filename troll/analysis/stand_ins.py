"""The mark of data sets that stand in for those that the paper used.

A mirror of the data may hold another version of a set (`troll.tasks.datasets.catalogue.DataSet.stand_in`);
every table that such a set touches says so.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

MARK = "‡"


def marked(name: str, stand_in: bool) -> str:
    """The name of a data set, with the mark if it is a stand-in."""
    return f"{name} {MARK}" if stand_in else name


def stand_in_note(notes: Mapping[str, str]) -> list[str]:
    """The sentence below a table, or none.

    Args:
        notes: what there is in place of the paper's set, by name of the data set.
    """
    if not notes:
        return []
    told = "; ".join(f"{name}: {note}" if note else name for name, note in sorted(notes.items()))
    return [f"{MARK} stands in for the data set that the paper used ({told})."]


def mark_stand_ins(frame: pd.DataFrame, notes: Mapping[str, str], column: str = "task") -> pd.DataFrame:
    """A table whose stand-ins are marked, with a note that says what they are.

    Args:
        frame: any table; one without the column, or without such data sets, is returned as it is.
        notes: what there is in place of the paper's set, by name of the data set.
        column: the column with the names.
    """
    if column not in frame.columns:
        return frame
    touched = {name: notes[name] for name in sorted({str(name) for name in frame[column]} & set(notes))}
    if not touched:
        return frame
    changed = frame.copy()
    changed.attrs = dict(frame.attrs)
    changed[column] = [marked(str(name), str(name) in touched) for name in frame[column]]
    changed.attrs["notes"] = [*frame.attrs.get("notes", []), *stand_in_note(touched)]
    return changed


def stand_ins_of(grades: Mapping[str, Any]) -> dict[str, str]:
    """The stand-in among the data of a file of grades: its note by the name of the task, or nothing."""
    data = grades.get("data") or {}
    return {str(grades["task"]): str(data.get("note", ""))} if data.get("stand_in") else {}
