"""The table of public benchmarks."""

import math

import pytest
from refusals import refused

from troll.analysis.render.formats import write_table
from troll.analysis.report.document import foreign
from troll.analysis.tables.benchmarks import benchmark_table, read_answers
from troll.common.files import write_json, write_jsonl


def grades(task="gsm8k", passed=((True,), (True,), (False,), (False,)), **extra):
    found = [sum(flags) / len(flags) for flags in passed]
    return {
        "task": task,
        "metrics": {"pass@1": sum(found) / len(found)},
        "problems": {str(k): {"passed": list(flags)} for k, flags in enumerate(passed)},
        "missing": ["8", "9"],
        "data": {"source": "mirror", "substitute": False},
        "data_sha256": "0123456789abcdef",
        **extra,
    }


def test_a_row_counts_problems_and_gives_wilsons_interval():
    (row,) = benchmark_table([("oracle", grades(), 0)]).to_dict("records")
    assert (row["problems"], row["available"], row["samples"], row["pass@1"]) == (4, 6, 1, 0.5)
    # Wilson: centre 0.5 by symmetry, half width z / sqrt(n + z^2) / 2
    z = 1.959964
    assert row["pass@1_high"] - row["pass@1_low"] == pytest.approx(z / math.sqrt(4 + z**2), rel=1e-5)
    assert row["sha256"] == "0123456789ab" and math.isnan(row["base/pass@1"])


def scored(tmp_path, official, passed, tasks=("gsm8k",), metric="exact_match,flexible-extract", **extra):
    """A row of the table, of answers with verdicts of lm-eval and of our judge."""
    found = grades(passed=passed, **extra)
    for row, flags in zip(found["problems"].values(), official, strict=True):
        row["official"] = list(flags)
    found["official"] = {"scorer": "lm-eval", "tasks": list(tasks), "metric": metric}
    counted = [sum(flags) / len(flags) for flags in official]
    pairs = [pair for a, b in zip(official, passed, strict=True) for pair in zip(a, b, strict=True)]
    found["metrics"] |= {"official/pass@1": sum(counted) / len(counted)}
    found["metrics"]["disagreements"] = sum(theirs != ours for theirs, ours in pairs)
    write_json(tmp_path / "gsm8k/my model/grades.json", found)
    write_jsonl(tmp_path / "gsm8k/my model/samples.jsonl", [{"task_id": "0"}])
    write_jsonl(tmp_path / "gsm8k/my model/disagreements.jsonl", [])
    files = (tmp_path / "gsm8k/my model" / name for name in ("grades.json", "samples.jsonl"))
    return read_answers("base", *files, directory=tmp_path)


def test_the_official_figure_stands_first_ours_beside_it_with_a_link_to_what_they_differ_on(tmp_path):
    official, passed = ((True,), (True,), (True,), (False,)), ((True,), (False,), (False,), (False,))
    frame = benchmark_table([scored(tmp_path, official, passed)])
    (row,) = frame.to_dict("records")
    assert (row["official"], row["pass@1"], row["disagreements"]) == (0.75, 0.25, 2)
    # Wilson's interval of 3 of 4 is that of 1 of 4 seen from the other end
    assert row["official_low"] == pytest.approx(1 - row["pass@1_high"])
    write_table(frame, tmp_path / "benchmarks")
    text = (tmp_path / "benchmarks.md").read_text()
    assert "| lm-eval: gsm8k (flexible-extract) | 75.0 [30.1, 95.4] | – | 25.0 [4.6, 69.9] | – | 2 |" in text
    assert "| [list](gsm8k/my%20model/disagreements.jsonl) |" in text
    assert "| [list](public/gsm8k/my%20model/disagreements.jsonl) |" in foreign(text, "public")


def test_where_both_agree_there_is_no_list_and_several_tasks_have_one_name(tmp_path):
    flags = ((True,), (True,), (False,), (False,))
    tasks = ("minerva_math_algebra", "minerva_math_counting_and_prob")
    frame = benchmark_table([scored(tmp_path, flags, flags, tasks, "math_verify,none")])
    (row,) = frame.to_dict("records")
    assert (row["disagreements"], row["list"]) == (0, "")
    assert row["scorer"] == "lm-eval: minerva_math_* (math_verify)"


def test_several_samples_are_no_problems_of_their_own():
    passed = ((True, True, False, False), (True, True, True, True), (False,) * 4)
    (row,) = benchmark_table([("base", grades(passed=passed), 6)]).to_dict("records")
    assert (row["samples"], row["pass@1"], row["cut"]) == (4, 0.5, 0.5)
    assert row["pass@1_low"] == 0.0 and row["pass@1_high"] == 1.0
    (row,) = benchmark_table([("base", grades(passed=((True, True),) * 3), 0)]).to_dict("records")
    assert math.isnan(row["pass@1_low"])


def test_the_table_names_substitutes_and_what_was_left_out(tmp_path):
    data = {"source": "mirror", "substitute": True, "note": "a part"}
    rows = [("oracle", grades("omni-math", data=data), 0), ("oracle", grades(), 0)]
    skipped = {"humaneval+": "no bubblewrap", "mbpp+": "no bubblewrap"}
    write_table(benchmark_table(rows, skipped), tmp_path / "benchmarks")
    text = (tmp_path / "benchmarks.md").read_text()
    assert "| omni-math ‡ | oracle | 4 | 6 | 1 |  | – | – | 50.0 [15.0, 85.0] |" in text
    assert "| gsm8k | oracle |" in text
    assert "‡ stands in for the data set that the paper used (omni-math: a part)." in text
    assert "Not run: humaneval+, mbpp+; no bubblewrap." in text
    assert (tmp_path / "benchmarks.csv").exists()


def test_without_data_one_line_says_so(tmp_path):
    reason = "TROLL_DATA_MIRROR names no copy of the public data"
    write_table(benchmark_table([], {"gsm8k": reason}), tmp_path / "benchmarks")
    assert (tmp_path / "benchmarks.md").read_text().strip() == f"Not run: gsm8k; {reason}."


def test_cut_prompts_are_counted_and_other_files_refused(tmp_path):
    write_json(tmp_path / "grades.json", grades())
    write_jsonl(tmp_path / "samples.jsonl", [{"task_id": "0"}, {"task_id": "1", "cut": True}])
    label, found, cut = read_answers("base", tmp_path / "grades.json", tmp_path / "samples.jsonl")
    assert (label, found["task"], cut) == ("base", "gsm8k", 1)
    write_json(tmp_path / "grades.json", {"task": "gsm8k"})
    with refused(tmp_path / "grades.json", "data, data_sha256"):
        read_answers("base", tmp_path / "grades.json", tmp_path / "samples.jsonl")
