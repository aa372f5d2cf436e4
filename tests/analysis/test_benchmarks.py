"""The table of public benchmarks."""

import math

import pytest

from troll.analysis.render.formats import write_table
from troll.analysis.tables.benchmarks import benchmark_table, read_answers
from troll.common.errors import UserError
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
    assert "| omni-math ‡ | oracle | 4 | 6 | 1 | 50.0 [15.0, 85.0] |" in text
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
    with pytest.raises(UserError, match=r"grades.json: not a file of grades, it lacks data, data_sha256"):
        read_answers("base", tmp_path / "grades.json", tmp_path / "samples.jsonl")
