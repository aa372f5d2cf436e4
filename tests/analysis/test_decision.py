"""The rule of the verdicts on settings whose differences are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import synthetic

from troll.analysis.claims.decision import PairedDifferences, Side, decide
from troll.analysis.claims.ledger import findings
from troll.analysis.claims.verdicts import ClaimVerdict
from troll.analysis.claims.wording import label, why
from troll.analysis.pooling import clears
from troll.analysis.statistics import paired_power

ABOVE = Side("higher", 0.0)


def settings(*effects, spread=0.02, seeds=5, **coordinates):
    """Settings with these mean differences; the spread over seeds is exact."""
    noise = np.linspace(-1, 1, seeds)
    noise *= spread / noise.std(ddof=1)
    names = {name: ["x"] * len(effects) for name in ("task", "estimator", "model", "condition", "method")}
    names |= coordinates
    return [
        PairedDifferences(
            f"s{index}", {name: values[index] for name, values in names.items()}, effect + noise
        )
        for index, effect in enumerate(effects)
    ]


def judged(*effects, side=ABOVE, least=3, **given):
    return decide(side, settings(*effects, **given), least)


def test_every_setting_has_to_hold_for_everywhere():
    assert judged(0.1, 0.2, 0.3).label == "supported everywhere"
    one_out = judged(0.1, 0.12, 0.11, 0.1, 0.01)
    assert one_out.label == "supported on average" and one_out.shown_in == (True, True, True, True, False)
    assert one_out.pooled is not None and one_out.pooled.low > 0


def test_settings_that_share_their_baseline_are_less_sure_on_average():
    noise = np.random.default_rng(0).normal(0, 0.02, (4, 5))
    same = [
        replace(one, differences=0.012 + noise[0] + row / 4)
        for one, row in zip(settings(*[0] * 4), noise, strict=True)
    ]
    assert decide(ABOVE, same, 3).label == "supported on average"
    found = decide(ABOVE, [replace(one, baseline="clip") for one in same], 3)
    assert found.label == "inconclusive" and found.seeds is not None and found.seeds > 5
    assert same[0].by_seed == dict(enumerate(same[0].differences))
    named = replace(same[0], seed_numbers=(3.0, 5.0, 7.0, 8.0, 9.0))
    assert list(named.by_seed) == [3.0, 5.0, 7.0, 8.0, 9.0]


def test_of_an_average_on_the_other_side_the_contrary_holds():
    found = judged(-0.02, -0.03, -0.01, -0.02, -0.025)
    assert found.label == "the contrary holds" and not any(found.shown_in)
    assert judged(0.01, 0.02, 0.0, 0.01, side=Side("equivalent", 0.03)).verdict == "supported on average"
    assert judged(0.06, 0.07, 0.08, 0.05, side=Side("equivalent", 0.03)).verdict == "the contrary holds"
    assert judged(0.05, 0.06, 0.05, side=Side("higher", 0.1)).verdict == "the contrary holds"


def test_a_sign_that_differs_by_task_is_no_average():
    tasks = ["a", "a", "a", "a", "b", "b"]
    found = judged(0.3, 0.31, 0.29, 0.3, -0.05, -0.04, task=tasks, spread=0.05)
    assert found.label == "depends on task" and found.p < 0.001
    assert found.levels == {"a": pytest.approx(0.3), "b": pytest.approx(-0.045)}
    # The same sign everywhere is an average, however much the size differs.
    assert judged(0.3, 0.31, 0.29, 0.3, 0.01, 0.02, task=tasks, spread=0.05).verdict == "supported on average"


def test_single_settings_that_show_both_depend_on_what_separates_them():
    conditions = ["gentle", "gentle", "stale", "stale"]
    assert judged(0.3, 0.2, -0.3, -0.2, condition=conditions).label == "depends on condition"
    mixed = judged(0.3, -0.3, 0.3, -0.3, condition=["a", "a", "b", "b"])
    assert mixed.label == "depends on setting"


def test_with_two_clear_exceptions_and_no_support_a_claim_is_not_shown_and_one_of_many_says_nothing():
    two = judged(-0.3, -0.28, 0.01, 0.02, 0.015, spread=0.15, seeds=9)
    assert two.label == "not shown" and sum(two.refuted_in) == 2
    one = judged(-0.3, 0.01, 0.02, 0.015)
    assert one.label == "inconclusive" and sum(one.refuted_in) == 1
    assert judged(-0.3, 0.01).label == "not shown", "no average is taken of two"
    assert judged(-0.3, -0.2).label == "the contrary holds", "in every setting"


def test_the_seeds_that_would_contradict_are_those_of_two_settings():
    """Both of two settings have to show the contrary; the third never does."""
    undecided = judged(-0.2, -0.2, 0.5, spread=0.5)
    seeds, strict = undecided.seeds, 1 - 0.05 / 3
    assert undecided.label == "inconclusive" and seeds is not None
    one = clears(0.2, 0.5 / math.sqrt(seeds), seeds - 1, strict)
    before = clears(0.2, 0.5 / math.sqrt(seeds - 2), seeds - 3, strict)
    assert one**2 >= 0.8 > before**2
    assert undecided.deciding == "contrary" and not undecided.average_decidable


def test_too_few_seeds_say_nothing_and_the_missing_ones_are_named():
    few = judged(0.3, 0.3, 0.3, seeds=2)
    assert few.label == "inconclusive" and few.seeds == 3 and few.pooled is None
    one = judged(0.03, spread=0.05)
    assert one.label == "inconclusive" and one.seeds is not None
    assert paired_power(0.05, 0.03, one.seeds) >= 0.8 > paired_power(0.05, 0.03, one.seeds - 2)
    alike = judged(0.03, 0.031, 0.029, spread=0.05)
    assert alike.label == "inconclusive" and alike.deciding == "average" and alike.average_decidable
    assert judged(0.4, -0.004, 0.3, -0.002, spread=0.1).seeds is None, "settings differ more than seeds"
    assert decide(ABOVE, [], 3).label == "not run"


def test_one_setting_that_shows_the_contrary_decides_and_its_seeds_are_foreseen():
    undecided = judged(0.4, -0.4, 0.1, -0.1, spread=0.5)
    assert undecided.label == "inconclusive" and undecided.seeds is not None
    strict = [
        clears(-effect, 0.5 / math.sqrt(undecided.seeds), undecided.seeds - 1, 1 - 0.05 / 4)
        for effect in (-0.4, -0.1)
    ]
    assert 1 - math.prod(1 - chance for chance in strict) >= 0.8
    later = judged(0.4, -0.4, 0.1, -0.1, spread=0.5, seeds=2 * undecided.seeds)
    assert any(later.refuted_in) and later.label.startswith("depends on")


def test_what_a_setting_shows_is_not_refuted_by_another_alone():
    """One is clearly wrong, one shows the claim at 95 % and not at the strict level, five say nothing."""
    known = [*settings(-0.3), *settings(0.05, spread=0.035), *settings(*[0.0] * 5, spread=0.5)]
    decision = decide(ABOVE, known, 3)
    assert decision.shown_in[1] and sum(decision.shown_in) == 1
    assert decision.refuted_in[0] and sum(decision.refuted_in) == 1
    assert decision.label == "inconclusive"
    two = [known[0], replace(known[0], name="another"), *known[2:]]
    assert decide(ABOVE, two, 3).label == "the contrary holds", "the average says so, too"


def test_a_sentence_about_a_claim_that_is_not_shown_says_what_speaks_against_it():
    """The average is undecided: single settings show the contrary."""
    decision = judged(-0.3, -0.25, 0.08, 0.01, 0.02, spread=0.5, seeds=60)
    assert decision.label == "not shown" and not decision.pooled.high < 0
    judgement = ClaimVerdict(synthetic.claim(), decision)
    (line, *_) = findings([judgement])
    assert line.startswith(
        "- S: **not shown** (the contrary is shown in 2 of 5 settings, the claim in none; "
    )
    (line, *_) = findings([replace(judgement, decision=judged(-0.02, -0.03, -0.01, -0.02, -0.025))])
    assert "**the contrary holds: below by 2.1 points** (−2.1 [" in line and "5 settings)" in line
    # Where methods are claimed to be within a margin: on which side they are outside of it.
    within = ClaimVerdict(
        synthetic.claim(direction="equivalent", margin=0.03),
        judged(0.06, 0.07, 0.08, 0.05, side=Side("equivalent", 0.03)),
    )
    assert label(within) == "the contrary holds: above by 6.5 points"
    assert "outside the margin in 2 (above)" in why(within)
    apart = replace(within, decision=judged(0.3, -0.29, 0.31, side=Side("equivalent", 0.03)))
    assert label(apart) == "the contrary holds: above in 2, below in 1"
    little = ClaimVerdict(synthetic.claim(margin=0.1), judged(0.05, 0.06, 0.055, side=Side("higher", 0.1)))
    assert label(little) == "the contrary holds: above by only 5.5 points"


def test_where_all_speaks_against_a_claim_or_less_for_it_than_it_seems_the_base_models_tell():
    """Settings that show the contrary where the baseline has collapsed, and a lead below the base model."""
    claim = synthetic.claim()
    decision = judged(-0.3, -0.25, 0.08, 0.01, 0.02, spread=0.5, seeds=60)
    fallen = ClaimVerdict(claim, decision, baseline_below_base=(True, True, False, False, False))
    assert f"where {claim.baseline} has fallen below its base model" in findings([fallen])[0]
    assert "no single setting of 5 shows it by itself, the contrary is shown in 2, where" in why(fallen)
    assert "fallen" not in why(replace(fallen, baseline_below_base=(True, False, True, True, True)))
    better = judged(0.3, 0.31, 0.29, task=["a", "a", "b"], spread=0.05)
    ahead = ClaimVerdict(claim, better, below_base=(True, True, False))
    assert findings([ahead])[0].endswith("it ends below its own base model in both settings on a).")
    assert "its own base model in 1 of 2 settings on a and the one setting on b" in why(
        replace(ahead, below_base=(False, True, True))
    )
    assert "base model" not in why(replace(ahead, below_base=(False, False, False)))


def test_no_kind_of_verdict_is_left_out_of_the_front_page():
    """In turn: supported, the contrary, not shown, depends; then the second of each."""
    kinds = {
        "for": judged(0.3, 0.31, 0.29),
        "against": judged(-0.02, -0.03, -0.01, -0.02, -0.025),
        "unclear": judged(-0.3, -0.25, 0.08, 0.01, 0.02, spread=0.5, seeds=60),
        "open": judged(0.3, 0.3, 0.3, seeds=2),
    }
    every = [
        ClaimVerdict(synthetic.claim(id=f"{name}{n}", sentence=f"{name}{n}"), decision)
        for n in (1, 2)
        for name, decision in reversed(kinds.items())
    ]
    lines = findings(every, most=5)
    told = [line.partition(":")[0].removeprefix("- ") for line in lines[:5]]
    assert told == ["for1", "against1", "unclear1", "for2", "against2"]
    tally = "Of 8 claims with runs: 2 supported everywhere, 2 where the contrary holds, 2 not "
    assert lines[-1].startswith(tally)
    assert findings(every[:4], also=every[4:])[-1] == lines[-1], "all that were judged are counted"
