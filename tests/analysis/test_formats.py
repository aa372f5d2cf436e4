import math
import re

import pandas as pd
import pytest
from refusals import refused

from troll.analysis.render.formats import (
    Style,
    percent,
    points,
    significant,
    to_latex,
    to_markdown,
    whole,
    write_table,
)


@pytest.fixture
def table():
    frame = pd.DataFrame(
        {
            "model": ["tiny"] * 3,
            "task": ["chains", "chains", "a_b & <c>"],
            "trust_region": ["clip", "troll", "troll"],
            "seeds": pd.array([5, 3, 0], dtype="Int64"),
            "planned": pd.array([5, 5, 5], dtype="Int64"),
            "status": ["run", "run", "not run"],
            "mixed": [False, True, False],
            "pass@1": [0.5, 0.6123, math.nan],
            "pass@1_sd": [0.01, 0.0234, math.nan],
            "difference": [math.nan, 0.1123, math.nan],
            "difference_low": [math.nan, -0.01, math.nan],
            "difference_high": [math.nan, 0.2, math.nan],
            "late_kl": [0.0123456, 1.5e-5, math.nan],
            "late_kl_sd": [0.0004, 2e-6, math.nan],
        }
    )
    frame.attrs["notes"] = ["50 % of _this_."]
    return frame


def test_markdown_merges_numbers_with_their_spread(table):
    assert to_markdown(table).splitlines() == [
        "| Task | Trust region | Seeds | pass@1 (%) | Δ pass@1 (points) | Late KL (nats) |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| chains | clip | 5 | 50.0 ± 1.0 | – | 0.0123 ± 0.0004 |",
        "| chains | troll | 3 of 5 † | 61.2 ± 2.3 | +11.2 [−1.0, +20.0] | 1.5e-5 ± 2.0e-6 |",
        "| a_b & <c> | troll | 0 of 5 | not run | – | – |",
        "",
        "50 % of _this_.",
    ]


def test_a_cell_of_several_lines_stays_in_its_row():
    frame = pd.DataFrame({"task": ["mbpp"], "answer": ["def f(x):\n    return x | 1\n"]})
    assert to_markdown(frame).splitlines()[2] == "| mbpp | def f(x): return x \\| 1 |"


def test_the_model_is_shown_when_there_are_several(table):
    table["model"] = ["tiny", "small", "small"]
    assert to_markdown(table).startswith("| Model | Task |")


def test_the_rule_is_shown_where_a_method_has_another_name(table):
    table["rule"] = table["trust_region"]
    assert "| rule |" not in to_markdown(table)
    table["trust_region"] = ["clip", "troll", "troll-narrow"]
    assert "| rule |" in to_markdown(table)


def test_latex_is_booktabs_and_escaped(table):
    text = to_latex(table)
    assert text.startswith("\\begin{tabular}{llrrrr}\n\\toprule\n")
    assert r"a\_b \& $<$c$>$ & troll & 0 of 5 & not run & -- & -- \\" in text
    assert r"+11.2 [$-$1.0, +20.0]" in text and r"61.2 $\pm$ 2.3" in text
    assert text.count(r"\midrule") == 2, "below the head and between tasks"
    assert r"50 \% of \_this\_." in text


def test_empty_tables_say_so():
    frame = pd.DataFrame()
    assert to_markdown(frame) == "No runs.\n" and "no runs" in to_latex(frame)
    frame.attrs["notes"] = ["No variants of troll were run."]
    assert to_markdown(frame) == "No variants of troll were run.\n"


def test_two_files_csv_with_all_digits(tmp_path, table):
    paths = write_table(table, tmp_path / "tables/main.v1")
    assert [path.name for path in paths] == ["main.v1.csv", "main.v1.md"]
    back = pd.read_csv(paths[0])
    assert back["late_kl"][0] == 0.0123456 and list(back) == list(table)
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_table(table, tmp_path / "tables/main.v1")] == first


def test_latex_is_written_on_demand(tmp_path, table):
    (path,) = write_table(table, tmp_path / "main", ["latex"])
    assert path == tmp_path / "main.tex" and path.read_text() == to_latex(table)
    with refused("'tex'", "csv, markdown, latex"):
        write_table(table, tmp_path / "other", ["csv", "tex"])
    assert not list(tmp_path.glob("other*"))


def test_number_formats():
    assert [percent(x) for x in (0.1234, 1.0, -0.05)] == ["12.3", "100.0", "−5.0"]
    assert [points(x) for x in (0.1, -0.1, 0.0, -0.0001)] == ["+10.0", "−10.0", "0.0", "0.0"]
    assert [points(x, 0) for x in (0.1, -0.004, 0.004, -0.1)] == ["+10", "0", "0", "−10"]
    assert [percent(-0.0001), whole(-0.4), significant(-0.0)] == ["0.0", "0", "0"], "zero has no sign"
    shown = [significant(x) for x in (0, 0.123456, 12.3456, 1234.5, 0.001, 1.24e-7, -0.5, -1e-5)]
    assert shown == ["0", "0.123", "12.3", "1234", "0.00100", "1.2e-7", "−0.500", "−1.0e-5"]


def test_latex_escapes_every_special_character_and_nothing_else():
    special = r"\ & % # _ $ { } ~ ^ ± Δ − – † < >"
    frame = pd.DataFrame({"reading": [special, "plain 1.5e-7 [a]"]})
    text = to_latex(frame)
    assert (
        r"\textbackslash{} \& \% \# \_ \$ \{ \} \textasciitilde{} \textasciicircum{} "
        r"$\pm$ $\Delta$ $-$ -- $\dagger$ $<$ $>$ \\" in text
    )
    assert "plain 1.5e-7 [a]" in text
    body = text.replace(r"\textbackslash{}", "").replace("\\\\", "")
    assert not re.search(r"(?<!\\)[#_&%~^]", body.partition(r"\midrule")[2]), "nothing unescaped is left"
    assert text.isascii(), "compiles without an encoding package"


def test_latex_brackets_at_the_start_of_a_row_are_no_argument():
    frame = pd.DataFrame({"reading": ["[b]"]})
    assert "\\midrule\n{}[b]" in to_latex(frame)


def test_given_numbers_and_own_styles_show_in_rows_without_runs():
    frame = pd.DataFrame({"status": ["not run"], "there": [0.5], "ours": [math.nan], "other": [math.nan]})
    frame.attrs |= {"quoted": ["there"], "styles": {"there": Style("There (%)", percent)}}
    assert to_markdown(frame).splitlines()[0] == "| There (%) | ours | other |"
    assert to_markdown(frame).splitlines()[2] == "| 50.0 | not run | – |"
