"""The board: rules in their order, the numbers of their runs, and what it refuses."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from refusals import refused
from scipy import stats
from synthetic_board import IN_ROUNDS, PROTOCOL, SENTENCES, compared, fresh_seeds, trial_score, validation

from troll.analysis.data.results import Results, tables_of
from troll.analysis.leaderboard.board import board_table
from troll.analysis.leaderboard.contrasts import MEAN, contrasts_table, outcome, sentence
from troll.analysis.leaderboard.figures import contrasts_figure
from troll.analysis.leaderboard.inputs import choose, trial_scores, tuned_elsewhere, tuning_values
from troll.analysis.leaderboard.protocol import Protocol
from troll.analysis.render.formats import to_markdown
from troll.common import numerics


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


@pytest.mark.parametrize(
    ("gone", "facts"),
    [
        ("trust_region == 'clip'", ("leaderboard", "baseline clip", "chains")),
        ("trust_region != 'base'", ("leaderboard", "baseline clip")),
        # Means over other seeds than those of the pairs would not differ by the paired difference.
        ("trust_region == 'troll' and seed == 1", ("troll", "chains", "seed 1")),
    ],
)
def test_a_board_that_lacks_runs_is_refused(board, protocol, gone, facts):
    _, final, scores = board
    known = [replace(one, items=one.items.drop(one.items.query(gone).index)) for one in final]
    with refused(*facts):
        board_table(known, scores, choose(scores, protocol), protocol)


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
    with refused("clip", "chains", name.rpartition("/")[2]):
        board_table(recorded(2 * right), scores, best, protocol)


def test_one_experiment_may_hold_several_tasks(board, protocol):
    table, final, scores = board
    both = Results(*tables_of(final))
    together = board_table([both], scores, choose(scores, protocol), protocol)
    pd.testing.assert_frame_equal(together, table)
    assert "for each of 2 tasks" in together.attrs["notes"][0]


def test_how_far_a_trial_was_validated_is_told(protocol):
    rows = validation(protocol, lambda *_: 0.5)
    assert (trial_scores(rows, protocol)["after"] == 1).all()
    lost = pd.concat([rows[rows["step"] < 12].assign(step=5), rows.assign(metric="success", source="train")])
    assert trial_scores(lost, protocol)["after"].unique() == pytest.approx([4 / 12])


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
    text = to_markdown(table)
    assert "| chains |" in text and "Test pass@1" in text and "corrected by Holm over the whole table" in text


def test_a_board_that_is_tuned_in_rounds_says_so(board):
    _, final, _ = board
    protocol = Protocol.model_validate(IN_ROUNDS)
    scores = trial_scores(validation(protocol, trial_score), protocol, rounds=0)
    best = choose(scores, protocol)
    last = scores.assign(score=scores["score"] - 0.2, rounds=1 + (scores["trial"] == 4))
    table = board_table(final, last, best, protocol)
    note = table.attrs["notes"][0]
    assert note.startswith(
        "Each rule had 4 trials on 2 tuning seeds for each of 2 tasks, the best 2 then got 2 more seeds, the "
        "best 1 then got 1 more seed, the best by validation success went on to 3 fresh seeds. "
    )
    assert "drawn from those that were made in the first round." in table.attrs["notes"][1]
    assert table.loc[table["trust_region"] == "troll", "all"].to_list() == pytest.approx([0.45] * 2)


def test_what_another_board_tuned_with_earlier_numbers_is_told(monkeypatch):
    protocol = Protocol.model_validate(PROTOCOL | {"tuned_in": "results/other-trials"})
    runs = pd.DataFrame({"experiment": "other-trials", "trust_region": ["clip.1", "troll.1", "pg.1"]})
    runs = runs.assign(rule=["clip", "troll", "pg"], numerics=2)
    said = "The runs of the first round are those of other-trials, which were not made again."

    def notes(version):
        return tuned_elsewhere(runs, [Results(pd.DataFrame({"numerics": [version]}), runs)], protocol)

    monkeypatch.setattr(numerics, "CHANGES", (numerics.Change(3, "otherwise", ("troll", "pg")),))
    assert notes(2) == [said]
    assert notes(3)[0] == said and notes(3)[1].startswith("Those of troll were made with earlier numerics")
    assert tuned_elsewhere(runs, [], Protocol.model_validate(PROTOCOL)) == []


SEEDS = list(range(200, 230))
DUEL = Protocol.model_validate(PROTOCOL | compared() | {"seeds": SEEDS})


def spread(mean, deviation, seed):
    """A value for each fresh seed, with this mean and this standard deviation exactly."""
    values = np.random.default_rng(seed).normal(size=len(SEEDS))
    values = (values - values.mean()) / values.std(ddof=1)
    return dict(zip(SEEDS, mean + deviation * values, strict=True))


def certain(task, trial, seed):
    """Tuning that would choose the same trial on whatever seeds."""
    return 0.1 * trial.number


def contrasts(rate, score=certain, protocol=DUEL, **more):
    runs = validation(protocol, score)
    tuning = tuning_values(runs, trial_scores(runs, protocol), protocol)
    return contrasts_table(fresh_seeds(protocol, rate, **more), protocol, tuning)


def row_of(table, method="troll", baseline="clip", analysis=MEAN, endpoint="test pass@1"):
    return synthetic.row_where(table, method=method, baseline=baseline, analysis=analysis, endpoint=endpoint)


def above_clip(differences, none=0.4, area=0.5):
    """Rates by rule: what troll has more than clip, by task, with much that all rules of a seed share."""
    shared = spread(0.4, 0.1, 9)

    def rate(rule, task, seed):
        more = {"clip": 0.0, "troll": differences[task][seed], "none": none - 0.4}
        return shared[seed] + more[rule]

    return rate


def test_a_true_difference_is_found_seed_by_seed():
    differences = {"chains": spread(0.08, 0.05, 1), "functions": spread(0.02, 0.03, 2)}
    table = contrasts(above_clip(differences))
    row, pairs = (
        row_of(table),
        [(differences["chains"][seed] + differences["functions"][seed]) / 2 for seed in SEEDS],
    )
    known = stats.ttest_1samp(pairs, 0)
    low, high = known.confidence_interval(0.95)
    assert row["reading"] == "above" and row["seeds"] == 30
    assert row["difference"] == pytest.approx(0.05, abs=1e-6)
    assert (row["difference_low"], row["difference_high"]) == pytest.approx((low, high), abs=1e-5)
    assert row["p"] == pytest.approx(known.pvalue, rel=1e-2)
    alone = row_of(table, analysis="functions alone")
    assert alone["difference"] == pytest.approx(0.02, abs=1e-6) and alone["reading"] == "above"
    assert row_of(table, analysis="20 % trimmed mean")["difference"] == pytest.approx(
        stats.trim_mean(pairs, 0.2), abs=1e-6
    )
    assert sentence(table, DUEL) == (
        f"troll ends above clip on chains and functions: +5.0 [+{100 * low:.1f}, +{100 * high:.1f}] points, "
        "30 seeds."
    )
    assert table.attrs["notes"][0] == sentence(table, DUEL)
    assert "the same in every analysis" in table.attrs["notes"][1]
    backwards = {"contrasts": [{"method": "clip", "baseline": "troll"}]}
    other = Protocol.model_validate(PROTOCOL | compared(**backwards) | {"seeds": SEEDS[::-1]})
    mirrored = contrasts(above_clip(differences), protocol=other)
    assert mirrored.iloc[0]["difference"] == pytest.approx(-row["difference"])
    assert sentence(mirrored, other).startswith("clip ends below troll: −5.0 [−")


@pytest.mark.parametrize(
    ("mean", "deviation", "reading"),
    [(0.0, 0.03, "within"), (0.0, 0.2, "undecided"), (0.015, 0.06, "undecided"), (0.01, 0.01, "above")],
)
def test_equal_rules_are_within_the_margin_or_undecided(mean, deviation, reading):
    own = spread(mean, deviation, 3)
    table = contrasts(above_clip({"chains": own, "functions": own}))
    row = row_of(table)
    assert row["reading"] == reading
    assert (row["p_equivalence"] < 0.025) == (row["difference_high"] < 0.03 and row["difference_low"] > -0.03)
    said = sentence(table, DUEL)
    assert said.endswith(SENTENCES["small"].format(margin="3")) == (reading == "above"), "1 point is little"
    text = SENTENCES[reading].partition(":")[0]
    assert text.format(method="troll", baseline="clip", tasks="chains and functions", margin=3) in said


def test_an_interval_is_read_by_its_ends():
    assert (outcome(0.01, 0.05, 0.03), outcome(-0.05, -0.01, 0.03)) == ("above", "below")
    assert (outcome(-0.03, 0.03, 0.03), outcome(-0.031, 0.01, 0.03)) == ("within", "undecided")
    assert outcome(math.nan, math.nan, 0.03) == "undecided"


def test_the_first_contrast_is_read_for_itself_and_the_others_by_holm():
    """Three contrasts with p = 0.03 each: corrected none of the others is clear."""
    t = stats.t.isf(0.03 / 2, 29)
    own = spread(t * 0.1 / math.sqrt(30), 0.1, 4)
    rates = above_clip({"chains": own, "functions": own})
    table = contrasts(rates, area=rates)
    first, second, third = (
        row_of(table, *pair) for pair in (("troll", "clip"), ("troll", "none"), ("none", "clip"))
    )
    assert first["p"] == second["p"] == pytest.approx(0.03, rel=1e-3) and third["p"] == 1
    assert first["p_holm"] == second["p_holm"] == pytest.approx(0.09, rel=1e-3)
    assert (first["reading"], second["reading"], third["reading"]) == ("above", "undecided", "within")
    height = row_of(table, endpoint="mean height of curve")
    assert height["difference"] == pytest.approx(first["difference"], abs=1e-6)
    assert height["reading"] == "undecided", "the second endpoint is read with correction"
    assert len(table[table["endpoint"] == "mean height of curve"]) == 3


def test_seeds_at_which_a_rule_collapsed_are_left_out_whole():
    own = spread(0.0, 0.01, 5)
    rates = above_clip({"chains": own, "functions": own})

    def rate(rule, task, seed):  # below half of the base model's 0.2
        fallen = {("troll", "chains", 203), ("clip", "functions", 210), ("none", "chains", 220)}
        return 0.09 if (rule, task, seed) in fallen else 0.2 + rates(rule, task, seed) / 2

    table = contrasts(rate)
    row = row_of(table, analysis="without collapsed runs")
    left = [seed for seed in SEEDS if seed not in (203, 210)]
    assert row["seeds"] == 28, "the third rule's collapse is not theirs"
    assert row["difference"] == pytest.approx(np.mean([own[seed] / 2 for seed in left]), abs=1e-6)
    assert row_of(table)["seeds"] == 30 and abs(row_of(table)["difference"] - row["difference"]) > 1e-3


def test_what_another_tuning_would_have_chosen_widens_and_shifts_the_interval():
    own = spread(0.05, 0.01, 6)
    rates = above_clip({"chains": own, "functions": own})
    sure = row_of(contrasts(rates), analysis="with the uncertainty of the tuning")
    student = row_of(contrasts(rates))
    assert sure["difference"] == pytest.approx(student["difference"], abs=2e-4)
    assert sure["difference_low"] == pytest.approx(student["difference_low"], abs=3e-4)
    assert sure["difference_high"] == pytest.approx(student["difference_high"], abs=3e-4)
    assert math.isnan(sure["p"]) and sure["reading"] == "above"

    def score(task, trial, seed):  # troll's second trial is better where seed 101 is drawn twice: one of four
        if trial.name == "troll" and trial.number < 3:
            return {1: {100: 1.0, 101: 0.0}, 2: {100: 0.0, 101: 0.6}}[trial.number][seed]
        return certain(task, trial, seed) / 10

    table = contrasts(rates, score)
    unsure = row_of(table, analysis="with the uncertainty of the tuning")
    # 0.3 in place of 0.5 on each task by itself: both change in one of 16 draws, one of them in six.
    assert unsure["difference"] == pytest.approx(0.05 - 0.2 / 4, abs=5e-3)
    assert unsure["difference_low"] == pytest.approx(0.05 - 0.2, abs=0.01)
    assert unsure["difference_high"] == pytest.approx(student["difference_high"], abs=1e-3)
    assert row_of(table)["difference"] == student["difference"], "the mean itself knows nothing of it"
    assert "with the uncertainty of the tuning (undecided)" in table.attrs["notes"][1]
    other = row_of(table, "none", "clip", "with the uncertainty of the tuning")
    assert other["difference"] == pytest.approx(0.0, abs=1e-6), "the tuning of these is certain"


@pytest.mark.parametrize("endpoint", ["pass@1", "area"])
def test_a_fresh_run_that_is_missing_or_too_many_is_named(endpoint):
    own = spread(0.0, 0.01, 7)
    rates = above_clip({"chains": own, "functions": own})

    def without(rule, task, seed):
        lost = (rule, task, seed) == ("none", "functions", 205)
        return (math.nan if endpoint == "area" else None) if lost else rates(rule, task, seed)

    with refused("none", "functions", endpoint, "seed 205"):
        contrasts(rates if endpoint == "area" else without, area=without if endpoint == "area" else rates)
    fewer = Protocol.model_validate(DUEL.model_dump() | {"seeds": SEEDS[1:]})
    tuning = tuning_values(validation(DUEL, certain), trial_scores(validation(DUEL, certain), DUEL), DUEL)
    with refused("seed 200", "protocol"):
        contrasts_table(fresh_seeds(DUEL, rates), fewer, tuning)


def test_contrasts_are_drawn_with_every_seed_and_a_diamond():
    own = {"chains": spread(0.08, 0.05, 1), "functions": spread(0.02, 0.03, 2)}
    table, final = contrasts(above_clip(own)), fresh_seeds(DUEL, above_clip(own))
    panels = contrasts_figure(table, final, DUEL).axes
    assert [one.get_title() for one in panels] == ["troll minus clip", "troll minus none", "none minus clip"]
    dots = [line.get_xdata() for line in panels[0].lines if line.get_marker() == "o"]
    assert sorted(dots[0]) == pytest.approx(sorted(100 * value for value in own["chains"].values()), abs=1e-3)
    assert len(dots) == 3 and {len(one) for one in dots} == {30}
    row = row_of(table)
    corners = panels[0].patches[-1].get_xy()
    assert corners[:, 0].min() == pytest.approx(100 * row["difference_low"])
    assert corners[:, 0].max() == pytest.approx(100 * row["difference_high"])
