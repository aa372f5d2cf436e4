"""Averages over settings: against published numbers, definitions and simulation."""

import math

import numpy as np
import pytest
from refusals import refused
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

from troll.analysis.pooling import clears, error_covariance, moderator_p, pool, reml, seeds_to_decide

# Thirteen trials of the BCG vaccine (Colditz et al. 1994): cases and others among vaccinated and controls.
TRIALS = np.array(
    [
        [4, 119, 11, 128],
        [6, 300, 29, 274],
        [3, 228, 11, 209],
        [62, 13536, 248, 12619],
        [33, 5036, 47, 5761],
        [180, 1361, 372, 1079],
        [8, 2537, 10, 619],
        [505, 87886, 499, 87892],
        [29, 7470, 45, 7232],
        [17, 1699, 65, 1600],
        [186, 50448, 141, 27197],
        [5, 2493, 3, 2338],
        [27, 16886, 29, 17825],
    ],
    dtype=float,
)


def bcg():
    a, b, c, d = TRIALS.T
    return np.log(a / (a + b)) - np.log(c / (c + d)), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)


def test_reml_and_the_interval_are_those_that_metafor_publishes():
    # Viechtbauer 2010, "Conducting meta-analyses in R with the metafor package": rma(yi, vi, data = dat).
    effects, variances = bcg()
    assert reml(effects, variances) == pytest.approx(0.3132, abs=5e-5)
    found = pool(effects, variances)
    assert found.estimate == pytest.approx(-0.7145, abs=5e-5)
    assert found.between == pytest.approx(math.sqrt(0.3132), abs=5e-5)


def test_hartung_and_knapp_are_statsmodels_where_tau_is_the_same():
    effects, variances = bcg()
    between = reml(effects, variances)
    theirs = combine_effects(effects, variances + between, method_re="dl")  # all the spread in the variances
    scale = theirs.scale_hksj_fe
    half = stats.t.ppf(0.975, 12) * theirs.sd_eff_w_fe * math.sqrt(max(scale, 1))
    found = pool(effects, variances)
    assert (found.low, found.high) == pytest.approx((found.estimate - half, found.estimate + half))


def test_settings_that_agree_better_than_chance_do_not_narrow_the_interval():
    found = pool([0.2, 0.2, 0.2, 0.2], [0.01] * 4)
    assert found.between == pytest.approx(0, abs=1e-9)
    assert found.high - found.estimate == pytest.approx(stats.t.ppf(0.975, 3) * 0.1 / 2)
    assert found.predicted_high - found.estimate == pytest.approx(stats.t.ppf(0.975, 2) * 0.1 / 2)


def test_seeds_that_agree_to_the_last_digit_are_no_division_by_zero():
    found = pool([0.1, 0.2, 0.3], [0.0, 0.0, 0.0])
    assert found.estimate == pytest.approx(0.2) and found.between == pytest.approx(0.1, rel=1e-3)
    with refused("two", error=ValueError):
        pool([0.1], [0.1])


@pytest.mark.parametrize("between", [0.0, 0.05])
def test_the_interval_of_the_average_covers_the_truth(between):
    rng, hits, trials = np.random.default_rng(1), 0, 300
    spreads = np.array([0.06, 0.02, 0.1, 0.15, 0.03, 0.06, 0.08])
    for _ in range(trials):
        seeds = rng.normal(0, between, (7, 1)) + spreads[:, None] * rng.normal(size=(7, 5))
        found = pool(seeds.mean(axis=1), seeds.var(axis=1, ddof=1) / 5)
        hits += found.low <= 0 <= found.high
    assert hits / trials > 0.88


def sharing(rng, effects, seeds=5):
    """Differences of a few variants from one baseline, whose runs vary more than theirs."""
    baseline = rng.normal(0, 0.08, seeds)
    own = rng.normal(0, 0.05, (effects.size, seeds))
    return [dict(enumerate(row)) for row in (effects[:, None] + own - baseline).tolist()]


def test_settings_of_one_baseline_have_the_covariance_of_its_seeds():
    pair = [{0.0: 0.1, 1.0: 0.4, 2.0: 0.1}, {2.0: 0.3, 0.0: 0.2, 1.0: 0.6}]
    one_seed, means = error_covariance(pair, ["clip", "clip"])
    table = np.array([[0.1, 0.4, 0.1], [0.2, 0.6, 0.3]])
    assert one_seed == pytest.approx(np.cov(table)) and means == pytest.approx(np.cov(table) / 3)
    for apart in (["clip", "gspo"], [None, None]):
        assert error_covariance(pair, apart)[0] == pytest.approx(np.diag(np.var(table, axis=1, ddof=1)))
    # Runs that vary against each other by chance are not taken as surer than independent ones.
    against = [{0.0: 0.1, 1.0: 0.2, 2.0: 0.3}, {0.0: 0.3, 1.0: 0.2, 2.0: 0.1}]
    assert error_covariance(against, ["clip", "clip"])[0] == pytest.approx(np.diag([0.01, 0.01]))


def test_seeds_that_only_one_of_two_settings_has_share_nothing():
    rng = np.random.default_rng(5)
    draws = [sharing(rng, np.zeros(2), 12) for _ in range(2000)]
    kept = [({s: a[s] for s in range(9)}, {s: b[s] for s in range(3, 12)}) for a, b in draws]
    means = np.array([[np.mean(list(one.values())) for one in pair] for pair in kept])
    expected = 0.08**2 * 6 / (9 * 9)  # six common seeds of the baseline, in two means of nine
    assert np.cov(means.T)[0, 1] == pytest.approx(expected, rel=0.15)
    found = np.mean([error_covariance(pair, ["clip"] * 2)[1][0, 1] for pair in kept])
    assert found == pytest.approx(expected, rel=0.1)


def test_a_covariance_that_is_diagonal_is_independence():
    effects, variances = bcg()
    assert reml(effects, np.diag(variances)) == pytest.approx(reml(effects, variances), rel=1e-9)
    assert pool(effects, np.diag(variances)) == pool(effects, variances)


def test_equal_settings_of_one_baseline_are_little_more_than_one():
    correlated = 0.01 * (0.5 * np.eye(4) + 0.5)
    found = pool([0.2, 0.2, 0.2, 0.2], correlated)
    # Of K equal variances with correlation r the mean has the variance v (1 + (K - 1) r) / K.
    error = math.sqrt(0.01 * (1 + 3 * 0.5) / 4)
    assert found.high - found.estimate == pytest.approx(stats.t.ppf(0.975, 3) * error)


def test_reml_of_correlated_effects_is_the_maximum_of_the_restricted_likelihood():
    rng = np.random.default_rng(6)
    effects, mix = rng.normal(0, 0.2, 6), rng.normal(size=(6, 6))
    covariance = 0.01 * (mix @ mix.T / 6 + np.eye(6))
    contrasts = np.linalg.qr(np.column_stack([np.ones(6), rng.normal(size=(6, 5))]))[0][:, 1:]

    def likelihood(between):  # of five contrasts that the mean does not enter
        whole = contrasts.T @ (covariance + between * np.eye(6)) @ contrasts
        return stats.multivariate_normal(np.zeros(5), whole).logpdf(contrasts.T @ effects)

    found = reml(effects, covariance)
    assert found > 0 and likelihood(found) >= max(likelihood(found * (1 + step)) for step in (-1e-4, 1e-4))
    # To the digits that released files are compared to, whatever a processor rounds otherwise.
    assert reml(effects * (1 + 1e-15), covariance * (1 - 1e-15)) == pytest.approx(found, rel=1e-11)


def test_the_average_of_variants_of_one_baseline_covers_the_truth():
    rng, trials, hits = np.random.default_rng(7), 300, {"covariance": 0, "independent": 0}
    for _ in range(trials):
        known = sharing(rng, np.zeros(5))
        effects = [np.mean(list(one.values())) for one in known]
        for name, baselines in (("covariance", ["clip"] * 5), ("independent", [None] * 5)):
            found = pool(effects, error_covariance(known, baselines)[1])
            hits[name] += found.low <= 0 <= found.high
    assert hits["covariance"] / trials > 0.88
    assert hits["independent"] / trials < 0.8, "the case would show nothing"


def test_what_an_effect_depends_on_is_found_and_what_it_does_not_is_not():
    rng = np.random.default_rng(2)
    tasks, estimators = ["a", "b"] * 6, ["x", "x", "y", "y"] * 3
    effects = np.where(np.array(tasks) == "a", 0.3, -0.1) + rng.normal(0, 0.03, 12)
    assert (
        moderator_p(effects, [0.001] * 12, tasks)
        < 1e-4
        < 0.05
        < moderator_p(effects, [0.001] * 12, estimators)
    )
    assert math.isnan(moderator_p(effects, [0.001] * 12, ["a"] * 11 + ["b"])), "one setting is no level"
    # With two levels and no tau² the test is Student's on the two means.
    y, levels = np.array([1.0, 2.0, 4.0, 6.0]), ["a", "a", "b", "b"]
    assert moderator_p(y, [0.01] * 4, levels) == pytest.approx(stats.ttest_ind(y[:2], y[2:]).pvalue, rel=0.02)


def test_false_dependence_is_as_rare_as_it_should_be():
    rng, trials = np.random.default_rng(3), 300
    levels = ["a", "a", "a", "a", "b", "b", "b", "b"]
    found = 0
    for _ in range(trials):
        seeds = rng.normal(0, 0.05, (8, 1)) + 0.1 * rng.normal(size=(8, 5))
        found += moderator_p(seeds.mean(axis=1), seeds.var(axis=1, ddof=1) / 5, levels) < 0.05
    assert found / trials < 0.09


def test_false_dependence_between_variants_of_one_baseline_is_as_rare():
    rng, trials, found = np.random.default_rng(8), 300, {"covariance": 0, "independent": 0}
    levels = ["a"] * 3 + ["b"] * 3
    for _ in range(trials):
        known = [*sharing(rng, np.zeros(3)), *sharing(rng, np.zeros(3))]
        effects = [np.mean(list(one.values())) for one in known]
        for name, baselines in (("covariance", levels), ("independent", [None] * 6)):
            found[name] += moderator_p(effects, error_covariance(known, baselines)[1], levels) < 0.05
    assert 2 * found["covariance"] < found["independent"] and found["covariance"] / trials < 0.1


def test_seeds_that_would_decide_do_decide():
    def above(average, error, df):
        return clears(average, error, df)

    needed = seeds_to_decide([0.1], [0.2**2], above, least=3)
    assert needed is not None
    draws = np.random.default_rng(4).normal(0.1, 0.2, (20_000, needed))
    assert float((stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05).mean()) == pytest.approx(0.8, abs=0.03)
    # Settings that differ much are not decided by seeds.
    assert seeds_to_decide([0.5, -0.4, 0.1, -0.1], [0.1**2] * 4, above, least=3) is None
