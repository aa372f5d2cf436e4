"""The leaderboard's protocol: as many trials for every rule, the best by validation, fresh seeds."""

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from synthetic_board import PROTOCOL, validation
from typer.testing import CliRunner

from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.analysis.data.results import Results
from troll.analysis.leaderboard.protocol import (
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
from troll.cli.app import app
from troll.cli.workflow import Ended
from troll.common.errors import UserError
from troll.experiment.experiment import resolve
from troll.experiment.files import load_experiment, parse_experiment


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
    monkeypatch.setattr("troll.analysis.data.results.read_results", lambda _: Results(rows, rows))
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


@pytest.mark.parametrize("command", ["trials", "trials by a link", "final"])
def test_the_protocol_is_not_overwritten(tmp_path, protocol, monkeypatch, command):
    rows = validation(protocol, lambda *_: 0.5)
    monkeypatch.setattr("troll.analysis.data.results.read_results", lambda _: Results(rows, rows))
    path, link = tmp_path / "functions.yaml", tmp_path / "link.yaml"
    path.write_text(yaml.safe_dump(PROTOCOL))
    link.symlink_to(path)
    out = {"trials": path, "trials by a link": link, "final": tmp_path}[command]
    words = ["leaderboard", command.split()[0], str(path), "--out", str(out)]
    words += ["--results", "results/board-trials"] if command == "final" else ["--rule", "clip"]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, UserError)
    file = path if command == "final" else out
    assert str(error) == f"{file}: is the protocol, which must not be overwritten; name another place"
    assert yaml.safe_load(path.read_text()) == PROTOCOL
    assert {each.name for each in tmp_path.iterdir()} == {"functions.yaml", "link.yaml"}, "chains neither"


@pytest.mark.parametrize("rules", [[], ["--rule", "clip"]])
def test_results_without_trials_are_called_that(tmp_path, protocol, monkeypatch, rules):
    path = tmp_path / "protocol.yaml"
    path.write_text(yaml.safe_dump(PROTOCOL))
    words = ["leaderboard", "final", str(path), "--results", "results/testbed", "--out", str(tmp_path / "f")]

    def said(rows):
        monkeypatch.setattr("troll.analysis.data.results.read_results", lambda _: Results(rows, rows))
        error = CliRunner().invoke(app, [*words, *rules]).exception
        assert isinstance(error, UserError) and not (tmp_path / "f").exists()
        return str(error)

    rows = validation(protocol, lambda *_: 0.5)
    assert said(rows.assign(trust_region="clip")) == (
        "results/testbed: has no trials of board: none of its trust regions has the name of a trial, such as "
        "clip.1; expected results/board-trials"
    )
    others = rows[~rows["trust_region"].str.startswith("clip")]
    assert said(others).startswith(
        "results/testbed: has no trials of clip, which all rules are compared with"
    )


def test_trials_of_another_protocol_are_called_that(protocol):
    rows = validation(protocol, lambda *_: 0.5)
    more = pd.concat([rows, rows.assign(run_id=rows["run_id"].str.replace("tuned", "stale"))])
    with pytest.raises(UserError, match=r"^trial clip\.1 on chains has 4 runs, and the protocol 2, one for "):
        trial_scores(more, protocol)


def test_the_help_says_which_rules_are_taken():
    said = " ".join(
        CliRunner().invoke(app, ["leaderboard", "final", "--help"]).output.replace("│", " ").split()
    )
    assert "by default those that have trials in RESULTS" in said


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
    monkeypatch.setattr("troll.analysis.data.results.read_results", lambda _: Results(rows, rows))
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
