"""A rule of one's own, ranked between the released ones."""

from dataclasses import replace

import pandas as pd
import pytest
import synthetic
import yaml
from synthetic_board import PROTOCOL, at_no_trial, trial_score, validation

from troll.analysis.data.results import Results
from troll.analysis.data.runs import read_directories
from troll.analysis.leaderboard.inputs import trial_scores
from troll.analysis.leaderboard.own_rule import check_release, own_board, places, released_trials, with_rule
from troll.analysis.leaderboard.protocol import Protocol, trials_experiment
from troll.cli.rank import _check_contract, _space, rank
from troll.common import numerics
from troll.common.errors import UserError


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
        own.append(Results(at_no_trial(collected.runs), collected.items))
    scores = trial_scores(validation(protocol, trial_score), protocol)
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


@pytest.mark.parametrize("what", ["digest_test_data", "digest_base_model", "numerics"])
def test_what_the_own_runs_were_made_from_is_compared_with_the_release(board, ranked, monkeypatch, what):
    _, final, scores = board
    table, own = ranked
    assert all("the same model" in note for note in table.attrs["notes"] if note.startswith("Base models"))
    assert not any("other numerics" in note for note in table.attrs["notes"])
    protocol = with_rule(Protocol.model_validate(PROTOCOL), "soft-wall", "my_rules.py:soft_wall", {})
    scores = trial_scores(validation(protocol, trial_score), protocol)
    monkeypatch.setattr(numerics, "CHANGES", (numerics.Change(99, "all is otherwise", ("clip",)),))
    other = [
        replace(one, runs=one.runs.assign(**{what: 99 if what == "numerics" else "0" * 64})) for one in own
    ]
    finals = dict(zip(("chains", "functions"), zip(final, other, strict=True), strict=True))
    if what == "digest_test_data":
        with pytest.raises(UserError, match=r"^chains: the test problems of the runs here \(000000000000\)"):
            own_board(protocol, "soft-wall", scores, finals)
        return
    notes = own_board(protocol, "soft-wall", scores, finals).attrs["notes"]
    said = {"digest_base_model": "not the same model", "numerics": "made with other numerics than those here"}
    assert any(said[what] in note for note in notes)
    monkeypatch.setattr(numerics, "CHANGES", (numerics.Change(99, "all is otherwise", ("quatro",)),))
    notes = own_board(protocol, "soft-wall", scores, finals).attrs["notes"]
    assert not any("other numerics" in note for note in notes), "what changed concerns no released run"


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
        (
            "{rules}:sot_wall",
            [],
            "unknown function 'sot_wall'; valid: soft_wall, two, careless; did you mean",
        ),
        ("{rules}:soft_wall", ["coefficient"], "rank: --space 'coefficient': expected name=1,2,3"),
        ("{rules}:soft_wall", ["coefficient=[,1"], "rank: --space 'coefficient=[,1': '[' is no value ("),
        (
            "{rules}:soft_wall",
            ["coef=1,2,3"],
            "rank: --space: coef: unknown setting of soft_wall; it has coefficient; did you mean 'coeff",
        ),
        (
            "{rules}:careless",
            ["coefficient=1"],
            "rank: --space: coefficient: unknown setting of careless; it has none",
        ),
        (
            "{rules}:soft_wall",
            ["coefficient=1,2", "coefficient=3,4"],
            "rank: --space: coefficient is given twice; give all its values at once",
        ),
        ("{rules}:two", ["left, right=1,2", " left=3"], "rank: --space: left is given twice; "),
        ("{rules}:soft_wall", ["coefficient=1,x"], "soft_wall: space: coefficient is 'x', must be"),
        ("{rules}:soft_wall", ["coefficient=1,1"], "soft_wall: space.coefficient: 1 is there twice"),
        (
            "{rules}:soft_wall",
            ["coefficient=1,2,3"],
            "rank: --space: coefficient: 3 values, must be 2: with 2 learning rates, they make the 4 trials",
        ),
        ("{rules}:soft_wall", ["coefficient=1"], "rank: --space: coefficient: 1 value, must be 2: "),
        (
            "{rules}:two",
            ["left=1,2", "right=1,2"],
            "rank: --space: left and right: 4 combinations, must be 2: with 2 learning rates, ",
        ),
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
    path, scores = tmp_path / "trials.csv", trial_scores(validation(protocol, trial_score), protocol)
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
    with pytest.raises(UserError, match=r"board-chains/tidy: no tables"):
        check_release(tmp_path, protocol)


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
    with pytest.raises(UserError, match=r"3 learning rates and any number of values never make the 4 trials"):
        rank(f"{own_rules}:soft_wall", ["coefficient=1,2"], path)


@pytest.mark.slow
def test_the_contract_is_tested_whatever_the_rule_is_called(tmp_path, repository, monkeypatch):
    (tmp_path / "my rules.py").write_text(RULES.replace("soft_wall", "weiß").replace("careless", "maß"))
    monkeypatch.chdir(repository)
    _check_contract(f"{tmp_path}/my rules.py:weiß")
    with pytest.raises(
        UserError, match=r"maß breaks the contract of rules \(test_\w+.*RULE='.*/my rules.py:maß'"
    ):
        _check_contract(f"{tmp_path}/my rules.py:maß")


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


def two(new, old, advantages, mask, *, left=1.0, right=1.0):
    \"\"\"Ratio with two penalties.\"\"\"
    return soft_wall(new, old, advantages, mask, coefficient=left + right)


def careless(new, old, advantages, mask):
    \"\"\"Rewards what it should punish.\"\"\"
    return TokenLosses(advantages * log_ratio(new, old).exp())
"""
