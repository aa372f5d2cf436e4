import math

import pandas as pd
import paper_rows
import pytest
import synthetic
import yaml
from refusals import refused

from troll.analysis.data.tidy import Tidy
from troll.analysis.render.formats import to_latex, to_markdown
from troll.analysis.tables.published import SECTIONS, published_table
from troll.experiment.published import PUBLISHED, read_published


def as_model(collected, model, task, **changes):
    """The runs on chains under the names of another model and task."""
    frames = []
    for frame in (collected.runs, collected.items):
        chosen = frame[frame["task"] == "chains"].astype(dict.fromkeys(("model", "task", *changes), "str"))
        frames.append(chosen.assign(model=model, task=task, **changes))
    return Tidy(*frames)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two seeds: clip solves 30 of 60 problems, troll 45, troll with a narrow bound 15."""
    counts = {("clip", "gentle"): 30, ("troll", "gentle"): 45, ("troll-kl0.01", "gentle"): 15}
    return synthetic.read_solved(tmp_path_factory.mktemp("results") / "paper", counts, seeds=2, base=None)


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_published_is_lost_without_runs(section, runs, items):
    table = published_table(section, runs, items)
    assert set(table["status"]) == {"not run"}
    text = to_markdown(table)
    assert text.count("| not run |") == len(table)
    assert f"{len(table)} of {len(table)} rows have not been run; the runs here are of tiny." in text
    to_latex(table)


def test_every_number_of_the_sources_is_in_a_table(small):
    shown = set()
    for section in SECTIONS:
        table = published_table(section, small.runs, small.items)
        shown |= set(table["published_baseline"].dropna()) | set(table["published_method"].dropna())
    numbers = yaml.safe_load(PUBLISHED.read_text())
    # The leaderboard names no model; one curve of the families is told at another step than its table.
    told = [row for row in numbers if row["source"] != "wizwand" and "step550" not in row["metric"]]
    assert {row["value"] for row in told} <= shown
    families = published_table("families", small.runs, small.items)
    assert len(families) == 11 and families["published_gain"].max() == pytest.approx(0.759)


def test_ours_stands_beside_the_published(small):
    named = as_model(small, "Llama-3.1-8B", "gsm8k")
    table = published_table("families", named.runs, named.items)
    row = table[table["status"] == "run"].iloc[0]
    assert (row["model"], row["data"], row["seeds"]) == ("Llama3.1-8B", "GSM8K", 2), (
        "aliases of the hub's name"
    )
    assert (row["published_method"], row["method"]) == (0.759, pytest.approx(0.75))
    assert row["method_off"] == pytest.approx(0.75 - 0.759) and row["baseline_off"] == pytest.approx(0.5)
    assert row["gain"] == pytest.approx(0.25), "and both seeds gain the same"
    assert row["gain_low"] == row["gain_high"] == pytest.approx(0.25)
    line = next(line for line in to_markdown(table).splitlines() if line.startswith("| Llama3.1-8B |"))
    assert "| 75.9 | – | – | 75.0 ± 0.0 | −0.9 | +75.9 | – | +25.0 [" in line, "they ended before step 555"


def test_parts_of_dapo_have_measures_of_their_own(small):
    named = as_model(small, "Qwen3-8B", "dapo")
    table = published_table("estimators", named.runs, named.items)
    grpo = table[table["estimator"] == "GRPO"].set_index("data")
    success = named.runs[(named.runs["metric"] == "success") & (named.runs["trust_region"] == "troll")]
    last = success[success["step"] == success["step"].max()]["value"].mean()
    assert grpo.loc["DAPO Train", "method"] == pytest.approx(last), "training success"
    assert grpo.loc["DAPO Eval", "method"] == pytest.approx(0.75), "held-out success"
    assert grpo.loc["MATH Eval", "status"] == "not run", "no suite was measured"
    assert set(table.loc[table["estimator"] != "GRPO", "status"]) == {"not run"}


def test_ablations_are_against_the_default(small):
    named = as_model(small, "Qwen3-1.7B", "dapo")
    suite = named.runs[named.runs["metric"] == "pass@1"].assign(metric="math-eval/pass@1")
    runs = pd.concat([named.runs.astype({"metric": "str"}), suite])
    table = published_table("ablations", runs, named.items).set_index("method_name")
    assert list(table.index) == ["troll-k256", "troll-kl0.01", "troll-kl0.25", "troll-k16"]
    assert table.loc["troll-kl0.01", "published_gain"] == pytest.approx(0.001)
    assert table.loc["troll-kl0.01", "gain"] == pytest.approx(-0.5)
    assert table.loc["troll-k16", "status"] == "not run"


def test_cost_is_in_its_own_units(small):
    named = as_model(small, "Qwen3-4B", "dapo")
    table = published_table("cost", named.runs, named.items).set_index("quantity")
    assert table.loc["time per step (s)", "method"] == pytest.approx(0.4), "8 steps of 0.05 s a batch"
    assert table.loc["memory (GiB)", "status"] == "not run"
    assert math.isclose(table.loc["memory (GiB)", "published_gain"], 36.157 - 34.574)


def test_several_conditions_are_rows_of_their_own(collected):
    named = as_model(collected, "Qwen3-14B", "dapo")
    table = published_table("entropy", named.runs, named.items)
    assert list(table["condition"]) == ["gentle", "stale"]


def test_broken_files_are_named(tmp_path):
    with refused(tmp_path / "none.yaml"):
        read_published(tmp_path / "none.yaml")
    path = tmp_path / "numbers.yaml"
    path.write_text("- {model: x}")
    with refused(path, "list"):
        read_published(path)


def test_a_baseline_without_its_partner_is_shown(small):
    clip = Tidy(*(frame[frame["trust_region"] == "clip"] for frame in (small.runs, small.items)))
    collected = as_model(clip, "Qwen3-0.6B", "gsm8k")
    table = published_table("families", collected.runs, collected.items)
    (row,) = table[table["model"] == "Qwen3-0.6B"].to_dict("records")
    assert row["status"] == "run" and row["seeds"] == 2 and row["baseline"] == pytest.approx(0.5)
    assert math.isnan(row["method"]) and math.isnan(row["gain"])
    shown = next(line for line in to_markdown(table).splitlines() if line.startswith("| Qwen3-0.6B"))
    assert "50.0" in shown and "not run" not in shown
    assert (table["status"] == "not run").sum() == len(table) - 1


def test_ours_stand_beside_the_published_at_its_step_and_at_the_end():
    runs, items = paper_rows.made_up()
    table = published_table("sizes", runs, items).set_index(["model", "data"])
    row = table.loc[("Qwen3-4B", "MATH Eval")]
    step = float(row["read_at"].removeprefix("step "))
    assert row["steps"] == 1001 and step < 1001
    chosen = runs[(runs["model"] == "Qwen3-4B") & (runs["condition"] == "stale1x")]
    chosen = chosen[(chosen["trust_region"] == "troll") & (chosen["task"] == "dapo")]
    suites = chosen[chosen["metric"] == "validation_success/math-eval"]
    # Validations are ten batches apart, each in the line of the first update after it.
    near = suites[suites["rollout_batch"].between(0.9 * step + 1e-9, step)]
    assert len(near) > 2 and row["method_at"] == pytest.approx(near["value"].mean())
    assert row["method"] == 0.556 and row["method_off"] == 0 and row["method_at"] < row["method"]
    train = chosen[(chosen["metric"] == "success") & (chosen["source"] == "train")]
    near = train[train["rollout_batch"].between(0.9 * step, step - 1)]
    assert len(near) > 2
    assert table.loc[("Qwen3-4B", "DAPO Train"), "method_at"] == pytest.approx(near["value"].mean())
    heading = to_markdown(table.reset_index()).partition("\n")[0]
    for text in ("clip, published (%)", "clip, ours there (%)", "clip, ours at the end (%)"):
        assert f"| {text} |" in heading


def test_without_suites_in_training_mathematics_is_compared_at_the_end_only():
    table = published_table("sizes", *paper_rows.made_up(validated=False))
    suites = table[table["data"] == "MATH Eval"]
    assert set(suites["status"]) == {"run"} and suites["method_at"].isna().all()
    assert list(suites["method"]) == [0.613, 0.54, 0.556, 0.422, 0.277]
    assert table.loc[table["data"] == "DAPO Eval", "method_at"].isna().all(), (
        "its validation split is another"
    )


def test_runs_that_stopped_before_the_published_step_have_no_value_there():
    table = published_table("sizes", *paper_rows.made_up(batches=100))
    assert set(table["steps"]) == {100} and table["method_at"].isna().all()
    assert set(table["status"]) == {"run"}


def test_sections_whose_places_are_unknown_have_no_columns_for_them():
    table = published_table("cost", *paper_rows.made_up())
    assert not [name for name in table if name == "steps" or "_at" in name]
    assert table["method"].notna().all()


def test_values_read_at_an_hour_are_compared_at_it():
    runs, items = paper_rows.made_up()
    row = published_table("entropy", runs, items).iloc[0]
    assert row["read_at"] == "95 h" and math.isnan(row["baseline_at"]), "clip ended after 85.5 hours"
    slow = published_table("entropy", runs.assign(wall_s=2 * runs["wall_s"]), items).iloc[0]
    # At double time, TROLL's 1,001 batches take 190 hours.
    batches = [batch for batch in range(0, 1001, 5) if 0.9 * 95 < 2 * 95 * (batch + 1) / 1001 <= 95]
    entropies = [0.38 - 0.18 * (1 - math.exp(-batch / 60)) for batch in batches]
    assert slow["method_at"] == pytest.approx(sum(entropies) / len(entropies))
