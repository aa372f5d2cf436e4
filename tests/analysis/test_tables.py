import math

import numpy as np
import pandas as pd
import pytest
import synthetic
from refusals import refused
from synthetic import row_where

from troll.analysis.data.results import Results
from troll.analysis.data.runs import checked, read_directories
from troll.analysis.data.summaries import cells, curve, method_order, per_run, variants
from troll.analysis.data.tidy import Tidy
from troll.analysis.registry import entries
from troll.analysis.render.formats import notes, to_markdown
from troll.analysis.report.make import make
from troll.analysis.tables.behaviour import training_cost_table
from troll.analysis.tables.results import (
    ablation_table,
    comparison_table,
    constraint_check_table,
    main_table,
    test_table,
)

# pytest would take the imported function for a test.
status_table, test_table = test_table, None


@pytest.fixture
def known(tmp_path):
    """Chains, three seeds: troll solves 10 problems more than clip in gentle, 3 fewer in stale."""
    counts = {
        ("clip", "gentle"): (30, 31, 32),
        ("troll", "gentle"): (40, 41, 42),
        ("clip", "stale"): (9, 9, 9),
        ("troll", "stale"): (6, 6, 6),
    }
    return synthetic.read_solved(tmp_path / "testbed", counts, batches=4)


def test_known_numbers_give_the_known_table(known):
    table = main_table(known.runs, known.items)
    assert list(table["trust_region"]) == ["base", "clip", "troll", "clip", "troll"]
    assert list(table["status"]) == ["run"] * 5
    troll = row_where(table, trust_region="troll", condition="gentle")
    assert troll["seeds"] == 3
    assert troll["pass@1"] == pytest.approx(41 / 60) and troll["pass@8"] == pytest.approx(41 / 60)
    assert troll["pass@1_sd"] == pytest.approx(1 / 60)
    assert troll["difference"] == pytest.approx(10 / 60)
    # Every seed gains the same, so the interval over seeds has no width.
    assert troll["difference_low"] == troll["difference_high"] == pytest.approx(10 / 60)
    assert troll["reading"] == "higher"
    assert row_where(table, trust_region="troll", condition="stale")["reading"] == "lower"
    clip = row_where(table, trust_region="clip", condition="gentle")
    assert math.isnan(clip["difference"]) and clip["reading"] == ""
    base = row_where(table, trust_region="base")
    assert base["pass@1"] == pytest.approx(20 / 60) and pd.isna(base["seeds"])


def test_training_columns_are_late_means_over_seeds(known, tmp_path):
    table = main_table(known.runs, known.items)
    clip = row_where(table, trust_region="clip", condition="gentle")
    logs = [
        pd.read_json(path, lines=True)
        for path in sorted(tmp_path.glob("testbed/runs/*/*/clip/*/gentle/*/metrics.jsonl"))
    ]
    assert len(logs) == 3

    def by_hand(metric, first_step):
        return [float(log.loc[log["step"] >= first_step, metric].mean()) for log in logs]

    # 4 batches of 8 steps: the last third begins at step 22, the last tenth at step 29; success is at 25.
    assert clip["late_kl"] == pytest.approx(np.mean(by_hand("kl_to_old", 22)))
    assert clip["late_kl_sd"] == pytest.approx(np.std(by_hand("kl_to_old", 22), ddof=1))
    assert clip["entropy"] == pytest.approx(np.mean(by_hand("entropy", 29)))
    assert clip["final"] == pytest.approx(np.mean(by_hand("success", 25)))
    assert clip["peak"] == pytest.approx(np.mean([log["success"].max() for log in logs]))


def test_pairing_uses_the_seeds_that_both_have(tmp_path):
    root = tmp_path / "testbed"
    counts = {("clip", 0): 10, ("clip", 1): 50, ("troll", 1): 55, ("troll", 2): 60}
    dirs = [
        synthetic.write_run(
            root, "chains", method, "grpo", "gentle", seed, batches=1, table=synthetic.solved(solved)
        )
        for (method, seed), solved in counts.items()
    ]
    collected = read_directories(dirs)
    troll = row_where(main_table(collected.runs, collected.items), trust_region="troll")
    assert troll["difference"] == pytest.approx(5 / 60), "seed 1 only"
    assert troll["pass@1"] == pytest.approx(115 / 120), "all seeds of the method"


def test_planned_missing_and_skipped_rows_are_shown(known):
    keys = ("model", "task", "trust_region", "estimator", "condition")
    planned = [
        dict(zip(keys, ("tiny", task, method, "grpo", condition), strict=True)) | {"seed": seed}
        for task in ("chains", "functions")
        for method in ("clip", "troll", "gspo")
        for condition in ("gentle", "stale")
        for seed in range(5)
    ]
    table = main_table(
        known.runs, known.items, expected=planned, skipped={"functions": "bubblewrap is missing"}
    )
    assert row_where(table, task="chains", trust_region="gspo", condition="stale")["status"] == "not run"
    assert row_where(table, task="chains", trust_region="clip", condition="stale")["planned"] == 5
    functions = table[table["task"] == "functions"]
    assert len(functions) == 7 and set(functions["status"]) == {"skipped"}
    said = " ".join(notes(table))
    assert "Task functions: skipped, because bubblewrap is missing." in said
    assert "2 of 14 rows have not been run." in said
    assert "over 3 seeds" in said


def test_holes_show_without_a_plan(known):
    runs = known.runs
    hole = (runs["trust_region"] == "troll") & (runs["condition"] == "stale")
    table = main_table(runs[~hole], known.items)
    assert row_where(table, trust_region="troll", condition="stale")["status"] == "not run"
    short = comparison_table(table)
    missing = int((short["status"] == "not run").sum())
    said = " ".join(notes(short))
    assert (
        f"{missing} of {len(short)} rows have not been run." in said and f"of {len(table)} rows" not in said
    )


def test_notes_explain_the_columns_that_a_table_shows_and_no_others(known):
    main = main_table(known.runs, known.items)
    whole, short = notes(main)[0], notes(comparison_table(main))[0]
    for sentence in ("Mean ± standard deviation over 3 seeds.", "Δ: difference from clip", "KL: mean over"):
        assert sentence in whole and sentence in short
    for sentence in ("p: paired t-test", "Final: mean over the last tenth"):
        assert sentence in whole and sentence not in short


def test_nothing_is_compared_with_clip_where_it_is_not_part_of_the_experiment(known):
    runs, items = (frame[frame["trust_region"] != "clip"] for frame in (known.runs, known.items))
    main, cost = main_table(runs, items), training_cost_table(runs)
    assert "troll" in set(main["trust_region"]) and "troll" in set(cost["trust_region"])
    assert not {"difference", "difference_low", "reading", "p"} & {*main}
    assert not [name for name in cost if "ratio" in name]
    assert comparison_table(main).empty
    for frame in (main, cost):
        assert "Δ" not in to_markdown(frame) and "clip" not in to_markdown(frame)
    planned = [
        {"model": "tiny", "task": "chains", "trust_region": rule, "estimator": "grpo", "condition": "gentle"}
        | {"seed": 0}
        for rule in ("clip", "troll")
    ]
    later = main_table(runs, items, expected=planned)
    assert row_where(later, trust_region="clip", condition="gentle")["status"] == "not run"
    assert "difference" in later, "a comparison that is planned keeps its columns"


def test_mixed_runs_are_named(tmp_path):
    root = tmp_path / "testbed"
    dirs = [synthetic.write_run(root, "chains", "clip", "grpo", "gentle", s, batches=1) for s in range(2)]
    odd = {"environment": "9" * 64}
    dirs.append(synthetic.write_run(root, "chains", "clip", "grpo", "gentle", 2, batches=1, digests=odd))
    collected = checked(read_directories(dirs), allow_mixed=True)
    table = main_table(collected.runs, collected.items)
    assert row_where(table, trust_region="clip")["mixed"]
    assert "tiny/chains/clip/grpo/gentle/seed2" in table.attrs["notes"][-1]


def test_comparison_puts_two_methods_side_by_side(known):
    main = main_table(known.runs, known.items)
    table = comparison_table(main)
    gentle = row_where(table, condition="gentle")
    assert [gentle["base"], gentle["baseline"], gentle["method"]] == pytest.approx([1 / 3, 31 / 60, 41 / 60])
    assert (
        gentle["difference_low"]
        == row_where(main, condition="gentle", trust_region="troll")["difference_low"]
    )
    assert gentle["seeds"] == 3 and gentle["reading"] == "higher"
    heights = [row_where(main, condition="gentle", trust_region=name)["auc"] for name in ("clip", "troll")]
    assert [gentle["baseline_auc"], gentle["auc"]] == heights and all(height > 0 for height in heights)
    assert comparison_table(main[~main["trust_region"].isin(["clip", "troll"])]).empty
    alone = comparison_table(main[main["trust_region"] != "troll"])
    assert set(alone["status"]) == {"not run"} and alone["difference"].isna().all()


def test_both_columns_are_of_the_seeds_that_both_methods_have(known):
    def rate(name, seeds):
        rows = known.runs[
            (known.runs["source"] == "test")
            & (known.runs["metric"] == "pass@1")
            & (known.runs["trust_region"] == name)
            & (known.runs["condition"] == "gentle")
            & known.runs["seed"].isin(seeds)
        ]
        return float(rows["value"].mean())

    lost = [(frame["trust_region"] == "troll") & (frame["seed"] == 1) for frame in (known.runs, known.items)]
    main = main_table(known.runs[~lost[0]], known.items[~lost[1]])
    gentle = row_where(comparison_table(main), condition="gentle")
    assert [gentle["baseline"], gentle["method"]] == pytest.approx(
        [rate("clip", {0, 2}), rate("troll", {0, 2})]
    )
    assert gentle["method"] - gentle["baseline"] == pytest.approx(gentle["difference"])
    assert row_where(main, condition="gentle", trust_region="clip")["pass@1"] == pytest.approx(
        rate("clip", {0, 1, 2})
    )


@pytest.fixture
def on_public_data(known):
    """The known runs, with figures of an official scorer: a tenth of all problems more, six samples apart."""
    ours = known.runs[(known.runs["source"] == "test") & (known.runs["metric"] == "pass@1")]
    official = ours.assign(metric="official/pass@1", value=ours["value"] + 0.1)
    apart = ours.assign(metric="disagreements", value=6.0)
    return Tidy(pd.concat([known.runs, official, apart], ignore_index=True), known.items)


def test_official_figures_stand_before_ours_and_only_where_there_are_any(known, on_public_data):
    main = main_table(on_public_data.runs, on_public_data.items)
    names = [name for name in main if not name.endswith("_sd")]
    start = names.index("official/pass@1")
    assert names[start : start + 4] == ["official/pass@1", "pass@1", "pass@8", "disagreements"]
    troll = row_where(main, trust_region="troll", condition="gentle")
    assert troll["official/pass@1"] == pytest.approx(41 / 60 + 0.1) and troll["disagreements"] == 6
    assert any("disagreements.jsonl" in note for note in main.attrs["notes"])
    assert "| Official pass@1 (%) | pass@1 (%) | pass@8 (%) | Disagreements |" in to_markdown(main)
    gentle = row_where(comparison_table(main), condition="gentle")
    both = [
        gentle[f"{prefix}{name}"] for name in ("base", "baseline", "method") for prefix in ("official_", "")
    ]
    ours = [1 / 3, 31 / 60, 41 / 60]
    assert both == pytest.approx([value for one in ours for value in (one + 0.1, one)])
    tested = [name for name in status_table(on_public_data.runs) if not name.endswith("_sd")]
    start = tested.index("official/pass@1")
    assert tested[start : start + 4] == ["official/pass@1", "pass@1", "pass@8", "disagreements"]
    without = main_table(known.runs, known.items)
    for frame in (without, comparison_table(without), status_table(known.runs)):
        assert not [name for name in frame if "official" in name or "disagreements" in name]


def test_ablation_is_where_variants_are(tmp_path, known):
    root = tmp_path / "testbed"
    dirs = sorted(path.parent for path in root.glob("runs/**/run.yaml"))
    solved_by = {"troll-k16": 35, "troll-kl0.25": 41, "troll-kl0.01": 20, "clip-eps0.1": 9}
    for variant, solved in solved_by.items():
        dirs.append(
            synthetic.write_run(
                root, "chains", variant, "grpo", "gentle", 0, batches=1, table=synthetic.solved(solved)
            )
        )
    collected = read_directories(dirs)
    table = ablation_table(collected.runs, collected.items)
    assert list(table["trust_region"])[:2] == ["clip", "clip-eps0.1"]
    assert set(table["trust_region"][2:]) == {"troll", "troll-kl0.01", "troll-kl0.25", "troll-k16"}
    assert set(table["condition"]) == {"gentle"}
    first = collected.runs[(collected.runs["metric"] == "pass@1") & (collected.runs["seed"] == 0)]
    first = first[first["condition"] == "gentle"].set_index(["task", "estimator", "trust_region"])["value"]
    for variant, family in (("troll-kl0.01", "troll"), ("clip-eps0.1", "clip")):
        difference = row_where(table, trust_region=variant)["difference"]
        assert difference == pytest.approx(solved_by[variant] / 60 - first["chains", "grpo", family])
    assert "difference from the rule's default in the same setting" in notes(table)[0]
    assert "troll-k16" not in set(main_table(collected.runs, collected.items)["trust_region"])
    empty = ablation_table(known.runs, known.items)
    assert empty.empty and empty.attrs["notes"] == ["No variants were run."]


def test_certificate_takes_the_worst(known):
    table = constraint_check_table(known.runs)
    rows = known.runs[
        (known.runs["trust_region"] == "troll")
        & (known.runs["condition"] == "stale")
        & (known.runs["source"] == "train")
    ]
    troll = row_where(table, trust_region="troll", condition="stale")
    values = {name: part["value"] for name, part in rows.groupby("metric")}
    assert troll["kl_violation_max"] == values["kl_violation_max"].max() == 1e-7
    assert troll["kept_mass_min"] == values["kept_mass_min"].min()
    assert troll["clip_fraction"] == pytest.approx(values["clip_fraction"].mean()), "equally long batches"
    assert troll["kl_projected_max"] == synthetic.KL_BOUND
    clip = row_where(table, trust_region="clip", condition="stale")
    assert math.isnan(clip["kl_violation_max"]) and clip["ratio_max"] > 1


def test_every_test_metric_has_a_column(runs):
    table = status_table(runs)
    functions = row_where(table, task="functions", trust_region="troll", condition="stale", estimator="grpo")
    assert functions["base/pass@1"] == pytest.approx(functions["pass@1"] + 0.02)
    assert functions["status/passed"] + functions["status/wrong"] == pytest.approx(1)
    assert row_where(table, task="chains", trust_region="base")["pass@1_sd"] != 0
    assert math.isnan(row_where(table, task="chains", trust_region="base")["base/pass@1"])


@pytest.mark.parametrize(("kind", "name"), [("table", "main"), ("figure", "main")])
def test_two_experiments_are_not_averaged(runs, items, kind, name):
    both = Results(pd.concat([runs, runs.assign(experiment="paper")]), items)
    with refused("paper", "testbed"):
        make(entries(kind)[name], both)


def test_variants_are_known_by_the_recorded_rule(tmp_path):
    root = tmp_path / "testbed"
    dirs = [
        synthetic.write_run(root, "chains", method, "grpo", "stale", 0, batches=1, rule=rule)
        for method, rule in (
            ("troll", "troll"),
            ("troll-pooled", "troll"),  # nothing in its name says what is varied
            ("troll-2", "another"),
            ("mine", "troll"),
            ("clip-0.28", "clip"),  # the rule's own name is no method here: nothing to be a variant of
        )
    ]
    collected = read_directories(dirs, [synthetic.write_base(root, "chains")])
    known = {"troll-pooled": "troll", "mine": "troll"}
    assert variants(collected.runs) == variants(collected.items) == known
    planned = [{"trust_region": "clip", "rule": "clip"}]
    assert variants(collected.runs, planned) == known | {"clip-0.28": "clip"}


def test_methods_are_in_the_order_of_their_numbers():
    names = ["troll-k256", "gspo-clip", "troll", "clip", "base", "troll-k16", "troll-kl0.05", "clip-0.28"]
    order = ["base", "clip", "troll", "clip-0.28", "gspo-clip", "troll-k16", "troll-k256", "troll-kl0.05"]
    assert sorted(names, key=method_order) == order


def test_curves_are_steps_by_seeds(runs):
    cell = next(cell for cell in cells(runs) if cell.trust_region == "troll" and cell.condition == "gentle")
    batches = curve(cell.rows(runs), "kl_to_old")
    assert list(batches.index) == [1, 9, 17, 25, 33] and list(batches) == [0, 1, 2]
    rows = cell.rows(runs)
    of_seed = rows[(rows["metric"] == "kl_to_old") & (rows["seed"] == 1)].set_index("step")["value"]
    np.testing.assert_array_equal(batches[1], of_seed)
    assert curve(cell.rows(runs), "no such metric").empty


def test_a_run_per_line(runs):
    table = per_run(runs)
    assert len(table) == 2 * 2 * 2 * 2 * 3 + 2
    assert table["run_id"].is_unique
    stale = table[(table["condition"] == "stale") & (table["trust_region"] == "clip")]
    assert (stale["max_drawdown"] > 0.05).all(), "the synthetic clip collapses"
