"""Tables that a stand-in touches say so."""

import pandas as pd

from troll.analysis.formats import to_latex, to_markdown
from troll.analysis.stand_ins import mark_stand_ins, stand_ins_of

NOTES = {"dapo": "another split", "omni-math": "a part"}


def test_only_touched_rows_are_marked_and_explained_once():
    frame = pd.DataFrame({"task": ["dapo", "gsm8k", "dapo"], "value": [1.0, 2.0, 3.0]})
    frame.attrs["notes"] = ["First."]
    marked = mark_stand_ins(frame, NOTES)
    assert marked["task"].tolist() == ["dapo ‡", "gsm8k", "dapo ‡"]
    assert marked.attrs["notes"] == [
        "First.",
        "‡ stands in for the data set that the paper used (dapo: another split).",
    ]
    assert frame["task"].tolist() == ["dapo", "gsm8k", "dapo"] and frame.attrs["notes"] == ["First."]
    assert "| dapo ‡ | 1.00 |" in to_markdown(marked)
    assert r"dapo $\ddagger$" in to_latex(marked)


def test_a_table_without_stand_ins_stays_the_same_object():
    frame = pd.DataFrame({"task": pd.Categorical(["gsm8k"]), "value": [1.0]})
    assert mark_stand_ins(frame, NOTES) is frame
    assert mark_stand_ins(frame.drop(columns="task"), NOTES).columns.tolist() == ["value"]


def test_grades_say_what_stands_in():
    data = {"source": "mirror", "stand_in": True, "note": "another split"}
    assert stand_ins_of({"task": "dapo", "data": data}) == {"dapo": "another split"}
    assert stand_ins_of({"task": "dapo", "data": data | {"stand_in": False}}) == {}
    assert stand_ins_of({"task": "chains"}) == {}
