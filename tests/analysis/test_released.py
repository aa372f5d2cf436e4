"""The released tables say what an independent recomputation of them said, by the present rule."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from troll.analysis.claims.packaged import DEFAULT, claims_file
from troll.analysis.claims.verdicts import judge, read_claims
from troll.analysis.claims.wording import average, levels
from troll.analysis.data.results import read_results, read_tables
from troll.analysis.data.summaries import cells
from troll.analysis.data.tidy import BASE
from troll.analysis.pooling import error_covariance, pool
from troll.analysis.render.formats import points
from troll.analysis.report.check import check_results
from troll.analysis.statistics import seed_interval

ROOT = Path(__file__).parents[2]
CLAIMS = ROOT / "workflow/config/benchmark-claims.yaml"
EVERY = sorted(path.parent for path in ROOT.glob("results/released/*/plan.json"))
RELEASES = [
    ROOT / "results/released" / name for name in ("testbed", "testbed-ablations", "testbed-estimators")
]


@pytest.fixture(scope="module")
def judged():
    # Late: several seconds for three experiments, but only once.
    tables: tuple[pd.DataFrame, pd.DataFrame] = read_tables(RELEASES)
    claims = read_claims([claims_file(DEFAULT)])
    return {one.claim.id.removeprefix("testbed-"): one for one in judge(claims, *tables)}


AVERAGES = {
    "stale-better": "+22.2 [+16.1, +28.3] points on average, "
    "95 % prediction interval for a new setting [+7.3, +37.1]",
    "stale-more-stable": "−16.3 [−22.2, −10.4] points on average, ",
    "faster": "+8.1 [+3.9, +12.3] points on average, ",
    "small-time-overhead": "+0.4 [−2.6, +3.5] % on average, ",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), AVERAGES.items())
def test_averages_over_unique_settings(judged, name, text):
    assert average(judged[name]).startswith(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "directory",
    [path if path.name == "testbed" else pytest.param(path, marks=pytest.mark.nightly) for path in EVERY],
    ids=lambda path: path.name,
)
def test_released_tables_and_verdicts_are_those_of_the_present_code(directory, monkeypatch):
    monkeypatch.chdir(ROOT)
    known = read_results(directory)
    claims = [claims_file(name) for name in known.claims or [DEFAULT]]
    compared = check_results(directory, results=known, claims=claims, figures=False)  # names what differs
    assert directory / "tables/main.csv" in compared


@pytest.mark.slow
def test_the_released_duel_is_that_of_its_runs(troll):
    result = troll("release", "check", "results/released/duel", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert "are what the released data give" in result.stderr + result.stdout


@pytest.mark.slow
def test_settings_that_stand_in_several_experiments_count_once(judged):
    counts = {name: len(one.decision.settings) for name, one in judged.items()}
    assert counts["stale-better"] == counts["gentle-not-worse"] == counts["clip-stale-falls"] == 7
    assert counts["faster"] == counts["kl-controlled"] == counts["entropy-kept"] == 18


@pytest.mark.slow
def test_small_differences_to_more_digits(judged):
    gentle, entropy = (judged[name].decision.pooled for name in ("gentle-not-worse", "entropy-kept"))
    assert gentle is not None and entropy is not None
    found = 100 * np.array([gentle.estimate, gentle.low, gentle.high])
    assert found == pytest.approx([0.21, -0.095, 0.517], abs=0.005)
    assert [entropy.estimate, entropy.low, entropy.high] == pytest.approx(
        [-0.0365, -0.0690, -0.0041], abs=5e-4
    )
    assert sum(setting.effect < 0 for setting in judged["entropy-kept"].decision.settings) == 13
    assert judged["entropy-kept"].verdict == "the contrary holds"


@pytest.mark.slow
def test_where_the_sign_differs_by_task(judged):
    assert judged["clip-stale-falls"].decision.label == "depends on task"
    assert levels(judged["clip-stale-falls"]).startswith("chains −28.6, functions +15.3 points")


SPARSE = ("benchmark-16-tokens-suffice", "benchmark-constant-tail-suffices")


@pytest.mark.slow
def test_other_readings_of_sparsity_are_those_that_are_told():
    """As if settings shared no runs, in the claims' histories; and seed by seed, in the findings."""
    directory = ROOT / "results/released/benchmark-sparsity"
    given = read_results(directory)
    claims = [one for one in read_claims([CLAIMS]) if one.id in SPARSE]
    first, second = (one.decision.settings for one in judge(claims, given.runs, given.items))
    for claim, settings in zip(claims, (first, second), strict=True):
        known = [one.by_seed for one in settings]
        independent = pool([one.effect for one in settings], error_covariance(known, [None] * len(known))[1])
        assert f"[{100 * independent.low:+.1f}, {100 * independent.high:+.1f}]" in claim.history[-1]
    by_seed = seed_interval(np.mean([one.differences for one in first], axis=0))
    told = [points(value) for value in (by_seed.estimate, by_seed.low, by_seed.high)]
    text = " ".join((ROOT / "docs/findings.md").read_text().split())
    assert f"is {told[0]} points with Student's interval [{told[1]}, {told[2]}]" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over_seeds", "verdicts"),
    [
        (lambda late: float(late.median()), ("supported on average", "inconclusive")),
        (lambda late: float(np.exp(np.log(late).mean())), ("inconclusive", "inconclusive")),
    ],
    ids=["median", "geometric mean"],
)
def test_other_readings_of_equal_divergence_are_those_that_are_told(monkeypatch, over_seeds, verdicts):
    """The findings tell what the verdicts would be if late KL were averaged over seeds in other ways."""

    def late(summary):
        found = {
            cell: over_seeds(cell.rows(summary)["late_kl"])
            for cell in cells(summary)
            if cell.trust_region != BASE
        }
        return {cell: value for cell, value in found.items() if value > 0}

    monkeypatch.setattr("troll.analysis.claims.verdicts.late_divergences", late)
    given = read_results(ROOT / "results/released/benchmark-divergence")
    judged = judge([one for one in read_claims([CLAIMS]) if one.at_equal_kl], given.runs, given.items)
    assert tuple(one.verdict for one in judged) == verdicts
    pooled = judged[0].decision.pooled
    assert pooled is not None
    told = [points(value) for value in (pooled.estimate, pooled.low, pooled.high)]
    text = " ".join((ROOT / "docs/findings.md").read_text().split())
    assert f"{told[0]} [{told[1]}, {told[2]}] points" in text
