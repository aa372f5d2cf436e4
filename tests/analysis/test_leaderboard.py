"""The leaderboard's protocol: as many trials for every rule, the best by validation, fresh seeds."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.analysis.data.results import Results
from troll.analysis.data.runs import read_directories
from troll.analysis.leaderboard.board import board_table
from troll.analysis.leaderboard.figures import (
    budget_figure,
    differences_figure,
    performance_profile,
    profile_figure,
)
from troll.analysis.leaderboard.own_rule import check_release, own_board, places, released_trials, with_rule
from troll.analysis.leaderboard.protocol import (
    Protocol,
    among,
    choose,
    expected_best,
    final_experiments,
    rate,
    read_protocol,
    trial_scores,
    trials_experiment,
    tried,
)
from troll.analysis.render.formats import write_table
from troll.analysis.render.style import write_figure
from troll.cli.app import app
from troll.cli.rank import _space, rank
from troll.cli.workflow import Ended
from troll.common.errors import UserError
from troll.experiment.experiment import resolve
from troll.experiment.files import load_experiment, parse_experiment

PROTOCOL: dict[str, Any] = {
    "name": "board",
    "trials": 4,
    "tuning_seeds": [100, 101],
    "seeds": [0, 1, 2],
    "learning_rates": [1e-4, 3e-4],
    "baseline": "clip",
    "rules": {
        "clip": {
            "rule": "clip",
            "settings": {"dual_clip": 10.0},
            "space": {"epsilon_low, epsilon_high": [0.1, 0.2]},
        },
        "troll": {"rule": "troll", "space": {"kl_bound": [0.05, 0.2]}},
        "none": {"rule": "none", "learning_rates": [1e-5, 3e-5, 1e-4, 3e-4]},
    },
    "experiment": {
        "tasks": {
            "chains": {"train": 8, "validation": 4, "test": 4},
            "functions": {"train": 8, "validation": 4, "test": 4},
        },
        "models": {"tiny": {"vocabulary": 512}},
        "estimators": {"grpo": {"rule": "grpo"}},
        "conditions": {"tuned": {"mini_batches": 8, "num_iterations": 3}},
        "training": {"max_response_tokens": 48},
    },
}


@pytest.fixture
def protocol() -> Protocol:
    return Protocol.model_validate(PROTOCOL)


def validation(protocol: Protocol, score) -> pd.DataFrame:
    """The tidy rows of all trials, each with a success on validation that falls before it ends."""
    rows = [
        {
            "run_id": f"tiny/{task}/{variant}/grpo/tuned/seed{seed}",
            "model": "tiny",
            "task": task,
            "trust_region": variant,
            "source": "validation",
            "metric": "validation_success",
            "step": step,
            "value": value,
        }
        for task in ("chains", "functions")
        for variant, trial in protocol.trials_by_variant.items()
        for seed in protocol.tuning_seeds
        for step, value in ((4, 0.9), (12, score(task, trial, seed)))
    ]
    return pd.DataFrame(rows)


def test_trials_are_an_experiment_with_the_same_budget_for_every_rule(protocol):
    experiment = parse_experiment(trials_experiment(protocol), "trials")
    assert len(experiment.trust_regions) == 12
    assert len(experiment.runs()) == 12 * 2 * 2
    configs = [resolve(experiment, run) for run in experiment.runs()]
    clips = {
        (
            config.training.learning_rate,
            config.trust_region.settings["epsilon_low"],
            config.trust_region.settings["epsilon_high"],
        )
        for config in configs
        if config.trust_region.rule == "clip"
    }
    assert clips == {(rate, size, size) for rate in (1e-4, 3e-4) for size in (0.1, 0.2)}
    assert {config.seed for config in configs} == {100, 101}
    assert experiment.evaluation.samples == 1, "nobody looks at the test problems yet"


def test_the_best_by_validation_goes_on_by_task_and_on_fresh_seeds(protocol):
    def score(task, trial, seed):
        wanted = 3 if task == "chains" else 2
        return 0.5 + 0.1 * (trial.number == wanted) + (0.01 if seed == 100 else -0.01)

    best = choose(trial_scores(validation(protocol, score), protocol), protocol)
    assert {trial.number for (task, _), trial in best.items() if task == "chains"} == {3}
    files = final_experiments(protocol, best)
    assert set(files) == {"chains", "functions"}
    experiment = parse_experiment(files["chains"], "final")
    assert experiment.experiment == "board-chains" and list(experiment.tasks) == ["chains"]
    assert experiment.seeds == [0, 1, 2] and set(experiment.trust_regions) == {"clip", "troll", "none"}
    run = next(run for run in experiment.runs() if run.trust_region == "troll")
    config = resolve(experiment, run)
    assert (config.training.learning_rate, config.trust_region.settings["kl_bound"]) == (3e-4, 0.05)


def test_of_equal_trials_the_first_goes_on(protocol):
    best = choose(trial_scores(validation(protocol, lambda *_: 0.5), protocol), protocol)
    assert {trial.number for trial in best.values()} == {1}


@pytest.mark.parametrize(
    ("value", "text"),
    [(3e-5, "3e-5"), (4.13e-5, "4.13e-5"), (1e-3, "1e-3"), (0.1, "1e-1"), (9.999e-4, "1e-3")],
)
def test_learning_rates_are_shown_as_files_write_them(value, text):
    assert rate(value) == text


def test_the_table_of_trials_says_what_was_tried(protocol, tmp_path):
    write_table(trial_scores(validation(protocol, lambda *_: 0.25), protocol), tmp_path / "trials")
    lines = (tmp_path / "trials.md").read_text().splitlines()
    assert lines[0].startswith(
        "| Task | Trust region | Trial | Learning rate | Settings | Validation success (%)"
    )
    assert "| chains | clip | 2 | 1e-4 | epsilon_low 0.2, epsilon_high 0.2 | 25.0 | 2 | 100.0 |" in lines
    assert "| functions | none | 4 | 3e-4 | – | 25.0 | 2 | 100.0 |" in lines


def test_missing_trials_are_named(protocol):
    rows = validation(protocol, lambda *_: 0.5)
    rows = rows[rows["run_id"] != "tiny/functions/troll.2/grpo/tuned/seed101"]
    with pytest.raises(UserError, match=r"trial troll\.2 on functions has 1 of 2 runs"):
        trial_scores(rows, protocol)


def test_the_board_grows_rule_by_rule(protocol):
    rows = validation(protocol, lambda *_: 0.5)
    part = rows[rows["trust_region"].isin({trial.variant for trial in protocol.trials_of("clip")})]
    assert tried(part, protocol) == ["clip"] and tried(rows, protocol) == list(protocol.rules)
    clip = among(protocol, tried(part, protocol))
    assert set(trial_scores(part, clip)["rule"]) == {"clip"}
    assert set(trials_experiment(clip)["trust_regions"]) < set(trials_experiment(protocol)["trust_regions"])
    assert trials_experiment(clip)["experiment"] == "board-trials"  # one experiment, whatever it holds so far
    with pytest.raises(UserError, match="clip must be among the rules"):
        among(protocol, ["troll"])
    with pytest.raises(UserError, match="has no rule klip; it has clip, "):
        among(protocol, ["clip", "klip"])


def test_the_released_protocol_is_fair_and_has_every_rule(repository):
    protocol = read_protocol(repository / "workflow/config/leaderboard.yaml")
    rules = {candidate.rule for candidate in protocol.rules.values()}
    # Another name, another default, and one whose bound is no constant.
    # Other tests register rules of their own, some of them without a module.
    own = {name for name, rule in TRUST_REGIONS.items() if str(rule.function.__module__).startswith("troll.")}
    assert own - rules == {"pg-is", "gspo-clip-tight", "troll-adaptive"}
    parse_experiment(trials_experiment(protocol), "trials")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [0, 100]}, "seeds: 100 is a tuning seed too"),
        ({"baseline": "klip"}, "baseline: 'klip' is none of the rules"),
        ({"trials": 6}, r"rules\.clip: 4 trials \(2 learning rates x 2 settings\), and every rule gets 6"),
        ({"trial": 6}, "trial: "),
        (
            {"rules": PROTOCOL["rules"] | {"base": PROTOCOL["rules"]["none"]}},
            "rules.base: is what base models",
        ),
        ({"tuning_seeds": []}, "tuning_seeds: "),
    ],
)
def test_an_unfair_protocol_is_refused_in_one_line(tmp_path, change, message):
    path = tmp_path / "protocol.yaml"
    path.write_text(yaml.safe_dump(PROTOCOL | change))
    with pytest.raises(UserError, match=message) as error:
        read_protocol(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_the_commands_write_experiments_that_can_be_read(tmp_path, protocol, monkeypatch):
    path = tmp_path / "protocol.yaml"
    path.write_text(yaml.safe_dump(PROTOCOL))
    result = CliRunner().invoke(app, ["leaderboard", "trials", str(path), "--out", str(tmp_path / "t.yaml")])
    assert result.exit_code == 0, result.output
    assert load_experiment(tmp_path / "t.yaml").experiment == "board-trials"
    rows = validation(protocol, lambda task, trial, seed: 0.1 * trial.number)
    monkeypatch.setattr("troll.analysis.data.tidy.read_runs", lambda _: rows)
    command = [
        "leaderboard",
        "final",
        str(path),
        "--results",
        "results/board-trials",
        "--out",
        str(tmp_path / "f"),
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    experiment = load_experiment(tmp_path / "f/functions.yaml")
    assert experiment.trust_regions["troll"].settings == {"kl_bound": 0.2}


@pytest.fixture
def workflow(tmp_path, protocol, monkeypatch):
    """A checkout whose workflow only notes which experiments it ran, and fails where it is told to."""
    ran, failing = [], set()

    def run_workflow(path, targets, log, *, cores):
        experiment = load_experiment(path)
        ran.append((experiment.experiment, targets, cores, sorted(experiment.trust_regions)))
        return Ended(int(experiment.experiment in failing), "no space left")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/run.py").touch()
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump(PROTOCOL))
    rows = validation(protocol, lambda task, trial, seed: 0.1 * trial.number)
    monkeypatch.setattr("troll.analysis.data.tidy.read_runs", lambda path: rows)
    monkeypatch.setattr("troll.cli.workflow.run_workflow", run_workflow)
    monkeypatch.setattr("troll.cli.leaderboard.make_board", lambda *made: ran.append(made[1:]))
    return ran, failing


def test_one_command_runs_trials_then_fresh_seeds_then_makes_the_board(workflow):
    ran, _ = workflow
    rules = ["--rule", "clip", "--rule", "troll"]
    result = CliRunner().invoke(app, ["leaderboard", "run", "protocol.yaml", *rules, "--cores", "3"])
    assert result.exit_code == 0, result.output
    variants = sorted(f"{rule}.{number}" for rule in ("clip", "troll") for number in range(1, 5))
    assert ran[:3] == [
        ("board-trials", ["all"], 3, variants),
        ("board-chains", ["all"], 3, ["clip", "troll"]),
        ("board-functions", ["all"], 3, ["clip", "troll"]),
    ]
    trials, *finals = (Path("results", f"board-{part}") for part in ("trials", "chains", "functions"))
    assert ran[3:] == [(trials, finals, Path("results/board"))]
    best = load_experiment(Path("results/board/experiments/board-chains.yaml"))
    assert best.trust_regions["troll"].settings == {"kl_bound": 0.2}, "the best trial"
    assert read_protocol(Path("results/board/protocol.yaml")).rules.keys() == PROTOCOL["rules"].keys()


def test_a_step_that_fails_ends_it_in_one_line_and_makes_no_board(workflow):
    ran, failing = workflow
    failing.add("board-chains")
    result = CliRunner().invoke(app, ["leaderboard", "run", "protocol.yaml"])
    assert isinstance(result.exception, UserError)
    log = "results/board/experiments/board-chains.log"
    assert str(result.exception) == f"{log}: the workflow ended with status 1: no space left"
    assert [name for name, *_ in ran] == ["board-trials", "board-chains"]
    assert not Path("results/board/protocol.yaml").exists()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_expected_best_is_the_mean_over_all_subsets(scores, data):
    budget = data.draw(st.integers(1, len(scores)))
    subsets = [max(subset) for subset in itertools.combinations(scores, budget)]
    assert math.isclose(expected_best(scores, budget), float(np.mean(subsets)), abs_tol=1e-12)


def test_expected_best_of_all_is_the_best_and_of_too_many_an_error():
    assert expected_best([0.1, 0.7, 0.3], 3) == 0.7
    with pytest.raises(UserError, match="budget is 4, must be 1 to 3"):
        expected_best([0.1, 0.7, 0.3], 4)


# --- the board ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """The board of synthetic runs, with what it was made from."""
    protocol = Protocol.model_validate(PROTOCOL)
    best = choose(trial_scores(validation(protocol, _trial_score), protocol), protocol)
    root = tmp_path_factory.mktemp("results")
    final = []
    for task in ("chains", "functions"):
        directory = root / f"board-{task}"
        runs, bases = synthetic.write_experiment(
            directory,
            tasks=[task],
            conditions=["stale"],
            estimators=["grpo"],
            methods=["clip", "troll", "none"],
            batches=9,
            problems=20,
        )
        collected = read_directories(runs, bases)
        final.append(Results(_at_no_trial(collected.runs), collected.items))
    scores = trial_scores(validation(protocol, _trial_score), protocol)
    return board_table(final, scores, best, protocol), final, scores


def _at_no_trial(runs):
    """Without what synthetic runs recorded of tuned settings, which is no trial's."""
    return runs[~runs["metric"].astype(str).str.match("setting/(training/learning_rate|trust_region/)")]


def _trial_score(task, trial, seed):
    return 0.1 * trial.number + (0.05 if trial.name == "troll" else 0.0)


def test_a_rule_that_is_best_at_the_end_of_what_it_may_try_is_named(board):
    _, final, _ = board
    rules = {name: dict(rule) for name, rule in PROTOCOL["rules"].items()}
    rules["clip"]["space"] = {"epsilon_low, epsilon_high": [0.1, 0.2, 0.3, 0.4]}
    rules["troll"] = {"rule": "troll", "space": {"kl_bound": [0.2, 0.05, 0.1, 0.4]}}
    rules["clip"]["learning_rates"] = rules["troll"]["learning_rates"] = [1e-4]
    protocol = Protocol.model_validate(PROTOCOL | {"rules": rules})
    scores = trial_scores(validation(protocol, _trial_score), protocol)

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
    row = runs[(runs["trust_region"] == "clip") & (runs["source"] == "manifest")].iloc[[0]]

    def recorded(value):
        more = row.assign(metric=f"setting/{name}", value=value)
        return [replace(final[0], runs=pd.concat([runs, more], ignore_index=True)), *final[1:]]

    pd.testing.assert_frame_equal(board_table(recorded(right), scores, best, protocol), table)
    with pytest.raises(
        UserError, match=rf"^clip: chains: {name.rpartition('/')[2]} is .* and .* in the best"
    ):
        board_table(recorded(2 * right), scores, best, protocol)


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


# --- a rule of one's own ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranked(board, tmp_path_factory):
    """The board with a rule more, whose runs were made apart from the released ones."""
    _, final, _ = board
    protocol = with_rule(Protocol.model_validate(PROTOCOL), "soft-wall", "my_rules.py:soft_wall", {})
    root, own = tmp_path_factory.mktemp("own"), []
    for task in ("chains", "functions"):
        directory = root / task
        runs, bases = synthetic.write_experiment(
            directory,
            tasks=[task],
            conditions=["stale"],
            estimators=["grpo"],
            methods=["soft-wall"],
            batches=9,
            problems=20,
        )
        collected = read_directories(runs, bases)
        own.append(Results(_at_no_trial(collected.runs), collected.items))
    scores = trial_scores(validation(protocol, _trial_score), protocol)
    finals = dict(zip(("chains", "functions"), zip(final, own, strict=True), strict=True))
    return own_board(protocol, "soft-wall", scores, finals), own


def test_the_own_rule_stands_between_the_released_ones_and_says_where_it_was_made(board, ranked):
    table, own = ranked
    assert len(table) == len(board[0]) + 2
    mine = table[table["trust_region"] == "soft-wall"]
    assert set(mine["runs"]) == {"here"} and set(table.drop(mine.index)["runs"]) == {"released"}
    items = own[0].items
    rates = items[items["trust_region"] == "soft-wall"].assign(rate=lambda frame: frame["c"] / frame["n"])
    row = mine[mine["task"] == "chains"].iloc[0]
    assert row["pass@1"] == pytest.approx(rates["rate"].mean())
    released = table[table["runs"] == "released"].set_index(["task", "trust_region"])["pass@1"]
    before = board[0].set_index(["task", "trust_region"])["pass@1"]
    pd.testing.assert_series_equal(released, before, check_like=True)
    assert any(note.startswith("Base models of chains: ") for note in table.attrs["notes"])


@pytest.mark.parametrize("digest", ["test_data", "base_model", "source"])
def test_what_the_own_runs_were_made_from_is_compared_with_the_release(board, ranked, digest):
    _, final, scores = board
    table, own = ranked
    assert all("the same model" in note for note in table.attrs["notes"] if note.startswith("Base models"))
    assert not any("other source" in note for note in table.attrs["notes"])
    protocol = with_rule(Protocol.model_validate(PROTOCOL), "soft-wall", "my_rules.py:soft_wall", {})
    scores = trial_scores(validation(protocol, _trial_score), protocol)
    other = [replace(one, runs=one.runs.assign(**{f"digest_{digest}": "0" * 64})) for one in own]
    finals = dict(zip(("chains", "functions"), zip(final, other, strict=True), strict=True))
    if digest == "test_data":
        with pytest.raises(UserError, match=r"^chains: the test problems of the runs here \(000000000000\)"):
            own_board(protocol, "soft-wall", scores, finals)
        return
    notes = own_board(protocol, "soft-wall", scores, finals).attrs["notes"]
    said = {"base_model": "not the same model", "source": "made from other source than those here"}
    assert any(said[digest] in note for note in notes)


def test_the_place_of_the_own_rule_is_told_for_each_task(ranked):
    table, _ = ranked
    for line, (task, group) in zip(
        places(table, "soft-wall"), table.groupby("task", sort=False), strict=True
    ):
        number = list(group["trust_region"]).index("soft-wall") + 1
        assert line.startswith(f"{task} (tiny): soft-wall is number {number} of 4, test pass@1 ")


def test_the_own_rule_gets_the_same_number_of_trials():
    known = Protocol.model_validate(PROTOCOL)
    alone = with_rule(known, "mine", "m.py:mine", {})
    assert [trial.learning_rate for trial in alone.trials_of("mine")] == [1e-4, 1.44e-4, 2.08e-4, 3e-4]
    spaced = with_rule(known, "mine", "m.py:mine", {"coefficient": [1, 10]})
    assert [(t.learning_rate, t.settings["coefficient"]) for t in spaced.trials_of("mine")] == [
        (1e-4, 1),
        (1e-4, 10),
        (3e-4, 1),
        (3e-4, 10),
    ]
    with pytest.raises(UserError, match=r"rules\.mine: 6 trials .* and every rule gets 4"):
        with_rule(known, "mine", "m.py:mine", {"coefficient": [1, 2, 3]})
    with pytest.raises(UserError, match="has a rule clip already"):
        with_rule(known, "clip", "m.py:clip", {})
    # Trials may have these names with a number, but not the fresh runs after them, or not their directory.
    for name in ("base", "chains", "trials"):
        with pytest.raises(UserError, match=rf"^m\.py:{name}: .* give the function another name"):
            with_rule(known, name, f"m.py:{name}", {})
    experiment = trials_experiment(alone, "mine")
    assert experiment["experiment"] == "board-mine-trials"
    assert list(experiment["trust_regions"]) == ["mine.1", "mine.2", "mine.3", "mine.4"]


@pytest.fixture
def own_rules(tmp_path, repository, monkeypatch):
    """A file of rules and a protocol; the working directory is a checkout, as `troll rank` wants it."""
    (tmp_path / "my_rules.py").write_text(RULES)
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump(PROTOCOL))
    monkeypatch.chdir(repository)
    return tmp_path / "my_rules.py"


@pytest.mark.parametrize(
    ("rule", "space", "message"),
    [
        ("soft_wall", [], "rank: 'soft_wall' names no file; expected my_rules.py:my_function"),
        ("none.py:soft_wall", [], "trust region: none.py: no such file in "),
        ("{rules}:sot_wall", [], "unknown function 'sot_wall'; valid: soft_wall, careless; did you mean"),
        ("{rules}:soft_wall", ["coefficient"], "rank: --space 'coefficient': expected name=1,2,3"),
        ("{rules}:soft_wall", ["coefficient=[,1"], "rank: --space 'coefficient=[,1': '[' is no value ("),
        (
            "{rules}:soft_wall",
            ["coeficient=1,2"],
            "soft_wall: space: unknown setting 'coeficient'; valid: coeff",
        ),
        ("{rules}:soft_wall", ["coefficient=1,x"], "soft_wall: space: coefficient is 'x', must be"),
        ("{rules}:soft_wall", ["coefficient=1,1"], "soft_wall: space.coefficient: 1 is there twice"),
        ("{rules}:soft_wall", ["coefficient=1,2,3"], "rules.soft-wall: 6 trials"),
        ("{rules}:soft_wall", [], "results/board/trials.csv: no such file; a rule is ranked beside the rel"),
    ],
)
def test_a_rule_that_cannot_be_ranked_is_named(own_rules, monkeypatch, rule, space, message):
    monkeypatch.setattr("troll.cli.rank._check_contract", lambda rule: None)
    monkeypatch.setattr("troll.cli.rank.run_experiment", lambda *_: pytest.fail("nothing is run"))
    with pytest.raises(UserError) as error:
        rank(rule.format(rules=own_rules), space, own_rules.with_name("protocol.yaml"))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_release_that_is_not_whole_is_named_before_a_rule_is_run(protocol, tmp_path):
    path, scores = tmp_path / "trials.csv", trial_scores(validation(protocol, _trial_score), protocol)
    scores.to_csv(path, index=False)
    assert len(released_trials(path, protocol)) == len(scores)
    for table, message in (
        (scores.drop(columns="score"), "not a table of trials; it has no column score"),
        (scores.assign(rule="other"), "has other rules than the protocol"),
        (scores[scores["rule"] != "clip"], "has 0 trials of clip on chains, and the protocol 4"),
    ):
        table.to_csv(path, index=False)
        with pytest.raises(UserError, match=message):
            released_trials(path, protocol)
    path.write_text("")
    with pytest.raises(UserError, match=r"trials\.csv: not a table of trials \(No columns"):
        released_trials(path, protocol)
    with pytest.raises(UserError, match=r"board-chains/runs\.parquet"):
        check_release(tmp_path, protocol)


def test_numbers_of_a_space_may_have_exponents():
    assert _space(["coefficient=0.1,1e-3", "mode=hard,soft"]) == {
        "coefficient": [0.1, 1e-3],
        "mode": ["hard", "soft"],
    }


@pytest.mark.slow
def test_a_rule_that_breaks_the_contract_is_one_line(own_rules, troll):
    result = troll("rank", f"{own_rules}:careless")  # beside the released board
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "careless breaks the contract of rules (test_" in result.stderr


RULES = """
from troll.algorithms.trust_regions import TokenLosses, log_ratio


def soft_wall(new, old, advantages, mask, *, coefficient=1.0):
    \"\"\"Ratio with a square penalty.\"\"\"
    distance = log_ratio(new, old)
    return TokenLosses(-advantages * distance.exp() + coefficient * distance.square())


def careless(new, old, advantages, mask):
    \"\"\"Rewards what it should punish.\"\"\"
    return TokenLosses(advantages * log_ratio(new, old).exp())
"""
