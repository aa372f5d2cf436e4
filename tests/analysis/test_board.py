"""The board: rules in their order, the numbers of their runs, and what it refuses."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from synthetic_board import PROTOCOL, trial_score, validation

from troll.analysis.data.results import Results, tables_of
from troll.analysis.leaderboard.board import board_table
from troll.analysis.leaderboard.figures import (
    budget_figure,
    differences_figure,
    performance_profile,
    profile_figure,
)
from troll.analysis.leaderboard.inputs import choose, trial_scores
from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.render.formats import write_table
from troll.analysis.render.style import write_figure
from troll.common.errors import UserError


def test_a_rule_that_is_best_at_the_end_of_what_it_may_try_is_named(board):
    _, final, _ = board
    rules = {name: dict(rule) for name, rule in PROTOCOL["rules"].items()}
    rules["clip"]["space"] = {"epsilon_low, epsilon_high": [0.1, 0.2, 0.3, 0.4]}
    rules["troll"] = {"rule": "troll", "space": {"kl_bound": [0.2, 0.05, 0.1, 0.4]}}
    rules["clip"]["learning_rates"] = rules["troll"]["learning_rates"] = [1e-4]
    protocol = Protocol.model_validate(PROTOCOL | {"rules": rules})
    scores = trial_scores(validation(protocol, trial_score), protocol)

    def note(*numbers):
        pairs = itertools.product(("chains", "functions"), rules)
        best = {
            key: protocol.trials_by_variant[f"{key[1]}.{number}"]
            for key, number in zip(pairs, numbers, strict=True)
        }
        notes = board_table(final, scores, best, protocol).attrs["notes"]
        return [one for one in notes if "may lie outside" in one]

    assert note(2, 3, 2, 3, 1, 3) == []
    assert note(4, 4, 1, 1, 2, 4) == [
        "Best at the least or largest value that was tried: clip (epsilon_low and epsilon_high on chains and "
        "functions), troll (kl_bound on chains and functions), none (learning rate on chains and functions). "
        "A better one may lie outside."
    ]
    assert "troll (kl_bound on functions)" in note(2, 3, 2, 2, 2, 2)[0]


def test_a_rule_that_is_tuned_and_has_no_fresh_runs_is_named(board, protocol):
    table, final, scores = board
    assert not any("not yet run" in note for note in table.attrs["notes"])
    known = [replace(one, items=one.items[one.items["trust_region"] != "none"]) for one in final]
    notes = board_table(known, scores, choose(scores, protocol), protocol, ["pg"]).attrs["notes"]
    assert notes[-2:] == ["Tuned, and not yet run on fresh seeds: none.", "No runs yet: pg."]
    assert not any("tried" in note and "none (" in note for note in notes)


def test_a_rule_that_lacks_a_task_is_named_with_it(board, protocol):
    _, final, scores = board
    task = str(final[0].items["task"].iloc[0])
    gone = f"trust_region == 'none' and task == '{task}'"
    known = [replace(one, items=one.items.drop(one.items.query(gone).index)) for one in final]
    table = board_table(known, scores, choose(scores, protocol), protocol)
    assert f"Tuned, and not yet run on fresh seeds: none on {task}." in table.attrs["notes"]
    assert performance_profile(table, [1e9]).loc["none", 1e9] <= 0.5, "what was not run was not solved"


def test_a_board_without_its_baseline_is_refused(board, protocol):
    _, final, scores = board
    known = [replace(one, items=one.items[one.items["trust_region"] != "clip"]) for one in final]
    with pytest.raises(UserError, match=r"^leaderboard: .*: no run of the baseline clip on .*; run it"):
        board_table(known, scores, choose(scores, protocol), protocol)
    none = [replace(one, items=one.items[one.items["trust_region"] == "base"]) for one in final]
    with pytest.raises(UserError, match="no run of the baseline clip; run it first"):
        board_table(none, scores, choose(scores, protocol), protocol)


@pytest.mark.parametrize("name", ["training/learning_rate", "trust_region/settings/epsilon_low"])
def test_fresh_runs_with_other_settings_than_the_best_trial_are_refused(board, protocol, name):
    table, final, scores = board
    best = choose(scores, protocol)
    trial = best["chains", "clip"]
    right = trial.learning_rate if name.endswith("rate") else trial.settings["epsilon_low"]
    runs = final[0].runs
    one = runs["run_id"] == runs.loc[runs["trust_region"] == "clip", "run_id"].iloc[0]

    def recorded(value):
        more = synthetic.record(runs, one, **{name.replace("/", "."): value})
        return [replace(final[0], runs=more), *final[1:]]

    pd.testing.assert_frame_equal(board_table(recorded(right), scores, best, protocol), table)
    with pytest.raises(
        UserError, match=rf"^clip: chains: {name.rpartition('/')[2]} is .* and .* in the best"
    ):
        board_table(recorded(2 * right), scores, best, protocol)


def test_one_experiment_may_hold_several_tasks(board, protocol):
    table, final, scores = board
    both = Results(*tables_of(final))
    together = board_table([both], scores, choose(scores, protocol), protocol)
    pd.testing.assert_frame_equal(together, table)
    assert "for each of 2 tasks" in together.attrs["notes"][0]


def test_a_rule_that_lacks_fresh_seeds_is_refused(board, protocol):
    """Means of other seeds than the pairs' would not differ by what stands beside them."""
    _, final, scores = board
    gone = "trust_region == 'troll' and seed == 1"
    known = [replace(one, items=one.items.drop(one.items.query(gone).index)) for one in final]
    with pytest.raises(UserError, match=r"^troll: chains: no fresh run with seed 1; finish"):
        board_table(known, scores, choose(scores, protocol), protocol)


def test_trials_that_were_chosen_before_they_ended_are_told(board, protocol):
    table, final, scores = board
    assert (scores["after"] == 1).all() and not any(
        "were chosen after" in note for note in table.attrs["notes"]
    )
    rows = validation(protocol, lambda *_: 0.5)
    lost = pd.concat([rows[rows["step"] < 12].assign(step=5), rows.assign(metric="success", source="train")])
    early = trial_scores(lost, protocol)
    assert early["after"].unique() == pytest.approx([4 / 12])
    notes = board_table(final, early, choose(early, protocol), protocol).attrs["notes"]
    assert notes[1].startswith("The trials were chosen after 33 % of their optimiser steps: ")
    some = early.assign(after=early["after"].where(early["rule"] == "none", 1.0))
    notes = board_table(final, some, choose(some, protocol), protocol).attrs["notes"]
    assert notes[1].startswith("The trials of none were chosen after 33 % of their optimiser steps: ")


def test_a_reconstruction_is_called_one(board, protocol):
    table, final, scores = board
    assert not any("reconstruction" in note for note in table.attrs["notes"])
    rules = PROTOCOL["rules"] | {"none": PROTOCOL["rules"]["none"] | {"rule": "quatro-recon-gradient"}}
    other = Protocol.model_validate(PROTOCOL | {"rules": rules})
    note = board_table(final, scores, choose(scores, protocol), other).attrs["notes"][-1]
    assert note == "Reconstructed from secondary sources, without the paper's exact objective: none."


def test_the_board_has_every_rule_once_per_task_best_first(board):
    table, *_ = board
    assert list(table.groupby("task")["trust_region"].agg(sorted)) == [["clip", "none", "troll"]] * 2
    for _, group in table.groupby("task"):
        assert group["pass@1"].is_monotonic_decreasing
    clip = table[table["trust_region"] == "clip"]
    assert clip[["difference", "p_holm", "improvement"]].isna().all(axis=None)
    assert set(clip["settings"]) == {"epsilon_low 0.2, epsilon_high 0.2"} and set(clip["learning_rate"]) == {
        3e-4
    }


def test_the_numbers_of_the_board_are_those_of_the_runs(board):
    table, final, _ = board
    row = table[(table["task"] == "chains") & (table["trust_region"] == "troll")].iloc[0]
    items = final[0].items
    rate = items[items["trust_region"] != "base"].assign(rate=lambda frame: frame["c"] / frame["n"])
    by_seed = rate.pivot_table(index="seed", columns="trust_region", values="rate", observed=True)
    assert row["pass@1"] == pytest.approx(by_seed["troll"].mean())
    assert (row["worst"], row["best"]) == pytest.approx((by_seed["troll"].min(), by_seed["troll"].max()))
    assert row["difference"] == pytest.approx((by_seed["troll"] - by_seed["clip"]).mean())
    above = [a > b for a in by_seed["troll"] for b in by_seed["clip"]]
    assert row["improvement"] == pytest.approx(np.mean(above))
    success = final[0].runs.query("metric == 'success'")
    curves = success.pivot_table(
        index="rollout_batch", columns=["trust_region", "seed"], values="value", observed=True
    )
    last = curves.iloc[-1:].T.groupby("trust_region").mean().max().item()  # a tenth of nine batches is one
    reached = [np.flatnonzero(curves["troll"][seed] >= 0.9 * last) for seed in curves["troll"]]
    assert row["rollouts"] == np.median([one[0] + 1 if one.size else math.inf for one in reached])
    assert row["all"] == pytest.approx(0.45) and row["few"] == row["all"], (
        "four trials are all that there are"
    )
    assert table["p_holm"].dropna().between(0, 1).all()


def test_profiles_count_the_tasks_within_a_ratio_of_the_quickest():
    board = pd.DataFrame(
        {
            "task": ["a", "a", "a", "b", "b", "b"],
            "model": "tiny",
            "trust_region": ["x", "y", "z"] * 2,
            "rollouts": [2.0, 4.0, math.inf, 6.0, 3.0, math.inf],
        }
    )
    profile = performance_profile(board, [1.0, 2.0, 4.0])
    assert profile.loc["x"].tolist() == [0.5, 1.0, 1.0]
    assert profile.loc["y"].tolist() == [0.5, 1.0, 1.0]
    assert profile.loc["z"].tolist() == [0.0, 0.0, 0.0]
    fewer = performance_profile(board.drop(index=4), [1.0, 2.0, 4.0])
    assert fewer.loc["y"].tolist() == [0.0, 0.5, 0.5], "a task without runs is not left out"


def test_differences_are_drawn_best_first_with_their_intervals(board):
    table, *_ = board
    axes = differences_figure(table).axes
    assert [one.get_title() for one in axes] == ["chains", "functions"]
    for one, (_, rows) in zip(axes, table.groupby("task"), strict=True):
        assert [label.get_text() for label in one.get_yticklabels()] == list(rows["trust_region"])
        places = [bar.lines[0].get_xdata()[0] for bar in one.containers]
        assert places == pytest.approx(list(100 * rows["difference"].fillna(0.0)))
        ends = [bar.lines[2][0].get_segments()[0][:, 0] for bar in one.containers]
        for (low, high), row in zip(ends, rows.to_dict("records"), strict=True):
            wanted = [100 * row["difference_low"], 100 * row["difference_high"]]
            assert [low, high] == pytest.approx(wanted if row["trust_region"] != "clip" else [0.0, 0.0])


def test_budgets_are_drawn_for_every_rule_and_never_fall(board):
    table, _, scores = board
    for axes, (_, rows) in zip(budget_figure(scores, table).axes, scores.groupby("task"), strict=True):
        assert len(axes.lines) == rows["rule"].nunique()
        for line, (_, own) in zip(axes.lines, rows.groupby("rule"), strict=True):
            heights = line.get_ydata()
            assert (np.diff(heights) >= -1e-9).all() and len(heights) == len(own)
            assert heights[0] == pytest.approx(100 * own["score"].mean())
            assert heights[-1] == pytest.approx(100 * own["score"].max())


def test_table_and_profile_are_written(board, tmp_path):
    table, *_ = board
    write_table(table, tmp_path / "board")
    text = (tmp_path / "board.md").read_text()
    assert "| chains |" in text and "Test pass@1" in text and "corrected by Holm over the whole table" in text
    write_figure(profile_figure(table), tmp_path / "profile")
    assert (tmp_path / "profile.png").stat().st_size > 5000
