"""A rule of one's own, beside the rules of a protocol."""

from dataclasses import replace

import pandas as pd
import pytest
import yaml
from refusals import error_of, refused
from synthetic_board import PROTOCOL, fresh_runs, trial_score, validation

from troll.analysis.leaderboard.board import board_table
from troll.analysis.leaderboard.contrasts import contrasts_table
from troll.analysis.leaderboard.inputs import choose, trial_scores, tuning_values
from troll.analysis.leaderboard.own_rule import check_release, notes, together, with_rule
from troll.analysis.leaderboard.protocol import Protocol, trials_experiment
from troll.common import numerics
from troll.experiment.files import parse_experiment
from troll.operations.rank import _check_contract, _space, rank

OWN = with_rule(Protocol.model_validate(PROTOCOL), "soft-wall", "my_rules.py:soft_wall", {})


@pytest.fixture(scope="module")
def pairs(board, tmp_path_factory):
    """Fresh seeds by task: of the protocol's rules, and of a rule whose runs were made apart from them."""
    _, final, _ = board
    root = tmp_path_factory.mktemp("own")
    own = [fresh_runs(root / task, task, ["soft-wall"]) for task in ("chains", "functions")]
    return dict(zip(("chains", "functions"), zip(final, own, strict=True), strict=True))


def test_the_own_rule_is_compared_with_the_baseline_alone_beside_the_others(board, pairs):
    tuning = validation(OWN, trial_score)
    scores, final = trial_scores(tuning, OWN), together(pairs, "soft-wall")
    table = board_table(final, scores, choose(scores, OWN), OWN)
    assert len(table) == len(board[0]) + 2
    before, after = (one.set_index(["task", "trust_region"])["pass@1"] for one in (board[0], table))
    pd.testing.assert_series_equal(after.loc[before.index], before)
    contrasts = contrasts_table(final, OWN, tuning_values(tuning, scores, OWN))
    assert set(contrasts["method"]) == {"soft-wall"} and set(contrasts["baseline"]) == {"clip"}
    assert "with the uncertainty of the tuning" in set(contrasts["analysis"])
    by_task = table[table["trust_region"] == "soft-wall"]["difference"]
    assert contrasts.iloc[0]["difference"] == pytest.approx(by_task.mean())


@pytest.mark.parametrize("what", ["digest_test_data", "digest_base_model", "numerics"])
def test_what_the_own_runs_were_made_from_is_compared_with_the_release(pairs, monkeypatch, what):
    assert all("the same model" in note for note in notes(pairs)) and len(notes(pairs)) == 2
    monkeypatch.setattr(numerics, "CHANGES", (numerics.Change(99, "all is otherwise", ("clip",)),))
    value = 99 if what == "numerics" else "0" * 64
    other = {
        task: (released, replace(own, runs=own.runs.assign(**{what: value})))
        for task, (released, own) in pairs.items()
    }
    if what == "digest_test_data":
        with refused("chains", "000000000000"):
            together(other, "soft-wall")
        return
    said = {"digest_base_model": "not the same model", "numerics": "made with other numerics than those here"}
    assert any(said[what] in note for note in notes(other))
    monkeypatch.setattr(numerics, "CHANGES", (numerics.Change(99, "all is otherwise", ("quatro",)),))
    assert not any("other numerics" in note for note in notes(other)), "what changed concerns no released run"


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
    with refused("rules.mine", "6 trials", 4):
        with_rule(known, "mine", "m.py:mine", {"coefficient": [1, 2, 3]})
    with refused("m.py:clip", "rule clip"):
        with_rule(known, "clip", "m.py:clip", {})
    # Trials may have these names with a number, but not the fresh runs after them, or not their directory.
    for name in ("base", "chains", "trials"):
        with refused(f"m.py:{name}", f"name {name}"):
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
    ("rule", "space", "facts"),
    [
        ("soft_wall", [], ("rank", "'soft_wall'", "my_rules.py:my_function")),
        ("none.py:soft_wall", [], ("none.py",)),
        ("{rules}:sot_wall", [], ("sot_wall", "soft_wall, two, careless")),
        ("{rules}:soft_wall", ["coefficient"], ("rank", "--space", "'coefficient'", "name=1,2,3")),
        ("{rules}:soft_wall", ["coefficient=[,1"], ("rank", "--space", "'coefficient=[,1'", "'['")),
        ("{rules}:soft_wall", ["coef=1,2,3"], ("rank", "--space", "coef", "soft_wall", "'coefficient'")),
        ("{rules}:careless", ["coefficient=1"], ("rank", "--space", "coefficient")),
        ("{rules}:soft_wall", ["coefficient=1,2", "coefficient=3,4"], ("rank", "--space", "coefficient")),
        ("{rules}:two", ["left, right=1,2", " left=3"], ("rank", "--space", "left")),
        ("{rules}:soft_wall", ["coefficient=1,x"], ("soft_wall", "space", "coefficient", "'x'")),
        ("{rules}:soft_wall", ["coefficient=1,1"], ("soft_wall", "space.coefficient", 1)),
        (
            "{rules}:soft_wall",
            ["coefficient=1,2,3"],
            ("rank", "--space", "coefficient", "3 values", "2 learning rates", "4 trials"),
        ),
        ("{rules}:soft_wall", ["coefficient=1"], ("rank", "--space", "coefficient", "1 value", 2)),
        (
            "{rules}:two",
            ["left=1,2", "right=1,2"],
            ("rank", "--space", "left and right", "4 combinations", 2),
        ),
        ("{rules}:soft_wall", [], ("results/board-trials/tidy",)),
    ],
)
def test_a_rule_that_cannot_be_ranked_is_named(own_rules, monkeypatch, rule, space, facts):
    monkeypatch.setattr("troll.operations.rank._check_contract", lambda rule: None)
    monkeypatch.setattr(
        "troll.operations.leaderboard.run_experiment", lambda *_: pytest.fail("nothing is run")
    )
    with refused(*facts):
        rank(rule.format(rules=own_rules), space, own_rules.with_name("protocol.yaml"), cores=1)


def test_a_release_that_is_not_whole_is_named_before_a_rule_is_run(protocol, tmp_path):
    with refused(tmp_path / "board-trials/tidy"):
        check_release(tmp_path, protocol)


def test_the_own_rule_is_tuned_and_run_and_the_others_are_not(own_rules, pairs, monkeypatch, tmp_path):
    """The whole command, with a workflow that only notes what it would have run."""
    ran = []

    def run_experiment(experiment, *_):
        parsed = parse_experiment(experiment, "run")
        ran.append((parsed.experiment, sorted({run.seed for run in parsed.runs()})))
        return tmp_path / parsed.experiment

    tuning = validation(OWN, trial_score)
    mine = tuning["trust_region"].str.startswith("soft-wall")
    monkeypatch.setattr("troll.operations.rank.RESULTS", tmp_path)
    monkeypatch.setattr("troll.operations.rank._check_contract", lambda rule: None)
    monkeypatch.setattr("troll.operations.rank.own_rule.check_release", lambda *_: None)
    monkeypatch.setattr("troll.operations.rank.own_rule.read_finals", lambda *_: pairs)
    monkeypatch.setattr("troll.operations.rank.concatenated", lambda frames, _: pd.concat(frames))
    monkeypatch.setattr("troll.operations.leaderboard.run_experiment", run_experiment)
    monkeypatch.setattr(
        "troll.operations.rank.read_rounds",
        lambda directories, _: tuning[mine if "soft-wall" in str(directories[0]) else ~mine],
    )
    outcome, *_, where = rank(f"{own_rules}:soft_wall", [], own_rules.with_name("protocol.yaml"), cores=1)
    assert ran == [
        ("board-soft-wall-trials", [100, 101]),
        ("board-soft-wall-chains", [0, 1, 2]),
        ("board-soft-wall-functions", [0, 1, 2]),
    ]
    assert outcome.startswith(("soft-wall ends", "soft-wall and clip: ")) and "contrasts.md" in where
    assert outcome in (tmp_path / "board-soft-wall/contrasts.md").read_text()


def test_numbers_of_a_space_may_have_exponents():
    assert _space(["coefficient=0.1,1e-3", "mode=hard,soft"]) == {
        "coefficient": [0.1, 1e-3],
        "mode": ["hard", "soft"],
    }


def test_learning_rates_that_leave_no_room_for_a_space_are_named(own_rules):
    path = own_rules.with_name("protocol.yaml")
    rules = {name: rule | {"learning_rates": [1e-4, 3e-4]} for name, rule in PROTOCOL["rules"].items()}
    rules["none"]["learning_rates"] = PROTOCOL["rules"]["none"]["learning_rates"]
    path.write_text(yaml.safe_dump(PROTOCOL | {"rules": rules, "learning_rates": [1e-4, 2e-4, 3e-4]}))
    with refused("3 learning rates", "4 trials"):
        rank(f"{own_rules}:soft_wall", ["coefficient=1,2"], path, cores=1)


@pytest.mark.slow
def test_the_contract_is_tested_whatever_the_rule_is_called(tmp_path, repository, monkeypatch):
    (tmp_path / "my rules.py").write_text(RULES.replace("soft_wall", "weiß").replace("careless", "maß"))
    monkeypatch.chdir(repository)
    _check_contract(f"{tmp_path}/my rules.py:weiß")
    with refused("maß", "test_", f"RULE='{tmp_path}/my rules.py:maß'"):
        _check_contract(f"{tmp_path}/my rules.py:maß")


@pytest.mark.slow
def test_a_rule_that_breaks_the_contract_is_one_line(own_rules, troll):
    result = troll("rank", f"{own_rules}:careless")  # beside the released board
    error_of(result, "careless", "test_")


RULES = """
from troll.algorithms.trust_regions import TokenLosses, log_ratio


def soft_wall(new, old, advantages, mask, *, coefficient=1.0):
    \"\"\"Ratio with a square penalty.\"\"\"
    distance = log_ratio(new, old)
    return TokenLosses(-advantages * distance.exp() + coefficient * distance.square())


def two(new, old, advantages, mask, *, left=1.0, right=1.0):
    \"\"\"Ratio with two penalties.\"\"\"
    return soft_wall(new, old, advantages, mask, coefficient=left + right)


def careless(new, old, advantages, mask):
    \"\"\"Rewards what it should punish.\"\"\"
    return TokenLosses(advantages * log_ratio(new, old).exp())
"""
