"""Tables that a substitute touches say so."""

import pandas as pd

from troll.analysis.data.results import Results, write_plan
from troll.analysis.render.formats import to_latex, to_markdown
from troll.analysis.render.substitutes import find_substitutes, mark_substitutes, substitutes_of
from troll.analysis.report.make import table
from troll.common.files import read_json, write_json

NOTES = {"dapo": "another split", "omni-math": "a part"}


def test_only_touched_rows_are_marked_and_explained_once():
    frame = pd.DataFrame({"task": ["dapo", "gsm8k", "dapo"], "value": [1.0, 2.0, 3.0]})
    frame.attrs["notes"] = ["First."]
    marked = mark_substitutes(frame, NOTES)
    assert marked["task"].tolist() == ["dapo ‡", "gsm8k", "dapo ‡"]
    assert marked.attrs["notes"] == [
        "First.",
        "‡ stands in for the data set that the paper used (dapo: another split).",
    ]
    assert frame["task"].tolist() == ["dapo", "gsm8k", "dapo"] and frame.attrs["notes"] == ["First."]
    assert "| dapo ‡ | 1.00 |" in to_markdown(marked)
    assert r"dapo $\ddagger$" in to_latex(marked)


def test_a_table_without_substitutes_stays_the_same_object():
    frame = pd.DataFrame({"task": pd.Categorical(["gsm8k"]), "value": [1.0]})
    assert mark_substitutes(frame, NOTES) is frame
    assert mark_substitutes(frame.drop(columns="task"), NOTES).columns.tolist() == ["value"]


def test_grades_say_what_stands_in():
    data = {"source": "mirror", "substitute": True, "note": "another split"}
    assert substitutes_of({"task": "dapo", "data": data}) == {"dapo": "another split"}
    assert substitutes_of({"task": "dapo", "data": data | {"substitute": False}}) == {}
    assert substitutes_of({"task": "chains"}) == {}


def test_columns_of_further_data_sets_are_marked_too():
    frame = pd.DataFrame(
        {"task": ["gsm8k"], "dapo/pass@1": [0.5], "math-eval/pass@1": [0.25], "pass@1": [1.0]}
    )
    marked = mark_substitutes(frame, NOTES)
    assert "| Task | dapo/pass@1 ‡ | math-eval/pass@1 ‡ | pass@1 (%) |" in to_markdown(marked)
    assert marked.attrs["notes"][0].endswith("(dapo: another split; omni-math: a part).")


def test_they_go_from_the_grades_into_the_tables_through_the_plan(runs, items, tmp_path):
    data = {"source": "file", "substitute": True}
    write_json(tmp_path / "run/grades.json", {"task": "chains", "data": data | {"note": "made up"}})
    suites = {"omni-math": {"task": "omni-math", "data": data | {"note": "a part"}}}
    write_json(tmp_path / "run/suites/graded.json", suites)
    found = find_substitutes([tmp_path / "run", tmp_path / "no such"])
    assert found == {"chains": "made up", "omni-math": "a part"}
    write_plan(tmp_path, [], {}, found)
    given = Results(runs, items, **read_json(tmp_path / "plan.json"))
    for name in ("main", "comparison", "test", "speed", "stability"):
        frame = table(name, given)
        tasks = set(frame["task"])
        assert "chains ‡" in tasks and "chains" not in tasks, name
        assert "chains: made up" in frame.attrs["notes"][-1], name
