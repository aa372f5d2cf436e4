"""The leaderboard's protocol: as many trials for every rule, the best by validation, fresh seeds."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refusals import error_of, refused
from synthetic_board import IN_ROUNDS, PROTOCOL, SENTENCES, compared, validation
from typer.testing import CliRunner

from troll.analysis.data.results import Results
from troll.analysis.leaderboard.inputs import choose, expected_best, kept_for, trial_scores
from troll.analysis.leaderboard.protocol import (
    Protocol,
    final_experiments,
    rate,
    read_protocol,
    round_experiment,
    trials_experiment,
)
from troll.analysis.render.formats import write_table
from troll.cli.app import app
from troll.experiment.experiment import resolve
from troll.experiment.files import load_experiment, parse_experiment
from troll.operations.leaderboard import run_rounds
from troll.operations.workflow import Ended


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


# By trial and seed: the first is lucky in the first round, the third the best in the end. The fourth,
# which was not kept, would have been better than all of them.
ROUNDS = {
    1: {100: 0.9, 101: 0.7, 102: 0.1, 103: 0.1, 104: 0.9},
    2: {100: 0.1, 101: 0.1, 102: 0.9, 103: 0.9, 104: 0.9},
    3: {100: 0.5, 101: 0.7, 102: 0.4, 103: 0.4, 104: 0.0},
    4: {100: 0.7, 101: 0.4, 102: 1.0, 103: 1.0, 104: 1.0},
}


def in_rounds(protocol, until=2):
    """The runs of the first round and of so many further ones; chains has its trials in opposite order."""

    def score(task, trial, seed):
        return ROUNDS[trial.number if task == "functions" else 5 - trial.number][seed]

    runs = [validation(protocol, score)]
    for number, one in enumerate(protocol.rounds[:until], start=1):
        kept = kept_for(trial_scores(pd.concat(runs), protocol, rounds=number - 1), protocol, number)
        runs.append(validation(protocol, score, one.seeds, kept))
    return pd.concat(runs)


def test_each_round_keeps_the_best_of_each_rule_and_task_on_all_seeds_so_far():
    protocol = Protocol.model_validate(IN_ROUNDS)
    assert protocol.stages == [[100, 101], [102, 103], [104]]
    runs = in_rounds(protocol)
    kept = kept_for(trial_scores(runs, protocol, rounds=0), protocol, 1)
    assert {rule for _, rule in kept} == {"clip", "troll", "none"}
    for rule in protocol.rules:
        assert [trial.number for trial in kept["functions", rule]] == [1, 3]
        assert [trial.number for trial in kept["chains", rule]] == [2, 4]
    second = kept_for(trial_scores(runs, protocol, rounds=1), protocol, 2)
    assert [trial.number for trial in second["functions", "clip"]] == [3], (
        "0.5 over four seeds, not 0.45 or 0.55 over two"
    )
    scores = trial_scores(runs, protocol)
    own = scores[(scores["task"] == "functions") & (scores["rule"] == "troll")].set_index("trial")
    assert own["score"].to_dict() == pytest.approx({1: 0.45, 2: 0.1, 3: 0.4, 4: 0.55})
    assert own["first"].to_dict() == pytest.approx({1: 0.8, 2: 0.1, 3: 0.6, 4: 0.55})
    assert own["runs"].to_dict() == {1: 4, 2: 2, 3: 5, 4: 2}
    assert own["rounds"].to_dict() == {1: 2, 2: 1, 3: 3, 4: 1}
    best = choose(scores, protocol)
    assert {trial.number for (task, _), trial in best.items() if task == "functions"} == {3}, "not the first"
    assert {trial.number for (task, _), trial in best.items() if task == "chains"} == {2}


def test_a_round_is_an_experiment_with_the_trials_that_each_task_kept():
    protocol = Protocol.model_validate(IN_ROUNDS)
    scores = trial_scores(in_rounds(protocol, 0), protocol, rounds=0)
    experiment = parse_experiment(round_experiment(protocol, 1, kept_for(scores, protocol, 1)), "round")
    assert experiment.experiment == "board-round-2" and experiment.evaluation.samples == 1
    runs = {(run.task, run.trust_region, run.seed) for run in experiment.runs()}
    assert runs == {
        (task, f"{rule}.{number}", seed)
        for task, numbers in (("chains", (2, 4)), ("functions", (1, 3)))
        for rule in protocol.rules
        for number in numbers
        for seed in (102, 103)
    }
    configs = {resolve(experiment, run).training.learning_rate for run in experiment.runs()}
    assert configs == {1e-5, 3e-5, 1e-4, 3e-4}
    own = round_experiment(protocol, 1, kept_for(scores, protocol, 1), "troll")
    assert own["experiment"] == "board-troll-round-2"
    assert sorted(own["trust_regions"]) == ["troll.1", "troll.2", "troll.3", "troll.4"]


def test_a_run_that_a_round_lacks_is_named():
    protocol = Protocol.model_validate(IN_ROUNDS)
    runs = in_rounds(protocol)
    lost = runs[runs["run_id"] != "tiny/functions/troll.3/grpo/tuned/seed103"]
    with refused("trial troll.3", "functions", "3 of 4"):
        trial_scores(lost, protocol)
    assert len(trial_scores(lost, protocol, rounds=0)) == 24, "the first round is whole"


def test_a_trial_that_stopped_at_a_loss_that_is_not_finite_counts_0():
    protocol = Protocol.model_validate(PROTOCOL | compared())
    runs = validation(protocol, lambda task, trial, seed: 0.8)
    lost = runs["run_id"] == "tiny/chains/clip.1/grpo/tuned/seed100"
    stop = runs[lost].tail(1).assign(step=9, source="manifest", metric="not_finite", value=9.0)
    runs = pd.concat([runs[~(lost & (runs["step"] == 12))], stop], ignore_index=True)
    scores = trial_scores(runs, protocol).set_index(["task", "rule", "trial"])
    assert scores.loc[("chains", "clip", 1), "score"] == pytest.approx(0.4)
    assert scores["score"].drop(("chains", "clip", 1)).eq(0.8).all() and scores["after"].eq(1).all()
    assert choose(trial_scores(runs, protocol), protocol)["chains", "clip"].number == 2


def test_runs_that_cannot_go_on_count_unless_the_protocol_says_otherwise():
    known = Protocol.model_validate(PROTOCOL)
    assert parse_experiment(trials_experiment(known), "known").not_finite == "zero"
    best = {
        (task, name): known.trials_of(name)[0] for task in ("chains", "functions") for name in known.rules
    }
    assert {one["not_finite"] for one in final_experiments(known, best).values()} == {"zero"}
    stop = Protocol.model_validate(PROTOCOL | {"not_finite": "stop"})
    assert parse_experiment(trials_experiment(stop), "stop").not_finite == "stop"


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
    settings = "epsilon_low 0.2, epsilon_high 0.2"
    assert f"| chains | clip | 2 | 1e-4 | {settings} | 25.0 | 2 | 100.0 | 25.0 | 1 |" in lines
    assert "| functions | none | 4 | 3e-4 | – | 25.0 | 2 | 100.0 | 25.0 | 1 |" in lines


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"seeds": [0, 100]}, ("seeds", 100)),
        ({"baseline": "klip"}, ("baseline", "klip")),
        ({"trials": 6}, ("rules.clip", "4 trials", "2 learning rates", "2 settings", 6)),
        ({"trial": 6}, ("'trial'",)),
        ({"rules": PROTOCOL["rules"] | {"base": PROTOCOL["rules"]["none"]}}, ("rules.base",)),
        ({"tuning_seeds": []}, ("tuning_seeds",)),
        ({"rounds": [{"trials_kept": 5, "seeds": [102]}]}, ("rounds.0.trials_kept", 5, 4)),
        (
            {"rounds": [{"trials_kept": 2, "seeds": [102]}, {"trials_kept": 3, "seeds": [103]}]},
            ("rounds.1.trials_kept", 3, 2),
        ),
        (
            {"rounds": [{"trials_kept": 2, "seeds": [102]}, {"trials_kept": 2, "seeds": [102]}]},
            ("rounds.1.seeds", 102),
        ),
        ({"rounds": [{"trials_kept": 2, "seeds": [101]}]}, ("rounds.0.seeds", 101)),
        ({"rounds": [{"trials_kept": 2, "seeds": [1]}]}, ("seeds", 1)),
        ({"rounds": [{"trials_kept": 0, "seeds": [102]}]}, ("rounds.0.trials_kept", 0, ">= 1")),
        ({"rounds": [{"seeds": [102]}]}, ("rounds.0.trials_kept",)),
        (compared(contrasts=[]), ("comparison.contrasts", 1)),
        (compared(contrasts=[{"method": "trol", "baseline": "clip"}]), ("comparison.contrasts", "trol")),
        (
            compared(contrasts=[{"method": "clip", "baseline": "clip"}]),
            ("comparison", "contrasts", "clip minus clip"),
        ),
        (
            compared(
                contrasts=[{"method": "troll", "baseline": "clip"}, {"method": "clip", "baseline": "troll"}]
            ),
            ("comparison", "contrasts", "clip minus troll"),
        ),
        (compared(margin=0), ("comparison.margin", 0, "> 0")),
        (compared(endpoints=["pass@2"]), ("comparison.endpoints.0", "'pass@2'", "'pass@1'", "area")),
        (compared(endpoints=["area", "area"]), ("comparison", "endpoints", "area, area")),
        (
            compared(sentences=SENTENCES | {"below": "{metod} is below"}),
            ("comparison.sentences.below", "{metod}", "method, baseline"),
        ),
        (compared(sentences=SENTENCES | {"below": "{method is below"}), ("comparison.sentences.below",)),
        (
            compared(sentences={name: text for name, text in SENTENCES.items() if name != "small"}),
            ("comparison.sentences.small",),
        ),
    ],
)
def test_an_unfair_protocol_is_refused_in_one_line(tmp_path, change, facts):
    path = tmp_path / "protocol.yaml"
    path.write_text(yaml.safe_dump(PROTOCOL | change))
    with refused(path, *facts):
        read_protocol(path)


@pytest.fixture
def path(tmp_path):
    """A file with the protocol."""
    file = tmp_path / "functions.yaml"
    file.write_text(yaml.safe_dump(PROTOCOL))
    return file


@pytest.fixture
def found(protocol, monkeypatch):
    """Lets every directory of results hold the trials with these scores, of these trust regions."""

    def let(score, **changes):
        rows = validation(protocol, score).assign(**changes)
        monkeypatch.setattr("troll.operations.leaderboard.read_results", lambda _: Results(rows, rows))

    return let


def test_the_commands_write_experiments_that_can_be_read(tmp_path, path, found):
    result = CliRunner().invoke(app, ["release", "trials", str(path), "--out", str(tmp_path / "t.yaml")])
    assert result.exit_code == 0, result.output
    assert load_experiment(tmp_path / "t.yaml").experiment == "board-trials"
    found(lambda task, trial, seed: 0.1 * trial.number)
    words = ["release", "final", str(path), "--results", "results/board-trials", "--out", str(tmp_path / "f")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    experiment = load_experiment(tmp_path / "f/functions.yaml")
    assert experiment.trust_regions["troll"].settings == {"kl_bound": 0.2}


@pytest.mark.parametrize("command", ["trials", "trials by a link", "final"])
def test_the_protocol_is_not_overwritten(tmp_path, path, found, command):
    found(lambda *_: 0.5)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    out = {"trials": path, "trials by a link": link, "final": tmp_path}[command]
    words = ["release", command.split()[0], str(path), "--out", str(out)]
    words += ["--results", "results/board-trials"] if command == "final" else []
    error_of(CliRunner().invoke(app, words), path if command == "final" else out, "protocol")
    assert yaml.safe_load(path.read_text()) == PROTOCOL
    assert {each.name for each in tmp_path.iterdir()} == {"functions.yaml", "link.yaml"}, "chains neither"


def test_results_without_trials_are_called_that(tmp_path, path, found):
    found(lambda *_: 0.5, trust_region="clip")
    words = ["release", "final", str(path), "--results", "results/testbed", "--out", str(tmp_path / "f")]
    error_of(CliRunner().invoke(app, words), "trial clip.1", "chains", "0 of 2")
    assert not (tmp_path / "f").exists()


def test_trials_of_another_protocol_are_called_that(protocol):
    rows = validation(protocol, lambda *_: 0.5)
    more = pd.concat([rows, rows.assign(run_id=rows["run_id"].str.replace("tuned", "stale"))])
    with refused("trial clip.1", "chains", 4, 2):
        trial_scores(more, protocol)


@pytest.fixture
def workflow(tmp_path, found, monkeypatch):
    """A checkout whose workflow only notes which experiments it ran, and fails where it is told to."""
    ran, failing = [], set()

    def run_workflow(path, targets, log, *, cores):
        experiment = load_experiment(path)
        ran.append((experiment.experiment, targets, cores, sorted(experiment.trust_regions)))
        return Ended(int(experiment.experiment in failing), "no space left")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").touch()
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump(PROTOCOL))
    found(lambda task, trial, seed: 0.1 * trial.number)
    monkeypatch.setattr("troll.operations.workflow.run_workflow", run_workflow)
    monkeypatch.setattr(
        "troll.operations.leaderboard.make_board", lambda *made: ran.append(made[1:]) or "said"
    )
    return ran, failing


def test_one_command_runs_trials_then_fresh_seeds_then_makes_the_board(workflow):
    ran, _ = workflow
    result = CliRunner().invoke(app, ["rank", "protocol.yaml", "--cores", "3"])
    assert result.exit_code == 0, result.output
    rules = ["clip", "none", "troll"]
    variants = sorted(f"{rule}.{number}" for rule in rules for number in range(1, 5))
    assert ran[:3] == [
        ("board-trials", ["all"], 3, variants),
        ("board-chains", ["all"], 3, rules),
        ("board-functions", ["all"], 3, rules),
    ]
    trials, *finals = (Path("results", f"board-{part}") for part in ("trials", "chains", "functions"))
    assert ran[3:] == [([trials], finals, Path("results/board"))]
    best = load_experiment(Path("results/board/experiments/board-chains.yaml"))
    assert best.trust_regions["troll"].settings == {"kl_bound": 0.2}, "the best trial"
    assert read_protocol(Path("results/board/protocol.yaml")).rules.keys() == PROTOCOL["rules"].keys()


@pytest.fixture
def rounds(workflow, monkeypatch):
    """The same, with a protocol of three rounds whose first is another's; and what its directories hold."""
    contents = IN_ROUNDS | {"tuned_in": "results/other-trials"}
    protocol = Protocol.model_validate(contents)
    Path("protocol.yaml").write_text(yaml.safe_dump(contents))
    runs = in_rounds(protocol).assign(settings="", experiment="other-trials")
    places = {"other-trials": [100, 101], "board-round-2": [102, 103], "board-round-3": [104]}
    tables = {name: runs[runs["seed"].isin(seeds)] for name, seeds in places.items()}
    monkeypatch.setattr(
        "troll.operations.leaderboard.read_results", lambda path: Results(tables[path.name], runs)
    )
    monkeypatch.setattr("troll.analysis.leaderboard.inputs.concatenated", lambda frames, _: pd.concat(frames))
    return workflow[0], tables


def test_one_command_runs_round_after_round_and_not_the_first_that_another_protocol_ran(rounds):
    ran, _ = rounds
    result = CliRunner().invoke(app, ["rank", "protocol.yaml", "--cores", "3"])
    assert result.exit_code == 0, result.output
    assert [name for name, *_ in ran[:-1]] == [
        "board-round-2",
        "board-round-3",
        "board-chains",
        "board-functions",
    ]
    assert ran[1][3] == [f"{rule}.{number}" for rule in ("clip", "none", "troll") for number in (2, 3)]
    places = [Path("results", name) for name in ("other-trials", "board-round-2", "board-round-3")]
    assert ran[-1][0] == places
    best = load_experiment(Path("results/board/experiments/board-functions.yaml"))
    assert best.trust_regions["troll"].settings == {"kl_bound": 0.05}
    assert best.trust_regions["troll"].training == {"learning_rate": 3e-4}, "the third of the trials"


def test_a_rule_of_ones_own_is_run_in_all_rounds(rounds):
    ran, tables = rounds
    protocol = read_protocol(Path("protocol.yaml"))
    for place, part in zip(list(tables), ("trials", "round-2", "round-3"), strict=True):
        own = tables[place]["trust_region"].str.startswith("troll")
        tables[f"board-troll-{part}"] = tables[place][own]
    done = run_rounds(protocol, Path("own"), 2, Path("protocol.yaml"), "troll")
    assert done == [Path("results", f"board-troll-{part}") for part in ("trials", "round-2", "round-3")]
    assert [(name, variants) for name, _, _, variants in ran] == [
        ("board-troll-trials", ["troll.1", "troll.2", "troll.3", "troll.4"]),
        ("board-troll-round-2", ["troll.1", "troll.2", "troll.3", "troll.4"]),
        ("board-troll-round-3", ["troll.2", "troll.3"]),
    ]


def test_the_steps_can_be_taken_one_by_one(rounds):
    _, tables = rounds

    def step(*words, command="trials"):
        return CliRunner().invoke(app, ["release", command, "protocol.yaml", *words, "--out", "out"])

    def results(*names):
        return [word for name in names for word in ("--results", f"results/{name}")]

    assert step(*results("other-trials")).exit_code == 0
    assert load_experiment(Path("out")).experiment == "board-round-2"
    assert step(*results("other-trials", "board-round-2")).exit_code == 0
    third = load_experiment(Path("out"))
    assert (third.experiment, third.seeds, len(third.runs())) == ("board-round-3", [104], 6)
    for words, facts in (
        ([], ("protocol.yaml", "first round", "results/other-trials")),
        (results(*tables), ("protocol.yaml", "3 rounds", "troll release final")),
        (results("other-trials", "other-trials"), ("--results", "results/other-trials")),
        (results("board-round-2"), ("results/board-round-2", "run tiny/chains/clip.2/grpo/tuned/seed102")),
        (results("other-trials", "other-trials/"), ("--results", "results/other-trials")),
    ):
        error_of(step(*words), *facts)
    Path("out").unlink()
    assert step(*results(*tables), command="final").exit_code == 0
    assert load_experiment(Path("out/chains.yaml")).trust_regions["none"].training == {"learning_rate": 3e-5}
    error_of(step(*results("other-trials", "board-round-2"), command="final"), "4 of 5")
    tables["more"] = tables["board-round-3"]
    error_of(step(*results(*tables), command="final"), "results/more", "board", "3 rounds")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({}, ()),
        ({"training": {"rollout_batches": 1001, "mini_batches": 8}}, ()),
        ({"training": {"mini_batches": 4}}, ("training/mini_batches", 4, 8, "tuned_in")),
        ({"trust_region": {"settings": {"kl_bound": 0.3}}}, ("trust_region/settings/kl_bound", "0.3")),
        ({"model": {"vocabulary": 64}}, ("model/vocabulary", 64, 512)),
        ({"task": {"validation": 5}}, ("task/validation", 5, 4)),
    ],
)
def test_a_first_round_of_another_protocol_has_the_same_settings(rounds, change, facts):
    _, tables = rounds
    runs = tables["other-trials"]
    mine = runs["run_id"] == "tiny/functions/troll.2/grpo/tuned/seed101"
    tables["other-trials"] = runs.assign(settings=np.where(mine, json.dumps(change) if change else "", ""))
    result = CliRunner().invoke(app, ["rank", "protocol.yaml"])
    if not facts:
        assert result.exit_code == 0, result.output
        return
    error_of(result, "results/other-trials", "run tiny/functions/troll.2/grpo/tuned/seed101", *facts)


def test_a_first_round_with_other_seeds_is_none(rounds):
    ran, tables = rounds
    tables["other-trials"] = tables["board-round-2"]
    result = CliRunner().invoke(app, ["rank", "protocol.yaml"])
    error_of(result, "results/other-trials", "board", "tiny/chains/clip.1/grpo/tuned/seed100")
    assert not ran


def test_a_step_that_fails_ends_it_in_one_line_and_makes_no_board(workflow):
    ran, failing = workflow
    failing.add("board-chains")
    result = CliRunner().invoke(app, ["rank", "protocol.yaml"])
    error_of(result, "results/board/experiments/board-chains.log", "status 1", "no space left")
    assert [name for name, *_ in ran] == ["board-trials", "board-chains"]
    assert not Path("results/board/protocol.yaml").exists()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_expected_best_is_the_mean_over_all_subsets(scores, data):
    budget = data.draw(st.integers(1, len(scores)))
    subsets = [max(subset) for subset in itertools.combinations(scores, budget)]
    assert math.isclose(expected_best(scores, budget), float(np.mean(subsets)), abs_tol=1e-12)


def test_expected_best_of_all_is_the_best_and_of_too_many_an_error():
    assert expected_best([0.1, 0.7, 0.3], 3) == 0.7
    with refused("budget", 4, "1 to 3"):
        expected_best([0.1, 0.7, 0.3], 4)
