"""The last screen of `make results`: what came out, in at most twelve lines."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from troll.analysis.claims.decision import Decision, PairedDifferences, Side, decide
from troll.analysis.claims.verdicts import Claim, ClaimVerdict
from troll.experiment.files import parse_experiment
from troll.operations.last_screen import LINES, concerning, further, last_screen

CLEAR = [0.30, 0.31, 0.29]
NOISY = [0.30, 0.05, 0.20]
PAGE = Path("results/x/page.html")
ENTRY = {"sentence": "S", "source": "P", "trust_region": "troll", "baseline": "clip", "metric": "pass@1"}


def judged(name, *differences):
    claim = Claim.model_validate(ENTRY | {"id": name, "direction": "higher"})
    names = {"model": "tiny", "condition": "stale", "estimator": "grpo", "method": "troll"}
    settings = [
        PairedDifferences(f"s{k}", names | {"task": f"task{k}"}, np.asarray(one))
        for k, one in enumerate(differences)
    ]
    return ClaimVerdict(claim, decide(Side("higher", 0.0), settings, 3))


def test_decided_claims_come_first_and_what_is_open_is_one_line():
    claims = [judged("open", NOISY), judged("clear", CLEAR)]
    lines = last_screen(claims, [], page=PAGE)
    assert lines[0].startswith("supported everywhere  clear: +30.0 [")
    assert lines[1].startswith("inconclusive          open: +18.3 [") and lines[1].endswith("] points")
    assert lines[2] == "1 of 2 claims decided"
    assert lines[3].startswith("more seeds might decide: open (about ")
    assert lines[4:] == [f"everything on one page: {PAGE}"]


@pytest.mark.parametrize("count", [1, 5, 6, 7, 8, 40])
def test_however_many_claims_there_are_they_fit(count):
    claims = [judged(f"open{k}", NOISY) for k in range(count)] + [judged("clear", CLEAR)]
    said = [
        "4 of 9 runs equal the release to the last bit",
        "Replicates: 7 of 8",
        "  outside: a",
        "  outside: b",
    ]
    lines = last_screen(claims, said, page=PAGE)
    assert len(lines) <= LINES and lines[:2] == said[:2] and lines[2].startswith("supported everywhere")
    shown = [line for line in lines if line.startswith("inconclusive")]
    (more,) = [line for line in lines if line.startswith("and ")] or [None]
    assert more == (None if len(shown) == count else f"and {count - len(shown)} more, on the page")
    assert len(shown) == count or len(lines) == LINES, "no line is left empty"


def test_several_settings_are_told_by_their_average():
    (line, *_) = last_screen([judged("c", CLEAR, CLEAR, [0.31, 0.30, 0.32])], [], page=None)
    assert line.startswith("supported everywhere  c: +30.3 [") and line.endswith("on average over 3 settings")
    (line, *rest) = last_screen([judged("c", CLEAR, [0.31, 0.30, 0.32])], [], page=None)
    assert line == "supported everywhere  c: +30.0 to +31.0 points in 2 settings"
    assert rest == ["1 of 1 claims decided"], "no page was made"


def test_what_more_seeds_might_decide_comes_by_their_number():
    assert further([judged("c", CLEAR)]) == []
    (line,) = further([judged("c", NOISY)])
    assert line.startswith("more seeds might decide: c (about ")
    never = judged("never", NOISY)
    never = replace(never, decision=replace(never.decision, seeds=None))
    (line,) = further([never, *(judged(f"c{k}", NOISY) for k in range(3))])
    assert line.count("about") == 3 and line.endswith(", 1 more on the page")
    assert further([never]) == ["more seeds might decide: never (unlikely)"]


def test_claims_about_other_experiments_are_left_out(reduced):
    experiment = parse_experiment(reduced, "reduced")
    about, known = judged("about"), judged("known", CLEAR)
    other = Claim.model_validate(ENTRY | {"id": "o", "direction": "higher", "trust_region": "soft-wall"})
    assert about.verdict == "not run"
    found = concerning([ClaimVerdict(other, Decision("not run")), about, known], experiment)
    assert [one.claim.id for one in found] == ["about", "known"]
    lines = last_screen(found, [], page=None)
    assert lines[1].startswith("not run") and "about: no runs of troll and clip" in lines[1]


def test_where_no_claim_concerns_the_runs_that_is_said():
    lines = last_screen([], [], page=PAGE)
    assert lines[0] == "no claim concerns these runs"
