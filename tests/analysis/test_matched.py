"""Methods at equal divergence."""

import numpy as np
import pandas as pd
import pytest
import synthetic

from troll.analysis.claims.ledger import to_markdown
from troll.analysis.claims.verdicts import judge
from troll.analysis.claims.wording import why
from troll.analysis.data.tidy import Tidy
from troll.analysis.render import formats
from troll.analysis.tables.comparisons import matched_table

KL = {"clip": 0.040, "clip-eps0.1": 0.0105, "troll": 0.010, "troll-kl0.25": 0.020}
SOLVED = {"clip": 20, "clip-eps0.1": 24, "troll": 30, "troll-kl0.25": 33}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    counts = {(method, "stale"): synthetic.rising(count) for method, count in SOLVED.items()}
    found = synthetic.read_solved(tmp_path_factory.mktemp("results") / "kl", counts, batches=3)
    late = found.runs["metric"] == "summary/kl"
    found.runs.loc[late, "value"] = found.runs.loc[late, "trust_region"].map(KL).astype(float)
    return found


def test_each_method_meets_the_clip_that_drifts_as_far(known):
    table = matched_table(known.runs, known.items).set_index("trust_region")
    assert list(table.index) == ["troll", "troll-kl0.25"], "variants of the baseline are no methods"
    row = table.loc["troll"]
    assert row["against"] == "clip-eps0.1" and row["ratio"] == pytest.approx(0.010 / 0.0105)
    assert row["difference"] == pytest.approx(0.1) and row["seeds"] == 3
    assert row["difference_low"] == pytest.approx(0.1) == row["difference_high"]


def test_unequal_divergence_is_shown_and_not_compared(known):
    row = matched_table(known.runs, known.items).set_index("trust_region").loc["troll-kl0.25"]
    assert row["against"] == "clip-eps0.1" and row["ratio"] == pytest.approx(0.02 / 0.0105)
    assert np.isnan(row["difference"]) and row["seeds"] == 0


def test_without_a_baseline_there_are_no_rows(known):
    alone = known.runs[known.runs["trust_region"].str.startswith("troll")]
    assert matched_table(alone, known.items).empty


def test_the_table_says_what_it_compares(known):
    text = formats.to_markdown(matched_table(known.runs, known.items))
    assert "+10.0" in text and "at most 1.2 times the smaller" in text


def against(setting):
    return setting.name.rpartition(" against ")[2]


def asked(known, **changes):
    claim = {"trust_region": "troll*", "baseline": "clip*", "at_equal_kl": True} | changes
    return judge([synthetic.claim(**claim)], known.runs, known.items)[0]


def test_a_claim_at_equal_kl_compares_with_the_nearest_baseline(known):
    (setting,) = asked(known).decision.settings
    assert setting.name == "kl / tiny / chains / stale / grpo / troll against clip-eps0.1"
    assert setting.effect == pytest.approx(0.1) and setting.seeds == 3
    where = "where the larger late KL is at most 1.2 times the smaller"
    assert f"pass@1, troll* minus clip*, {where}; claimed: higher" in to_markdown([asked(known)])


def test_the_nearest_baseline_is_chosen_within_the_setting_whatever_it_scores(known):
    """Wider clip scores lower than the narrow one: it is not taken although TROLL would look better."""
    kl, both = known.runs["metric"] == "summary/kl", ["troll", "troll-kl0.25"]
    near = known.runs.copy()
    near.loc[kl & near["trust_region"].isin(both), "value"] = 0.0109
    assert {against(one) for one in asked(Tidy(near, known.items)).decision.settings} == {"clip-eps0.1"}
    near = near.copy()  # a table is not changed in place once it was judged
    near.loc[kl & near["trust_region"].isin(both), "value"] = 0.0350
    found = asked(Tidy(near, known.items)).decision.settings
    assert [one.effect for one in found] == [pytest.approx(10 / 60), pytest.approx(13 / 60)]
    assert {against(one) for one in found} == {"clip"}
    assert found[0].baseline == found[1].baseline is not None, "their errors go together"


def test_seeds_of_several_experiments_meet_where_the_baseline_is_the_same(known):
    """With a seed more, another clip is nearest: its difference does not go to those from the other one."""
    nearest = {"clip": 0.0105, "clip-eps0.1": 0.0101, "troll": 0.0100, "troll-kl0.25": 0.0200}
    runs = known.runs.copy()
    kl = runs["metric"] == "summary/kl"
    runs.loc[kl, "value"] = runs.loc[kl, "trust_region"].map(nearest).astype(float)
    runs.loc[kl & (runs["trust_region"] == "clip-eps0.1") & (runs["seed"] == 2), "value"] = 0.0120
    few = [frame[frame["seed"].fillna(0) < 2] for frame in (runs, known.items)]
    again = [frame.assign(experiment="again") for frame in (runs, known.items)]
    both = [pd.concat(pair, ignore_index=True) for pair in zip(few, again, strict=True)]
    settings = asked(Tidy(*both), trust_region="troll").decision.settings
    assert [(against(one), one.seeds) for one in settings] == [("clip-eps0.1", 2), ("clip", 3)]
    assert [one.differences for one in settings] == [
        pytest.approx([6 / 60] * 2),
        pytest.approx([10 / 60] * 3),
    ]


def test_where_nothing_is_equally_near_the_claim_is_not_judged(known):
    found = asked(known, trust_region="troll-*")
    assert found.verdict == "not run" and "no runs of troll-* and clip* with equal late KL" in why(found)
    assert asked(known, baseline="kl-penalty*").verdict == "not run"
    assert len(asked(known, trust_region="*").decision.settings) == 1, (
        "a baseline is not compared with itself"
    )
