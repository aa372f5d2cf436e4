"""A protocol that would waste its runs is refused before the first of them, in a line that names the key."""

import copy

import pytest
import yaml
from refusals import error_of, refused
from synthetic_board import PROTOCOL
from typer.testing import CliRunner

from troll.analysis.data.tidy import read_table_file, table_files
from troll.analysis.leaderboard.protocol import Candidate, read_protocol
from troll.cli.app import app
from troll.operations.protocol_checks import checked_protocol


def _set(data, path, value):
    *parents, last = path
    for key in parents:
        data = data[key]
    data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "facts"),
    [
        (("trails",), 4, ("trails",)),
        (("rules", "clip", "spcae"), {}, ("rules.clip.spcae", "spcae", "rule, settings")),
        (("rules", "troll", "space"), {"kl_bund": [0.1, 0.2]}, ("rules.troll.space", "kl_bund")),
        (("rules", "troll", "space"), {"kl_bound": [-1, 0.2]}, ("rules.troll.space", "kl_bound", -1)),
        (("rules", "troll", "space"), {"kl_bound": []}, ("rules.troll.space.kl_bound",)),
        (("rules", "troll", "space"), {"kl_bound": [1, 1]}, ("rules.troll.space.kl_bound", 1)),
        (("rules", "clip", "space"), {"dual_clip": [2, 3]}, ("rules.clip.space.dual_clip", "dual_clip")),
        (("rules", "none", "settings"), {"a": 1}, ("rules.none.settings", "'a'")),
        (("rules", "none", "rule"), "nun", ("rules.none.rule", "'nun'")),
        (("seeds",), [0, 0], ("seeds", 0)),
        (("rounds",), [{"trials_kept": 2, "seeds": [102, 102]}], ("rounds.0.seeds", 102)),
        (("tuning_seeds",), [7, 7], ("tuning_seeds", 7)),
        (("seeds",), [0], ("seeds", 1, 2)),
        (("learning_rates",), [1e-4, -1.0], ("learning_rates.1", "-1.0", "> 0")),
        (("learning_rates",), [1e-4, 1e-4], ("learning_rates", "0.0001")),
        (("experiment", "seeds"), [3], ("experiment.seeds",)),
        (("experiment", "evaluation"), 3, ("experiment", "evaluation", "samples", 3)),
        (("experiment", "tasks"), {"chain": {}}, ("experiment", "tasks", "chain")),
        (
            ("experiment", "conditions", "tuned", "learning_rate"),
            1e-4,
            ("experiment.conditions.tuned", "learning_rate"),
        ),
        (("experiment", "conditions", "stale"), {}, ("experiment.conditions", "stale, tuned")),
        (("experiment", "estimators", "dr"), {"rule": "dr-grpo"}, ("experiment.estimators", "dr, grpo")),
        (
            ("experiment", "training", "validate_every"),
            0,
            ("experiment.training.validate_every", 0, "1 to 1001", "rollout_batches"),
        ),
        (
            ("experiment", "training", "rollout_batches"),
            9,
            ("experiment.training.validate_every", 10, "1 to 9", "rollout_batches"),
        ),
        (
            ("experiment", "conditions", "tuned", "validate_every"),
            0,
            ("experiment.conditions.tuned.validate_every", 0, "1 to 1001", "rollout_batches"),
        ),
        (
            ("experiment", "tasks", "functions", "training"),
            {"validate_every": 0},
            ("experiment.tasks.functions.training.validate_every", 0, "1 to 1001", "rollout_batches"),
        ),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_written(tmp_path, path, value, facts):
    data = copy.deepcopy(PROTOCOL)
    _set(data, path, value)
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump(data))
    words = ["release", "trials", str(tmp_path / "protocol.yaml"), "--out", str(tmp_path / "trials.yaml")]
    error_of(CliRunner().invoke(app, words), tmp_path / "protocol.yaml", *facts)
    assert [each.name for each in tmp_path.iterdir()] == ["protocol.yaml"]


def test_what_overrides_a_protocol_without_validation_counts(tmp_path):
    data = copy.deepcopy(PROTOCOL)
    data["experiment"]["training"]["validate_every"] = 0
    data["experiment"]["conditions"]["tuned"]["validate_every"] = 5
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump(data))
    assert checked_protocol(tmp_path / "protocol.yaml").rules


def test_a_rule_that_is_there_twice_is_named(tmp_path):
    path = tmp_path / "protocol.yaml"
    path.write_text(yaml.safe_dump(PROTOCOL).replace("rules:\n", "rules:\n  clip: {rule: clip}\n"))
    with refused(path, "YAML", "column 3", "'clip'"):
        read_protocol(path)
    path.write_text("- 1\n")
    with refused(path, "name, trials"):
        read_protocol(path)


@pytest.mark.parametrize("path", ["workflow/config/duel.yaml", "results/released/duel/protocol.yaml"])
def test_the_released_protocol_is_right(repository, path):
    assert checked_protocol(repository / path).rules


def test_the_duel_is_tuned_on_the_trials_of_the_first_board(repository):
    duel = read_protocol(repository / "workflow/config/duel.yaml")
    board = yaml.safe_load((repository / "results/released/leaderboard/protocol-0.3.0.yaml").read_text())
    rules = {name: Candidate.model_validate(board["rules"][name]) for name in duel.rules}
    assert duel.rules == rules and duel.tuning_experiments == ["leaderboard-trials", "duel-round-2"]
    same = ("trials", "tuning_seeds", "learning_rates", "baseline")
    assert all(getattr(duel, key) == board[key] for key in same)
    assert duel.experiment == {key: value for key, value in board["experiment"].items() if key != "summary"}


def test_the_duel_has_the_size_that_it_says(repository):
    duel = read_protocol(repository / "workflow/config/duel.yaml")
    cells = len(duel.rules) * len(duel.experiment["tasks"])
    assert cells * sum(further.trials_kept * len(further.seeds) for further in duel.rounds) == 72
    assert cells * len(duel.seeds) == 180


def test_nobody_has_seen_the_seeds_of_the_duel(repository):
    """Neither in an experiment file nor in a released table, but for those of the duel itself."""
    duel = read_protocol(repository / "workflow/config/duel.yaml")
    fresh = {*duel.seeds, *duel.rounds[0].seeds}
    for path in (repository / "workflow/config").glob("*.yaml"):
        known = yaml.safe_load(path.read_text())
        if path.stem != "duel" and isinstance(known, dict):
            assert not fresh & {*known.get("seeds", []), *known.get("tuning_seeds", [])}, path
    seen = 0
    for directory in (repository / "results/released").glob("*/tidy"):
        if not directory.parent.name.startswith("duel-"):
            for path in table_files(directory.parent).values():
                seeds = set(read_table_file(path, ["seed"])["seed"].dropna())
                assert not fresh & seeds, path
                seen += len(seeds)
    assert seen > 50
