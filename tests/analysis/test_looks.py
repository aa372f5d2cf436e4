"""Claims that are looked at after every seed, and the seeds that they ask for."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from look_rates import KINDS, ends, looks_table
from troll.analysis.claims.decision import PairedDifferences, Side, decide
from troll.analysis.claims.further import NextLook, affordable, look_record, next_looks, nth_seed
from troll.analysis.claims.ledger import to_html, to_markdown
from troll.analysis.claims.looks import LookState, look_again
from troll.analysis.claims.verdicts import Claim, ClaimVerdict
from troll.analysis.data.results import Plan, write_plan
from troll.analysis.sequential import Looks
from troll.common.errors import UserError
from troll.common.explain import validated

LOOKS = Looks(first=3, most=6)
HIGHER = Side("higher", 0.0)
CLAIM = {"id": "c", "sentence": "S", "source": "P", "trust_region": "troll", "baseline": "clip"}


def setting(name: str, differences: Sequence[float]) -> PairedDifferences:
    names = {"model": "tiny", "task": name, "condition": "stale", "estimator": "grpo", "method": "troll"}
    return PairedDifferences(name, names, np.asarray(differences))


CLEAR = [0.30, 0.31, 0.29, 0.30, 0.30, 0.31]
NOISY = [0.30, 0.05, 0.20, 0.25, 0.28, 0.27]


def judged(*settings: PairedDifferences, **changes: object) -> ClaimVerdict:
    claim = Claim.model_validate(CLAIM | {"metric": "pass@1", "direction": "higher"} | changes)
    compared = [replace(one, against=claim.baseline) for one in settings]
    return ClaimVerdict(claim, *look_again(HIGHER, compared, 3, LOOKS), LOOKS)


def test_a_clear_claim_is_decided_at_the_first_look_whatever_comes_later() -> None:
    decision, seen = look_again(HIGHER, [setting("a", CLEAR[:3]), setting("b", CLEAR[:3])], 3, LOOKS)
    assert (decision.verdict, seen.seeds, seen.decided) == ("supported everywhere", 3, True)
    later = [setting("a", [*CLEAR[:3], -0.9, -0.9]), setting("b", CLEAR[:3])]
    assert look_again(HIGHER, later, 3, LOOKS)[0].verdict == "supported everywhere"


def test_only_the_silent_settings_get_seeds_and_the_others_stay_as_they_were() -> None:
    decision, seen = look_again(HIGHER, [setting("a", CLEAR), setting("b", NOISY[:3])], 3, LOOKS)
    assert (decision.verdict, seen.seeds, seen.missing) == ("inconclusive", 3, (1,))
    decision, seen = look_again(HIGHER, [setting("a", CLEAR), setting("b", NOISY)], 3, LOOKS)
    assert seen.decided and seen.seeds > 3
    assert [one.seeds for one in decision.settings] == [3, seen.seeds]
    assert [one.level for one in decision.settings] == [LOOKS.level_at(3), LOOKS.level_at(seen.seeds)]


@pytest.mark.parametrize(("first", "least"), [(2, 2), (2, 3), (3, 3), (3, 5)])
def test_a_setting_that_is_clear_early_gets_the_seeds_that_the_claim_asks_for(first: int, least: int) -> None:
    known = [setting("a", CLEAR), setting("b", NOISY)]
    decision, seen = look_again(HIGHER, known, least, Looks(first, 6))
    assert seen.decided and decision.verdict == "supported everywhere"
    assert min(one.seeds for one in decision.settings) >= least


def test_a_look_waits_until_all_of_its_seeds_are_there() -> None:
    _, seen = look_again(HIGHER, [setting("a", NOISY[:4]), setting("b", NOISY[:3])], 3, LOOKS)
    assert (seen.seeds, seen.missing, seen.last) == (3, (1,), False)
    decision, seen = look_again(HIGHER, [setting("a", CLEAR[:2])], 2, LOOKS)
    assert (decision.verdict, seen.seeds, seen.missing) == ("inconclusive", 0, (0,))
    decision, seen = look_again(HIGHER, [], 3, LOOKS)
    assert (decision.verdict, seen.decided, seen.missing) == ("not run", False, ())


def test_an_undecided_claim_ends_with_the_last_look() -> None:
    _, seen = look_again(HIGHER, [setting("a", [0.3, -0.3, 0.1, -0.2, 0.2, 0.0])], 3, LOOKS)
    assert (seen.seeds, seen.decided, seen.last) == (6, False, True)


def test_one_planned_look_is_the_rule_itself() -> None:
    known = [setting("a", NOISY[:3]), setting("b", CLEAR[:3]), setting("d", NOISY[3:])]
    plain = decide(HIGHER, known, 3)
    again, _ = look_again(HIGHER, known, 3, Looks(first=3, most=3))
    assert again.verdict == plain.verdict and again.held == plain.held
    assert again.pooled is not None and plain.pooled is not None
    assert again.pooled.low == pytest.approx(plain.pooled.low)


def test_the_ledger_tells_looks_only_where_there_are_some() -> None:
    one, other = judged(setting("a", CLEAR[:3])), judged(setting("b", NOISY[:3]), id="d")
    text = to_markdown([one, other])
    assert "| Claim | Verdict | Why | Decided | Source |" in text
    assert "| at 3 seeds |" in text and "| not by 3 seeds, needs one more seed in 1 setting |" in text
    assert "(interval of 96.9 %: one of several looks)" in text
    assert "Decided: at 3 seeds" in to_html([one])
    fixed = to_markdown([ClaimVerdict(one.claim, decide(HIGHER, [setting("a", CLEAR)], 3))])
    assert "Decided" not in fixed and "several looks" not in fixed


def test_undecided_claims_ask_for_the_runs_that_they_compare() -> None:
    known = [judged(setting("a", CLEAR[:3])), judged(setting("b", NOISY[:3]), id="d")]
    (want,) = next_looks(known, [0, 1, 2])
    assert want.claim == "d"
    assert want.runs == (("tiny/b/troll/grpo/stale", 3), ("tiny/b/clip/grpo/stale", 3))
    (alone,) = next_looks([judged(setting("b", NOISY[:3]), baseline="base")], [0, 1, 2])
    assert [path for path, _ in alone.runs] == ["tiny/b/troll/grpo/stale"]
    assert [nth_seed([5, 1, 2], number) for number in (1, 3, 4, 5)] == [1, 5, 6, 7]
    record = look_record(known, 12.34, 48)
    assert record["minutes"] == 12.3 and record["claims"]["c"]["decided"] is True


def test_a_setting_that_was_left_as_it_was_gets_all_seeds_that_it_lacks() -> None:
    early = replace(setting("a", CLEAR[:2]), seed_numbers=(0.0, 2.0), against="clip")
    claim = judged(setting("b", NOISY[:3])).claim
    seen = LookState(seeds=4, decided=False, missing=(0,))
    one = ClaimVerdict(claim, decide(HIGHER, [early], 2), seen, Looks(2, 6))
    (want,) = next_looks([one], [0, 1])
    assert sorted({seed for _, seed in want.runs}) == [1, 3, 4]


def test_a_look_that_does_not_fit_is_left_out_whole() -> None:
    runs = [("x", 3), ("y", 3), ("z", 3)]
    seconds = dict.fromkeys(runs, 10.0)
    wants = [
        NextLook("a", (runs[0], runs[1]), 4),
        NextLook("b", tuple(runs), 5),
        NextLook("c", (runs[2],), None),
    ]
    assert affordable(wants, seconds, 29.0) == runs[:2]
    assert affordable(wants, seconds, 30.0) == runs
    assert affordable(wants[:2], seconds, 19.0) == []
    assert affordable(wants, seconds, 19.0) == runs[2:], "unlikely to be decided, and still worth the time"


def test_the_plan_keeps_the_looks(tmp_path: Path) -> None:
    write_plan(tmp_path, [], {}, looks=LOOKS)
    assert json.loads((tmp_path / "plan.json").read_text())["looks"] == {"first": 3, "most": 6}
    assert Plan(looks={"first": 3, "most": 6}).looks == LOOKS
    for wrong in ({"first": 3}, {"first": 7, "most": 6}, {"first": None, "most": 6}, [3, 6]):
        with pytest.raises(UserError, match=r"^plan\.json: looks: "):
            validated(Plan, {"looks": wrong}, "plan.json")


TRIALS = 2000


def collapsing(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Success of runs of which a quarter collapse."""
    return rng.normal(0.7, 0.02, shape) - 0.4 * (rng.random(shape) < 0.25)


@pytest.mark.parametrize("most", [5, 6, 10])
@pytest.mark.parametrize("kind", ["normal", "collapsing"])
def test_false_findings_at_any_time_are_at_most_five_percent(kind: str, most: int) -> None:
    rng, shape = np.random.default_rng(0), (TRIALS, most)
    draws = rng.normal(0, 0.1, shape) if kind == "normal" else collapsing(rng, shape) - collapsing(rng, shape)
    found, seeds = ends(draws, Looks(most=most))
    assert (found != 0).mean() <= 0.05
    assert (seeds[found == 0] == most).all()


def test_a_plain_interval_at_every_look_would_err_more_often() -> None:
    found, _ = ends(np.random.default_rng(1).normal(0, 0.1, (TRIALS, 10)), Looks(), plain=True)
    assert (found != 0).mean() > 0.08


def test_many_experiments_end_as_each_of_them_does() -> None:
    looks, draws = Looks(most=6), np.random.default_rng(2).normal(0.05, 0.08, (60, 6))
    found, seeds = ends(draws, looks)
    for differences, sign, taken in zip(draws, found, seeds, strict=True):
        said = [looks.reading(differences[:count]) for count in range(3, 7)]
        first = next(verdict for verdict in said if verdict != "go on")
        assert first == {1: "higher", -1: "lower", 0: "undecided"}[int(sign)]
        assert taken == 3 + said.index(first)
    assert len(set(found)) > 1


def test_a_large_difference_is_found_early_and_a_small_one_is_equivalent() -> None:
    rng = np.random.default_rng(2)
    found, seeds = ends(rng.normal(0.3, 0.08, (200, 10)), Looks())
    assert (found == 1).mean() > 0.95 and seeds.mean() < 6
    assert Looks().reading([0.001, -0.001, 0.0, 0.002], margin=0.05) == "equivalent"


def test_released_error_rates_say_where_the_looks_hold_and_where_not() -> None:
    rates = looks_table(500).set_index(["kind", "true_difference", "most"])["false"]
    alike = rates.loc[list(KINDS[:2])].xs(0.0, level="true_difference")
    assert (alike <= 0.05).all()
    assert (rates.loc[KINDS[2]].xs(0.0, level="true_difference") > 0.1).all()


def test_what_is_spent_sums_to_the_whole() -> None:
    looks = Looks(first=3, most=8)
    assert looks.spent(2) == 0 and looks.spent(8) == pytest.approx(0.05)
    levels = [1 - looks.interval(np.arange(n, dtype=float)).level for n in range(3, 9)]
    assert sum(levels) == pytest.approx(0.05) and all(level > 0 for level in levels)


def test_one_look_is_the_plain_interval() -> None:
    differences = np.array([0.1, 0.2, 0.4])
    assert Looks(first=3, most=3).interval(differences).level == pytest.approx(0.95)


@pytest.mark.parametrize(("first", "most"), [(1, 5), (6, 5)])
def test_impossible_looks_are_refused(first: int, most: int) -> None:
    with pytest.raises(ValueError, match="looks from"):
        Looks(first=first, most=most)
    with pytest.raises(ValueError, match="a look at 2 seeds"):
        Looks().interval([0.1, 0.2])
