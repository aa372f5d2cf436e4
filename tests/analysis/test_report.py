import itertools
import re
from pathlib import Path

import docutils.core
import pandas as pd
import pytest
import yaml
from refusals import refused
from test_page import Headings

from troll.analysis.captions import captions
from troll.analysis.data.results import Plan, Results, write_plan
from troll.analysis.render.formats import folded, to_latex, to_markdown
from troll.analysis.render.html import sort_key, write_page
from troll.analysis.render.substitutes import find_substitutes, mark_substitutes, substitutes_of
from troll.analysis.report.make import table
from troll.common.files import read_json, write_json

ROOT = Path(__file__).parents[2]


def test_page_is_whole_and_self_contained(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    frame = pd.DataFrame({"task": ["<b>"], "pass@1": [0.5]})
    markdown = [
        "# A & B",
        "## Verdicts",
        "- **gentle**: 1 < 2",
        "## Table",
        "First ``x``.\n\nSecond.",
        to_markdown(frame),
        folded("More & <more>", "![Curves](a.png)"),
    ]
    write_page(tmp_path / "page.html", "\n\n".join(markdown), tmp_path)
    text = (tmp_path / "page.html").read_text()
    parser = Headings()
    parser.feed(text)
    assert parser.open == []
    assert "<li><strong>gentle</strong>: 1 &lt; 2</li>" in text
    assert "<p>First <code>x</code>.</p>\n<p>Second.</p>" in text
    assert '<td class="text">&lt;b&gt;</td>\n<td class="number" data-sort="50.0">50.0</td>' in text
    assert "<summary>More &amp; &lt;more&gt;</summary>" in text and "<b>" not in text
    assert 'src="data:image/png;base64,iVBORw=="' in text
    assert "<title>A &amp; B</title>" in text
    assert '<a href="#part-2">Table</a>' in text and '<h2 id="part-2">Table</h2>' in text


def test_missing_files_are_named(tmp_path):
    with refused("x.png"):
        write_page(tmp_path / "page.html", "# A\n\n![Curves](x.png)", tmp_path)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("text", captions().values(), ids=captions())
def test_captions_are_valid_and_plain(text):
    settings = {"halt_level": 2, "report_level": 2}
    docutils.core.publish_string(text, writer="html", settings_overrides=settings)
    assert not re.search(r"[{}]", text), "no template language: the page shows the text as it is"


def test_published_numbers_are_complete_and_within_their_ranges():
    rows = yaml.safe_load((ROOT / "troll/experiment/published/troll_iclr2026.yaml").read_text())
    assert len(rows) > 80
    for row in rows:
        assert {"model", "dataset", "estimator", "method", "metric", "value", "source"} <= set(row)
        if row["metric"].startswith(("final_success", "success_rate_fig")):
            assert 0 <= row["value"] <= 1


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
    write_plan(tmp_path, Plan(expected=[], substitutes=found))
    given = Results(runs, items, **read_json(tmp_path / "plan.json"))
    for name in ("main", "comparison", "test", "speed", "stability"):
        frame = table(name, given)
        tasks = set(frame["task"])
        assert "chains ‡" in tasks and "chains" not in tasks, name
        assert "chains: made up" in frame.attrs["notes"][-1], name


@pytest.mark.parametrize(
    ("cell", "key"),
    [
        ("82.4 ± 1.9", "82.4"),
        ("−0.4 [−1.6, +0.8]", "-0.4"),
        ("+17.4 [+7.3, +27.6]", "+17.4"),
        ("6.8e-5 ± 2.8e-5", "6.8e-5"),
        ("<0.001", "0.001"),
        ("1,024", "1024"),
        ("–", ""),
        ("", ""),
        ("not run", ""),
    ],
)
def test_columns_of_numbers_are_sorted_by_the_first_number(cell, key):
    assert sort_key(cell) == key
    assert not key or float(key) is not None


def luminance(colour):
    """Relative luminance of sRGB, after WCAG 2.2."""
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    values = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_stands_out_from_its_ground(scheme):
    style = (ROOT / "troll/analysis/render/assets/page.css").read_text().split("{")
    blocks = [block.partition("}")[0] for block in style if "--ground:" in block]
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", blocks[scheme]))
    for name, ground in itertools.product(("text", "soft", "link"), ("ground", "stripe")):
        light, dark = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)
