"""A rule of one's own, ranked between the released ones."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
import yaml
from scipy import stats
from synthetic_board import PROTOCOL, at_no_trial, compared, fresh_seeds, trial_score, validation

from protocol_rates import rates_table, simulated
from troll.analysis.data.results import Results
from troll.analysis.data.runs import read_directories
from troll.analysis.leaderboard.board import board_table, place_ranges
from troll.analysis.leaderboard.figures import differences_figure
from troll.analysis.leaderboard.inputs import choose, trial_scores, tuning_table
from troll.analysis.leaderboard.own_rule import (
    beside,
    check_release,
    check_same_protocol,
    own_board,
    places,
    readings,
    released_trials,
    with_rule,
)
from troll.analysis.leaderboard.protocol import Protocol, final_experiments, read_protocol, trials_experiment
from troll.analysis.leaderboard.ranking import (
    predictive_power,
    ranking_table,
    seeds_of_rules,
    seeds_wanted,
    student,
)
from troll.common import numerics
from troll.common.errors import UserError
from troll.experiment.files import parse_experiment
from troll.operations.leaderboard import run_fresh
from troll.operations.rank import _check_contract, _space, rank


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


def test_the_place_of_the_own_rule_has_its_range_on_each_task(board, ranked):
    table, own = ranked
    together = [beside(final, mine, "soft-wall") for final, mine in zip(board[1], own, strict=True)]
    ranges = place_ranges(together, list(table["trust_region"].unique()))
    lines = places(table, "soft-wall", together)
    for line, (task, group) in zip(lines, table.groupby("task", sort=False), strict=True):
        number = list(group["trust_region"]).index("soft-wall") + 1
        low, high = ranges[task, "soft-wall"]
        sure = "" if low == high else f" ({low} to {high} in 95 % of draws of the seeds)"
        assert line.startswith(f"{task} (tiny): soft-wall is number {number} of 4{sure}, test pass@1 ")


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
    with pytest.raises(UserError, match=r"rules\.mine: 6 trials .* but every rule gets 4"):
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
        ("{rules}:soft_wall", ["coefficient=[,1"], "rank: --space 'coefficient=[,1': '[' is not a value ("),
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
            "rank: --space: coefficient is given twice; list all its values in one option",
        ),
        ("{rules}:two", ["left, right=1,2", " left=3"], "rank: --space: left is given twice; "),
        ("{rules}:soft_wall", ["coefficient=1,x"], "soft_wall: space: coefficient is 'x', must be"),
        ("{rules}:soft_wall", ["coefficient=1,1"], "soft_wall: space.coefficient: 1 is given twice"),
        (
            "{rules}:soft_wall",
            ["coefficient=1,2,3"],
            "rank: --space: coefficient: 3 values, must be 2: with 2 learning rates, that gives the 4 trials",
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
    monkeypatch.setattr("troll.operations.rank._check_contract", lambda rule: None)
    monkeypatch.setattr(
        "troll.operations.leaderboard.run_experiment", lambda *_: pytest.fail("nothing is run")
    )
    with pytest.raises(UserError) as error:
        rank(rule.format(rules=own_rules), space, own_rules.with_name("protocol.yaml"))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_release_that_is_not_whole_is_named_before_a_rule_is_run(protocol, tmp_path):
    path, scores = tmp_path / "trials.csv", trial_scores(validation(protocol, trial_score), protocol)
    scores.to_csv(path, index=False)
    assert len(released_trials(path, protocol)) == len(scores)
    for table, message in (
        (scores.drop(columns="score"), "not a table of trials; it has no column score"),
        (scores.assign(rule="other"), "has rules that are not in the protocol"),
        (scores[scores["rule"] != "clip"], "has 0 trials of clip on chains, but the protocol has 4"),
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
    with pytest.raises(UserError, match=r"with 3 learning rates, no number of values gives the 4 trials"):
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


FRESH = list(range(200, 214))
RANKED = PROTOCOL | {
    "seeds": FRESH,
    "ranking": {"looks": [6, 8, 10, 12], "power": 0.05, "tuning_spread": 0.03},
}


@pytest.fixture(scope="module")
def protocols(repository):
    """The protocol that `troll rank` goes by, and that of the first board."""
    names = ("ranking", "leaderboard")
    return [read_protocol(repository / f"workflow/config/{name}.yaml") for name in names]


def test_a_rule_no_better_than_the_baseline_is_read_as_another_one_time_in_twenty(protocols):
    """All of the protocol is simulated: two tunings, looks, the test. Three standard errors are allowed."""
    ranked, first = protocols
    draws = 20_000
    rates = simulated(ranked, 0.0, draws=draws)
    error = np.sqrt(0.05 * 0.95 / draws)
    assert 0.02 < rates.above + rates.below < 0.05 + 3 * error
    assert abs(rates.above - rates.below) < 4 * np.sqrt(0.05 / draws), "neither side is favoured"
    # What the tuning adds has to be in the test, and the protocol's number is what its tuning adds.
    assert rates.choice == pytest.approx(ranked.ranking.tuning_spread, rel=0.1)
    naive = ranked.ranking.model_copy(update={"tuning_spread": 1e-9})
    without = simulated(ranked.model_copy(update={"ranking": naive}), 0.0, draws=draws)
    assert without.above + without.below > 0.1
    # Successive halving loses less than twelve trials on two seeds, with the same runs.
    old = simulated(first, 0.0, draws=draws)
    assert ranked.tuning_runs == first.tuning_runs == 24
    assert rates.regret < 0.75 * old.regret and rates.choice < 0.85 * old.choice
    assert rates.runs < old.runs


def test_it_finds_more_than_the_first_board_with_as_many_runs(protocols):
    ranked, first = protocols
    table = rates_table(ranked, first, draws=4000).set_index("effect")
    assert (table.loc[0.05:0.15, "above"] > 2 * table.loc[0.05:0.15, "other"]).all()
    assert table.loc[0.1, "above"] > 0.5 and table.loc[0.2, "above"] > 0.95
    assert (table.loc[0.05:, "below"] < 0.01).all()
    assert table["above"].is_monotonic_increasing and table["runs"].is_monotonic_increasing
    few = first.model_copy(update={"rules": dict(list(first.rules.items())[:12])})  # as many as had results
    assert simulated(few, 0.1, draws=4000, seeds=13).above < 0.6 * table.loc[0.1, "above"]


def test_predictive_power_is_how_often_further_seeds_show_a_difference():
    random = np.random.default_rng(1)
    so_far = np.array([0.04, -0.02, 0.1, 0.01, 0.06, 0.08])
    # Expectation and spread as the seeds so far leave them, with a flat prior; then eight seeds more.
    draws, deviation = 40_000, so_far.std(ddof=1)
    means = so_far.mean() + deviation / np.sqrt(6) * random.standard_t(5, size=draws)
    more = means[:, None] + deviation * random.standard_normal((draws, 8))
    whole = np.concatenate([np.tile(so_far, (draws, 1)), more], axis=1)
    t = whole.mean(axis=1) / (deviation / np.sqrt(14))
    found = (np.abs(t) > stats.t.ppf(0.975, 13)).mean()
    assert float(predictive_power(so_far, 14)) == pytest.approx(found, abs=0.04)
    assert predictive_power(so_far - so_far.mean(), 14) < predictive_power(so_far, 14)
    assert predictive_power(-so_far, 14) == pytest.approx(predictive_power(so_far, 14))
    assert predictive_power(np.full(6, 0.1), 14) > 0.999 and predictive_power(np.zeros(6), 14, 0.03) < 1e-3
    assert predictive_power(so_far, 14, 0.03) < predictive_power(so_far, 14)


def test_the_test_is_students_and_wider_by_the_tuning():
    values = np.random.default_rng(2).normal(0.1, 0.2, 14)
    plain, known = student(values, 0.0), stats.ttest_1samp(values, 0)
    assert (plain.difference, plain.p) == pytest.approx((values.mean(), known.pvalue))
    assert (plain.low, plain.high) == pytest.approx(tuple(known.confidence_interval()))
    wide = student(values, 0.5)  # the seeds hardly matter any more: nearly a normal one
    assert wide.high - wide.difference == pytest.approx(
        stats.norm.ppf(0.975) * np.hypot(0.5, stats.sem(values)), rel=1e-2
    )
    assert (wide.low > 0) == (wide.p < 0.05) and wide.p > plain.p
    assert student([0.5, 0.5, 0.5], 0.0).p == 0 and student([0.0, 0.0], 0.0).p == 1


def differing(differences, protocol):
    """Fresh results in which troll has these differences from clip on both tasks, each on a seed."""
    by_seed = dict(zip(protocol.seeds, differences, strict=False))

    def rate(rule, task, seed):
        if rule == "troll":
            return 0.4 + by_seed[seed] if seed in by_seed else None
        return 0.4 if rule == "clip" else None

    return fresh_seeds(protocol, rate)


LIKE = np.array([0.03, -0.03, 0.02, -0.02, 0.05, -0.05])
BETTER = 0.2 + np.tile(LIKE, 3)[:14]


def test_a_rule_stops_where_further_seeds_would_hardly_show_anything():
    protocol = Protocol.model_validate(RANKED)
    assert seeds_of_rules(protocol, []) == {"clip": 14, "troll": 6, "none": 6}
    assert seeds_of_rules(protocol, differing(LIKE, protocol))["troll"] == 6, "it stops"
    for count, wanted in ((6, 8), (8, 10), (12, 14), (14, 14)):
        assert seeds_of_rules(protocol, differing(BETTER[:count], protocol))["troll"] == wanted
    # Good at first, then as bad: decided at the look, by all seeds so far.
    turned = pd.Series([*BETTER[:6], -0.2, -0.2, *([-0.5] * 4)], index=FRESH[:12])
    assert seeds_wanted(turned[:6], protocol) == 8 and seeds_wanted(turned, protocol) in (8, 10, 12)

    stopped = ranking_table(differing(LIKE, protocol), protocol).set_index("analysis")
    assert set(stopped["reading"]) == {"no difference shown; stopped after 6 seeds"}
    assert stopped[["difference_low", "difference_high", "p"]].isna().all(axis=None)
    whole = ranking_table(differing(BETTER, protocol), protocol).set_index("analysis")
    mean = whole.loc["mean of the tasks"]
    assert mean["reading"] == "above" and mean["seeds"] == 14
    assert mean["difference"] == pytest.approx(BETTER.mean(), abs=1e-5)
    expected = student(BETTER, 0.03)  # of two rules, averaged over two tasks: 0.03 * sqrt(2 / 2)
    assert mean["p"] == pytest.approx(expected.p, rel=1e-2)
    assert mean["difference_low"] == pytest.approx(expected.low, abs=1e-5)
    alone = student(BETTER, 0.03 * np.sqrt(2), level=0.975)
    assert whole.loc["chains alone", "difference_low"] == pytest.approx(alone.low, abs=1e-5)
    assert whole.loc["chains alone", "p"] == pytest.approx(min(1, 2 * alone.p), rel=1e-2), (
        "Holm over the tasks"
    )


def test_what_the_looks_did_not_decide_is_no_board():
    protocol = Protocol.model_validate(RANKED)
    with pytest.raises(UserError, match=r"^troll: has 8 fresh seeds, but gets 10 by .* looks; finish them"):
        ranking_table(differing(BETTER[:8], protocol), protocol)
    with pytest.raises(UserError, match=r"^troll: has 14 fresh seeds, but gets 6 by .* looks; it stopped"):
        ranking_table(differing(np.tile(LIKE, 3)[:14], protocol), protocol)
    final = differing(BETTER, protocol)
    few = [final[0], replace(final[1], items=final[1].items[final[1].items["seed"] != FRESH[-1]])]
    with pytest.raises(
        UserError, match=r"^troll: has 14 on chains and 13 on functions fresh seeds; finish them"
    ):
        ranking_table(few, protocol)
    gap = [
        replace(one, items=one.items[~one.items["seed"].eq(203)]) for one in differing(BETTER[:8], protocol)
    ]
    with pytest.raises(
        UserError, match=r"^troll: chains: its fresh seeds are not the first of the protocol's"
    ):
        ranking_table(gap, protocol)
    lost = one = final[0].items
    lost = one[~((one["trust_region"] == "clip") & (one["seed"] == 205))]
    with pytest.raises(UserError, match=r"^clip: chains: no fresh run with seed 205, which troll has"):
        ranking_table([replace(final[0], items=lost), final[1]], protocol)


def test_further_seeds_are_those_of_the_rules_that_go_on():
    protocol = Protocol.model_validate(RANKED)
    best = {
        (task, name): protocol.trials_of(name)[0]
        for task in ("chains", "functions")
        for name in protocol.rules
    }
    experiment = final_experiments(protocol, best, counts={"clip": 14, "troll": 8, "none": 6})["chains"]
    parsed = parse_experiment(experiment, "chains")
    seeds = {name: [run.seed for run in parsed.runs() if run.trust_region == name] for name in protocol.rules}
    assert seeds == {"clip": FRESH, "troll": FRESH[:8], "none": FRESH[:6]}
    own = final_experiments(protocol, best, "troll", {"troll": 8, "clip": 14})["functions"]
    assert own["seeds"] == FRESH[:8] and "further_seeds" not in own


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"looks": [8, 6]}, r"ranking\.looks: is \[8, 6\], must be ascending numbers of seeds from 2 to 13"),
        ({"looks": [1, 6]}, r"ranking\.looks: is \[1, 6\], must be"),
        ({"looks": [14]}, r"ranking\.looks: is \[14\], must be"),
        ({"power": 1}, r"ranking\.power"),
        ({"tuning_spread": 0}, r"ranking\.tuning_spread"),
    ],
)
def test_looks_that_are_none_are_refused(tmp_path, change, message):
    path = tmp_path / "protocol.yaml"
    path.write_text(yaml.safe_dump(RANKED | {"ranking": RANKED["ranking"] | change}))
    with pytest.raises(UserError, match=message):
        read_protocol(path)
    path.write_text(yaml.safe_dump(RANKED | compared()))
    with pytest.raises(UserError, match=r"ranking: excludes `comparison`"):
        read_protocol(path)


def test_rules_of_two_protocols_never_stand_in_one_table(tmp_path, repository, protocols):
    ranked, first = protocols
    board, path = repository / "results/released/leaderboard", repository / "workflow/config/ranking.yaml"
    with pytest.raises(
        UserError, match=r"leaderboard: its rules were tuned and compared by another protocol"
    ):
        check_same_protocol(board, path, ranked)
    check_same_protocol(board, repository / "workflow/config/leaderboard.yaml", first)
    check_same_protocol(tmp_path, path, ranked)  # no board yet
    old = validation(Protocol.model_validate(PROTOCOL), trial_score)
    here = Protocol.model_validate(RANKED | {"tuning_seeds": [300, 301]})
    with pytest.raises(
        UserError, match=r"other-trials: its trials have the seeds 100 and 101, .* cannot be mixed"
    ):
        tuning_table({tmp_path / "other-trials": old}, here)


def test_a_board_that_ranks_rules_corrects_each_for_itself(board):
    _, final, scores = board
    contents = PROTOCOL | {"ranking": {"looks": [2], "power": 1e-6, "tuning_spread": 0.03}}
    protocol = Protocol.model_validate(contents)
    table = board_table(final, scores, choose(scores, protocol), protocol)
    read = ranking_table(final, protocol).set_index(["trust_region", "analysis"])
    for row in table[table["trust_region"] != "clip"].to_dict("records"):
        own = read.loc[(row["trust_region"], f"{row['task']} alone")]
        assert row["p_holm"] == pytest.approx(own["p"]) and row["difference_low"] == own["difference_low"]
    assert "compared with clip for itself" in table.attrs["notes"][0]
    assert "over the whole table" not in table.attrs["notes"][0]
    assert readings(final, protocol, "troll")[0].startswith("troll against clip, mean of the tasks: ")
    alone = among_baseline(protocol, final, scores)
    assert len(alone) == 2 and alone["difference"].isna().all()


def among_baseline(protocol, final, scores):
    kept = [replace(one, items=one.items[one.items["trust_region"].isin(["clip", "base"])]) for one in final]
    return board_table(kept, scores, choose(scores, protocol), protocol)


def test_a_rule_is_ranked_beside_a_baseline_that_is_run_first(own_rules, monkeypatch, tmp_path):
    """The whole command, with a workflow that only notes what it would have run."""
    protocol = Protocol.model_validate(RANKED)
    path = own_rules.with_name("ranked.yaml")
    path.write_text(yaml.safe_dump(RANKED | {"name": "unheard-of"}))
    ran = []

    def run_experiment(experiment, *_):
        parsed = parse_experiment(experiment, "run")
        ran.append((parsed.experiment, sorted({run.seed for run in parsed.runs()})))
        if len(ran) == 4:
            raise UserError("enough")
        return tmp_path / parsed.experiment

    monkeypatch.setattr("troll.operations.rank._check_contract", lambda rule: None)
    monkeypatch.setattr("troll.operations.leaderboard.run_experiment", run_experiment)
    known = with_rule(protocol, "soft-wall", f"{own_rules}:soft_wall", {})
    monkeypatch.setattr("troll.operations.rank.read_rounds", lambda *_: validation(known, trial_score))
    monkeypatch.setattr("troll.operations.leaderboard.read_results", lambda _: differing(BETTER, protocol)[0])
    with pytest.raises(UserError, match="enough"):
        rank(f"{own_rules}:soft_wall", [], path)
    assert ran == [
        ("unheard-of-trials", [100, 101]),
        ("unheard-of-chains", FRESH),
        ("unheard-of-functions", FRESH),
        ("unheard-of-soft-wall-trials", [100, 101]),
    ]


def test_a_rule_that_stopped_is_on_the_board_without_a_test(board):
    _, final, scores = board
    contents = PROTOCOL | {"ranking": {"looks": [2], "power": 0.999999, "tuning_spread": 0.5}}
    protocol = Protocol.model_validate(contents)
    few = [
        replace(one, **{name: kept_seeds(getattr(one, name)) for name in ("items", "runs")}) for one in final
    ]
    table = board_table(few, scores, choose(scores, protocol), protocol)
    others = table[table["trust_region"] != "clip"]
    assert set(others["seeds"]) == {2} and set(
        table.loc[others.index.symmetric_difference(table.index), "seeds"]
    ) == {3}
    assert others["difference"].notna().all() and others[["p_holm", "difference_low"]].isna().all(axis=None)
    assert readings(few, protocol, "troll")[0].endswith(
        "over 2 seeds, no difference shown; stopped after 2 seeds"
    )
    figure = differences_figure(table)
    assert all(np.isfinite(figure.axes[0].get_xlim()))


def kept_seeds(frame):
    return frame[frame["trust_region"].isin(["clip", "base"]) | (frame["seed"] < 2)]


@pytest.mark.parametrize("only", [None, "troll"])
def test_fresh_seeds_are_run_look_by_look(monkeypatch, tmp_path, only):
    protocol = Protocol.model_validate(RANKED)
    ran = []

    def run_experiment(experiment, *_):
        runs = parse_experiment(experiment, "run").runs()
        ran.append({name: sum(run.trust_region == name for run in runs) for name in protocol.rules})
        return tmp_path / experiment["experiment"]

    def read_results(path):
        """Troll is better on all seeds, none by chance on the first eight; base models have none."""
        count = max((one["troll"] for one in ran), default=0)
        none = max((one["none"] for one in ran), default=0)

        def rate(rule, task, seed):
            at = FRESH.index(seed)
            if only and (rule == "troll") != ("-troll-" in path.name):
                return None  # the own runs lie apart from the released ones
            if rule == "clip":
                return 0.4
            if at >= (count if rule == "troll" else none):
                return None
            return 0.4 + (BETTER[at] if rule == "troll" else (0.05 if at < 6 else -0.045) + LIKE[at % 6])

        task = path.name.rpartition("-")[2]
        return next(one for one in fresh_seeds(protocol, rate) if set(one.items["task"]) == {task})

    monkeypatch.setattr("troll.operations.leaderboard.run_experiment", run_experiment)
    monkeypatch.setattr("troll.operations.leaderboard.read_results", read_results)
    monkeypatch.setattr("troll.analysis.leaderboard.own_rule.read_results", read_results)
    best = {
        (task, name): protocol.trials_of(name)[0]
        for task in ("chains", "functions")
        for name in protocol.rules
    }
    done = run_fresh(protocol, best, tmp_path, 2, tmp_path / "protocol.yaml", only)
    names = [f"board-{f'{only}-' if only else ''}{task}" for task in ("chains", "functions")]
    assert [path.name for path in done] == names
    counts = [(one["clip"], one["troll"], one["none"]) for one in ran[::2]]
    assert counts == [tuple(one.values()) for one in ran[1::2]], "the same seeds on both tasks"
    if only:
        assert counts == [(0, 6, 0), (0, 8, 0), (0, 10, 0), (0, 12, 0), (0, 14, 0)]
        return
    assert [clip for clip, _, _ in counts] == [14] * 5 and [troll for _, troll, _ in counts] == [
        6,
        8,
        10,
        12,
        14,
    ]
    last = counts[-1][2]
    assert last in (6, 8, 10, 12) and max(none for *_, none in counts) == last, (
        "it stops, and keeps its seeds"
    )
