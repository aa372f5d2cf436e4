"""One family of comparisons: each once, corrected for all of them, and read by the corrected p-value."""

import numpy as np
import pandas as pd
import pytest
import synthetic
from statsmodels.stats.multitest import multipletests

from troll.analysis.figures.forest import forest_lines
from troll.analysis.render.formats import notes
from troll.analysis.tables.comparisons import ALONE, READING, comparison_family, read_in_family
from troll.analysis.tables.results import main_table


@pytest.fixture(scope="module")
def twice(collected):
    """The experiment and, below it, another one that shares all stale runs and has gentle ones of its own."""
    runs, items = (frame.assign(experiment="again") for frame in (collected.runs, collected.items))
    runs = synthetic.record(runs, runs["condition"] == "gentle", **{"training.learning_rate": 3e-4})
    both = ((collected.runs, runs), (collected.items, items))
    found = [pd.concat(pair, ignore_index=True) for pair in both]
    return found[0], found[1]


def test_shared_runs_count_once_and_all_are_one_family(collected, twice):
    family = comparison_family(*twice)
    counts = family.groupby(["experiment", "condition"]).size().to_dict()
    assert counts == {("testbed", "gentle"): 4, ("testbed", "stale"): 4, ("again", "gentle"): 4}
    assert family["p_holm"].to_numpy() == pytest.approx(multipletests(family["p"], method="holm")[1])
    sure = family["p_holm"] < 0.05
    assert (sure == family["reading"].isin(["higher", "lower"])).all()
    assert (
        family.loc[sure, "reading"] == np.where(family.loc[sure, "difference"] > 0, "higher", "lower")
    ).all()
    # The same ten runs have the same p-value wherever they stand.
    alone = main_table(collected.runs, collected.items).dropna(subset=["p"])
    assert family["p"].iloc[:8].to_numpy() == pytest.approx(alone["p"].to_numpy())


def test_a_variant_is_one_of_its_own_experiment(collected):
    """Without the default of its own, a method is no variant, whatever else stands beside it."""
    runs, items = (frame[frame["trust_region"] != "dr"] for frame in (collected.runs, collected.items))
    other = [frame.assign(experiment="other").astype({"trust_region": str}) for frame in (runs, items)]
    for frame in other:
        frame["trust_region"] = frame["trust_region"].replace({"troll": "troll-kl0.01"})
        frame["run_id"] = frame["run_id"].astype(str).str.replace("/troll/", "/troll-kl0.01/")
    alone = comparison_family(*other)
    assert len(alone) == 8 and set(alone["against"]) == {"clip"}
    both = [pd.concat([one, two], ignore_index=True) for one, two in zip((runs, items), other, strict=True)]
    assert (comparison_family(*both)["experiment"] == "other").sum() == 8
    assert {line.cell.trust_region for line in forest_lines(*both)} == {"troll", "troll-kl0.01"}


def test_the_same_runs_against_another_method_are_another_comparison(collected):
    """A variant beside its default, and the same runs in an experiment without it, beside the baseline."""
    whole, without = [], []
    for frame in (collected.runs, collected.items):
        names = frame.astype({"trust_region": str, "run_id": str})
        varied = names[names["trust_region"] == "troll"].assign(trust_region="troll-kl0.01")
        varied["run_id"] = varied["run_id"].str.replace("/troll/", "/troll-kl0.01/")
        whole.append(pd.concat([names, varied], ignore_index=True))
        without.append(whole[-1][whole[-1]["trust_region"] != "troll"].assign(experiment="other"))
    both = [pd.concat(pair, ignore_index=True) for pair in zip(whole, without, strict=True)]
    family = comparison_family(*both)
    counts = family.groupby(["experiment", "trust_region", "against"]).size().to_dict()
    assert counts == {
        ("testbed", "troll", "clip"): 8,
        ("testbed", "troll-kl0.01", "troll"): 8,
        ("other", "troll-kl0.01", "clip"): 8,
    }


def test_a_main_table_can_be_read_in_its_family(collected, twice):
    main, family = main_table(collected.runs, collected.items), comparison_family(*twice)
    found = read_in_family(main, family)
    compared = main["p"].notna()
    assert list(found.loc[compared, "reading"]) == list(family["reading"].iloc[:8])
    assert "p" not in found and READING in notes(found)[0] and ALONE in notes(main)[0]
    assert ALONE not in notes(found)[0] and "p: paired t-test" not in notes(found)[0]
    assert set(found.loc[~compared, "reading"]) == {""}
