import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from refusals import refused

from troll.analysis.claims.ledger import to_short_markdown
from troll.analysis.claims.verdicts import judge
from troll.analysis.report.front import front
from troll.analysis.report.readme import blocks, check, render, sentences, update
from troll.analysis.tables.aggregates import aggregate_table
from troll.analysis.tables.results import main_table

TEXT = """# Title
<!-- generated:results-table -->
old
<!-- /generated -->
tail <!-- generated:x -->
"""


@pytest.fixture(scope="module")
def main(runs, items):
    """The main table, made once for all tests here."""
    return main_table(runs, items)


def told(tmp_path, solved):
    """Sentences about runs in which the first so many of 60 problems pass, by method and condition."""
    collected = synthetic.read_solved(tmp_path / "testbed", solved)
    return sentences(main_table(collected.runs, collected.items), collected.items)


def test_words_follow_from_the_numbers(tmp_path):
    lines = told(
        tmp_path,
        {
            ("clip", "gentle"): (30, 31, 32, 30, 31),
            ("troll", "gentle"): (45, 46, 47, 45, 46),
            ("clip", "stale"): (5, 5, 5, 5, 5),
            ("troll", "stale"): (6, 5, 4, 5, 6),
        },
    )
    assert lines[0].endswith("(task × condition × estimator): higher in 1, no clear difference in 1.")
    assert lines[1].startswith("- **gentle**: +25.0 points [+25.0, +25.0]") and "base 33.3 %" in lines[1]
    assert "late KL to the old policy" in lines[2]
    assert "- Against the base model, clip under stale ends below it in 1 of 1 setting." in lines
    assert "- Against the base model, troll under stale ends below it in 1 of 1 setting." in lines
    assert not any("under gentle" in line or "cannot tell" in line for line in lines)


def test_a_worse_method_is_called_lower(tmp_path):
    lines = told(tmp_path, {("clip", "gentle"): (50,) * 5, ("troll", "gentle"): (30,) * 5})
    assert "lower in 1" in lines[0] and "higher" not in lines[0]


def test_few_seeds_are_said(tmp_path):
    lines = told(tmp_path, {("clip", "gentle"): (30, 40), ("troll", "gentle"): (45, 46)})
    assert "no clear difference in 1" in lines[0]
    assert lines[-1].startswith("- 2 seeds per setting: the intervals are wide.")


def test_missing_comparisons_are_said(tmp_path):
    lines = told(tmp_path, {("clip", "gentle"): (30,) * 5})
    assert lines == ["- No comparison of troll with clip has been run."]


def test_blocks_replace_what_is_between_the_markers():
    text = render(TEXT, {"results-table": "| a |\n"})
    assert text == (
        "# Title\n<!-- generated:results-table -->\n\n| a |\n\n<!-- /generated -->\n"
        "tail <!-- generated:x -->\n"
    )
    assert render(text, {"results-table": "| a |\n"}) == text


def test_check_shows_the_difference_and_update_removes_it(tmp_path, main, items):
    path = tmp_path / "README.md"
    path.write_text(TEXT)
    generated = blocks(main, items)
    difference = check(path, generated)
    assert "-old" in difference and "+| Task | Condition | Estimator |" in difference
    assert path.read_text() == TEXT, "checking does not write"
    assert update(path, generated) and not update(path, generated)
    assert check(path, generated) == ""
    path.write_text(path.read_text().replace("higher", "much higher"))
    assert "much higher" in check(path, generated)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a\n<!-- generated:tabel -->\n<!-- /generated -->", ("README.md:2", "tabel")),
        ("<!-- generated:t -->\n", ("README.md:1", "t")),
        ("<!-- generated:t -->\n<!-- generated:t -->\n", ("README.md:2", 1)),
        ("<!-- /generated -->\n", ("README.md:1",)),
    ],
)
def test_wrong_markers_are_named(text, facts):
    with refused(*facts):
        render(text, {"t": ""})


def test_missing_file_is_named(tmp_path):
    with refused("README.md"):
        check(tmp_path / "README.md", {})


def test_a_table_is_included_by_its_file_as_seen_from_the_page(tmp_path):
    page = tmp_path / "docs" / "findings.md"
    page.parent.mkdir()
    page.write_text("a\n<!-- generated:../results/x/board.md -->\nold\n<!-- /generated -->\n")
    with refused("x/board.md"):
        update(page, {})
    (tmp_path / "results/x").mkdir(parents=True)
    (tmp_path / "results/x/board.md").write_text("| new |\n")
    assert "+| new |" in check(page, {})
    assert update(page, {}) and "| new |" in page.read_text() and not update(page, {})


def late_kl(name, direction="lower", trust_region="troll"):
    return synthetic.claim(
        id=name, sentence=name, metric="late_kl", direction=direction, trust_region=trust_region
    )


def test_three_findings_are_taken_by_rule(main, runs, items):
    claims = [late_kl("lost", "higher"), *(late_kl(f"won{n}") for n in range(3))]
    claims.append(late_kl("absent", trust_region="gspo"))
    judged = judge(claims, runs, items)
    generated = blocks(main, items, judged=judged)
    assert generated["verdicts"] == to_short_markdown(judged)
    lines = generated["findings"].splitlines()
    # What speaks against a claim is told in its turn.
    assert [line.split(":")[0] for line in lines[:4]] == ["- won0", "- lost", "- won1", "- won2"]
    assert "**the contrary holds: below by " in lines[1] and "**supported everywhere**" in lines[0]
    assert "nats on average" in lines[0] and lines[0].endswith("settings).")
    assert lines[5] == (
        "Of 4 claims with runs: 3 supported everywhere, 1 where the contrary holds. "
        "With 95 % intervals, up to 0.2 of them are expected to be wrong by chance, more where seeds "
        "collapse. "
        "1 further claim has no runs yet."
    )
    nothing = blocks(main, items, judged=judge(claims[-1:], runs, items))["findings"]
    assert nothing == "None of 1 claim has runs.\n"


def test_the_first_table_has_what_was_run_and_says_where_the_method_itself_falls(main, runs, items, tmp_path):
    claims = [late_kl("testbed-stale-better"), late_kl("smollm2-stale-better", "higher"), late_kl("another")]
    judged = judge(claims, runs, items)
    lines = front(judged, tmp_path, runs).splitlines()
    stale, language = lines[2:4]
    assert "stale rollouts" in stale and "| **below** in every setting |" in stale
    assert "nats on average over 8 settings" in stale and "`make results SEEDS=0,1,2,3,4`" in stale
    assert "135M" in language and "**the contrary holds: below by " in language
    assert lines[4] == "" and lines[5].startswith("Of 3 claims with runs: 2 supported everywhere, 1 where")
    fallen = replace(judged[1], below_base=tuple(True for _ in judged[1].decision.settings))
    assert ", but its mean is below the base model's in " in front([fallen], tmp_path, runs)
    (tmp_path / "gpu").mkdir()
    goal = {"goal": "time of TROLL's step over clip's, K = 64", "value": 0.987, "limit": 1.02}
    (tmp_path / "gpu/gpu_check.json").write_text(json.dumps({"goals": [goal]}))
    (step,) = (line for line in front([], tmp_path, runs).splitlines() if "optimiser step" in line)
    assert "| 0.987 times clip's | **faster** by 1.3 % |" in step
    assert "None of 0 claims has runs." in front([], tmp_path, runs)
    ms = {"ms_low": 221.4, "ms_high": 266.3}
    rows = [{"name": "step, clip", "backend": "auto"} | ms, {"name": "step, clip", "backend": "torch"} | ms]
    rows[1]["ms_high"] = 338.0
    rows.append({"name": "step, TROLL, K = 64", "backend": "auto", "ms_low": 220.6, "ms_high": 282.4})
    (tmp_path / "gpu/gpu_check.json").write_text(json.dumps({"goals": [goal], "rows": rows}))
    assert "by 1.3 %; single steps of either take 221 to 282 ms |" in front([], tmp_path, runs)


def test_the_duels_row_hides_neither_its_margin_nor_other_rules_nor_edges_of_what_was_tried(runs, tmp_path):
    released = Path(__file__).parents[2] / "results/released/duel"
    shutil.copytree(released, tmp_path / "duel")
    (row,) = (line for line in front([], tmp_path, runs).splitlines() if "Both tuned alike" in line)
    contrasts = pd.read_csv(released / "contrasts.csv").set_index(["method", "baseline", "analysis"])
    first = contrasts[contrasts["endpoint"] == "test pass@1"]["difference"]
    for key in (("troll", "clip", "mean of the tasks"), ("troll", "gspo-clip", "mean of the tasks")):
        assert f"{100 * first[key]:+.1f} [" in row
    assert f"locks {100 * first['troll', 'gspo-clip', 'locks alone']:.1f}".replace("-", "−") in row
    assert "up to 3 points equal" in row and "against gspo-clip **not decided**" in row
    assert "; gspo-clip and clip did best at an edge of what was tried |" in row
    (tmp_path / "duel/board.md").unlink()
    assert "at an edge" not in front([], tmp_path, runs)


def test_the_first_table_says_where_base_clip_and_troll_ended_and_at_which_rate(runs, items, tmp_path):
    claim = synthetic.claim(id="testbed-stale-better", where={"task": ["chains"]})
    judged = judge([claim], runs, items)
    used = [one.coordinates for one in judged[0].decision.settings]
    tested = runs[(runs["source"] == "test") & (runs["metric"] == "pass@1") & (runs["task"] == "chains")]
    recorded = synthetic.record(runs, runs["trust_region"] != "base", **{"training.learning_rate": 3e-4})
    row = front(judged, tmp_path, recorded).splitlines()[2]
    ends = {}
    for name in ("base", "clip", "troll"):
        of_rule = tested[tested["trust_region"] == name]
        if name != "base":
            places = {(one["estimator"], one["condition"]) for one in used}
            of_rule = of_rule[
                [key in places for key in zip(of_rule["estimator"], of_rule["condition"], strict=True)]
            ]
        ends[name] = f"{100 * of_rule['value'].mean():.0f}"
    assert f"| chains: base {ends['base']}, clip {ends['clip']}, TROLL {ends['troll']} |" in row
    alone = tested[(tested["trust_region"] == "troll") & (tested["seed"] == 0)].index
    lonely = front(judged, tmp_path, recorded.drop(alone)).splitlines()[2]
    kept = tested[(tested["seed"] != 0) & (tested["trust_region"] == "clip")]
    kept = kept[[key in places for key in zip(kept["estimator"], kept["condition"], strict=True)]]
    assert f"clip {100 * kept['value'].mean():.0f}, TROLL" in lonely, "of the seeds that both have"
    assert ", learning rate 3e-4" in row and f"{len(used)} settings of 1 task |" in row


@pytest.mark.parametrize(
    ("low", "high", "within", "outcome", "answer"),
    [
        (0.01, 0.05, False, "succeeded", "**above**"),
        (-0.05, -0.01, False, "failed", "**below**"),
        (-0.005, 0.009, True, "failed", "**level**"),
        (-0.005, 0.03, False, "failed", "**not decided**"),
        (0.01, 0.05, False, "exploratory", "**above** (exploratory)"),
    ],
)
def test_the_fixed_sequence_stands_in_the_first_table_whichever_way_it_falls(
    runs, tmp_path, low, high, within, outcome, answer
):
    row = {"test": 1, "endpoint": "auc", "condition": "stale", "tasks": "both", "seeds": 12, "planned": 12}
    row |= {"difference": (low + high) / 2, "difference_low": low, "difference_high": high}
    (tmp_path / "smollm2-rates").mkdir()
    pd.DataFrame([row | {"within": within, "outcome": outcome}]).to_csv(
        tmp_path / "smollm2-rates/sequence.csv"
    )
    cut = runs[runs["metric"] == "pass@1"].assign(
        metric="summary/mean/clip_fraction", value=0.08, source="summary"
    )
    others = runs[runs["metric"] != "summary/mean/clip_fraction"]
    both = pd.concat([others, cut]).assign(experiment="smollm2-rates")
    (line,) = (line for line in front([], tmp_path, both).splitlines() if "135M" in line)
    assert f"| {answer} |" in line and "clip cuts 8.0 % of tokens" in line and "; 12 seeds |" in line
    tested = runs[(runs["source"] == "test") & (runs["metric"] == "pass@1") & (runs["condition"] == "stale")]
    clip = tested[(tested["trust_region"] == "clip") & (tested["task"] == "chains")]["value"].mean()
    assert f"clip {100 * clip:.0f}, TROLL" in line and "chains: base " in line
    lost = both["value"].where(~both["trust_region"].eq("troll") | both["task"].ne("chains"), 0.0)
    (low,) = (line for line in front([], tmp_path, both.assign(value=lost)).splitlines() if "135M" in line)
    assert f"| {answer}, but its mean is below the base model's on chains |" in low
    alone = (both["trust_region"] == "troll") & (both["seed"] == 0)
    (lonely,) = (line for line in front([], tmp_path, both[~alone]).splitlines() if "135M" in line)
    kept = tested[(tested["trust_region"] == "clip") & (tested["task"] == "chains") & (tested["seed"] != 0)]
    assert f"clip {100 * kept['value'].mean():.0f}, TROLL" in lonely, "of the seeds that both have"


def test_settings_of_a_condition_are_told_together(main, items):
    lines = [line for line in sentences(main, items) if "together" in line]
    table = aggregate_table(items).set_index("condition")
    assert len(lines) == 2
    for line, condition in zip(lines, ("gentle", "stale"), strict=True):
        assert f"All 4 settings of **{condition}**" in line
        assert f"chance of {100 * table.loc[condition, 'improvement']:.1f} [" in line
