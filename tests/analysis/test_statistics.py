import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy import stats

from interval_coverage import METHODS, SCENARIOS, coverage_table, student
from troll.analysis.statistics import (
    Interval,
    area_under_curve,
    equivalence_p_value,
    holm,
    iqm,
    largest_drop,
    paired_difference,
    paired_p_value,
    pass_at_k,
    probability_of_improvement,
    sd,
    seed_interval,
    steps_to,
    trimmed_mean,
)

values = st.lists(st.floats(-10, 10), min_size=1, max_size=12)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_iqm_drops_a_quarter_at_either_end():
    assert iqm(np.array([0.0, 1.0, 2.0, 100.0])) == 1.5
    assert iqm(np.array([5.0, 1.0])) == 3.0
    table = rng().random((3, 9))
    np.testing.assert_allclose(iqm(table), [stats.trim_mean(row, 0.25) for row in table])


def test_sd_is_the_sample_one():
    assert sd([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert math.isnan(sd([1.0]))


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    samples = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(samples, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_of_thousands_of_samples_is_a_number():
    right = np.array([0, 1, 2, 5, 1024, 2047, 2048])
    expected = [1 - math.comb(2048 - c, 1024) / math.comb(2048, 1024) for c in right.tolist()]
    np.testing.assert_allclose(pass_at_k(2048, right, 1024), expected, rtol=1e-10, atol=0)


def test_pass_at_k_needs_k_samples():
    np.testing.assert_array_equal(np.isnan(pass_at_k([3, 0, 8], [3, 0, 0], 8)), [True, True, False])


def test_the_interval_is_students_of_the_seeds_means():
    scores = rng(1).random((5, 40))
    found = seed_interval(scores, level=0.9)
    theirs = stats.ttest_1samp(scores.mean(axis=1), 0.0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert (found.estimate, found.seeds, found.items) == (pytest.approx(scores.mean()), 5, 40)
    assert seed_interval(scores.mean(axis=1), level=0.9).high == pytest.approx(found.high)


def test_one_seed_leaves_the_uncertainty_of_the_items():
    scores = rng(7).random((1, 50))
    found = seed_interval(scores)
    half = 1.96 * scores.std() / math.sqrt(50)
    assert (found.low, found.high) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.01)
    alone = seed_interval([[0.5]])
    assert alone.estimate == 0.5 and math.isnan(alone.low)
    assert found.reading() == "one seed only", "however narrow it is"


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_interval_and_p_value_agree(differences):
    found, p = seed_interval(differences), paired_p_value(differences)
    if np.ptp(differences) > 1e-6:
        assert (found.reading() != "no clear difference") == (p < 0.05)


def test_pairing_removes_what_the_methods_share():
    generator = rng(10)
    difficulty, luck = generator.random((1, 100)), generator.normal(size=(4, 1))
    baseline = difficulty + luck
    method = baseline + 0.1 + 0.01 * generator.normal(size=(4, 100))
    paired = paired_difference(method, baseline)
    assert paired.reading() == "higher"
    assert paired.high - paired.low < 0.02
    alone = seed_interval(method)
    assert alone.high - alone.low > 0.5
    assert paired_difference(baseline, method).reading() == "lower"


def test_shapes_and_missing_values_are_refused():
    with refused("shape", error=ValueError):
        paired_difference(np.zeros((2, 3)), np.zeros((3, 2)))
    for wrong in (np.zeros((1, 2, 3)), np.zeros((0, 3)), np.full((2, 2), np.nan)):
        with pytest.raises(ValueError):
            seed_interval(wrong)


@pytest.mark.parametrize(
    ("low", "high", "reading"),
    [
        (0.01, 0.2, "higher"),
        (-0.2, -0.01, "lower"),
        *(
            (low, high, "no clear difference")
            for low, high in ((-0.01, 0.2), (0.0, 0.2), (-0.2, 0.0), (0, 0))
        ),
        (math.nan, math.nan, "no clear difference"),
    ],
)
def test_readings_follow_from_the_interval(low, high, reading):
    assert Interval((low + high) / 2, low, high, 0.95, 3, 10).reading() == reading


@given(values, values)
def test_probability_of_improvement_is_mann_whitney(first, second):
    found = probability_of_improvement(first, second)
    u = stats.mannwhitneyu(first, second).statistic
    assert found == pytest.approx(u / (len(first) * len(second)))
    assert found + probability_of_improvement(second, first) == pytest.approx(1)


def test_area_is_the_mean_height():
    assert area_under_curve([0, 1, 3], [0.0, 1.0, 1.0]) == pytest.approx(2.5 / 3)
    assert area_under_curve([5], [0.3]) == 0.3
    assert math.isnan(area_under_curve([], []))


def test_steps_to_a_success():
    steps, curve = [1, 9, 17, 25], [0.1, 0.6, 0.2, 0.8]
    assert steps_to(steps, curve, 0.5) == 9
    assert steps_to(steps, curve, 0.5, window=2) == 25
    assert math.isnan(steps_to(steps, curve, 0.9))
    assert math.isnan(steps_to([1], [1.0], 0.5, window=2))
    assert steps_to([1, 2, 3], [0.1, 0.1, 0.1], 0.1, window=3) == 3


@given(values)
def test_largest_drop_by_brute_force(curve):
    pairs = [before - after for i, before in enumerate(curve) for after in curve[i:]]
    assert largest_drop(curve) == pytest.approx(max(pairs))


def test_paired_p_values():
    differences = [0.1, 0.3, 0.2, 0.15]
    assert paired_p_value(differences) == pytest.approx(stats.ttest_rel(differences, np.zeros(4)).pvalue)
    assert paired_p_value([0.0, 0.0]) == 1 and paired_p_value([0.1, 0.1]) == 0
    assert math.isnan(paired_p_value([0.1]))


def test_holm_by_its_definition():
    # Holm 1979 by hand: 4 x 0.01, 3 x 0.013, 2 x 0.03, 1 x 0.04, made monotone.
    np.testing.assert_allclose(holm([0.04, 0.01, np.nan, 0.013, 0.03]), [0.06, 0.04, np.nan, 0.04, 0.06])
    assert holm([]).size == 0
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]


def test_equivalence_agrees_with_the_interval():
    """The larger p of two one-sided tests is below 0.025 just where the interval lies within the margin."""
    for shift in np.linspace(-0.05, 0.05, 11):
        differences = shift + 0.04 * rng(1).normal(size=30)
        interval, p_value = seed_interval(differences), equivalence_p_value(differences, 0.03)
        assert (p_value < 0.025) == (interval.low > -0.03 and interval.high < 0.03)
        low, high = (stats.ttest_1samp(differences, end).statistic for end in (-0.03, 0.03))
        assert p_value == pytest.approx(max(stats.t.sf(low, 29), stats.t.cdf(high, 29)))
    assert equivalence_p_value([0.01, 0.01], 0.03) == 0 and equivalence_p_value([0.03, 0.03], 0.03) == 1
    assert math.isnan(equivalence_p_value([0.01], 0.03))


def test_the_trimmed_mean_has_yuens_interval():
    values = np.sort(rng(2).standard_t(2, size=30))
    mean, p_value = trimmed_mean(values, 0.2)
    assert mean.estimate == pytest.approx(values[6:24].mean()) and mean.seeds == 30
    winsorised = np.clip(values, values[6], values[23])
    error = winsorised.std(ddof=1) / (0.6 * math.sqrt(30))
    half = stats.t.ppf(0.975, 17) * error
    assert (mean.low, mean.high) == pytest.approx((mean.estimate - half, mean.estimate + half))
    assert p_value == pytest.approx(2 * stats.t.sf(abs(mean.estimate) / error, 17))
    wild = np.array([*values[:-1], 1e6])
    assert trimmed_mean(wild, 0.2)[0] == mean, "what is cut off counts for nothing"
    few, unknown = trimmed_mean([1.0], 0.2)
    assert math.isnan(few.low) and math.isnan(unknown)
    assert trimmed_mean([0.5, 0.5, 0.5], 0.2)[1] == 0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.title)
def test_draws_have_the_truth_that_is_said(scenario):
    scores, on_split = scenario.draw(5, 400, np.random.default_rng(0))
    error = scores.mean(axis=(1, 2)).std() / 20
    assert abs(scores.mean() - scenario.truth) < 4 * error
    assert scores.mean(axis=(1, 2)) - on_split == pytest.approx(0, abs=8 * scores.mean(axis=2).std())


def test_the_interval_of_the_tables_is_the_one_that_is_simulated():
    scores = np.random.default_rng(1).normal(size=(3, 4, 10))
    low, high = student(scores, np.random.default_rng(2))
    for index, matrix in enumerate(scores):
        found = seed_interval(matrix)
        assert (low[index], high[index]) == pytest.approx((found.low, found.high))


@pytest.mark.slow
def test_student_covers_and_the_former_bootstrap_was_too_wide():
    table = coverage_table(150)
    assert len(table) == 9 * len(METHODS) + 9
    averages = table.iloc[-9:].set_index(["interval", "scenario", "seeds"])["covers"]
    independent = averages.index.get_level_values("interval").str.contains("as if independent")
    assert averages[~independent].between(0.8, 1.0).all()
    assert (averages[independent].to_numpy() < averages[~independent].iloc[3:].to_numpy()).all()
    normal = table.iloc[:-9].set_index(["interval", "scenario", "seeds"])
    normal = normal.drop(SCENARIOS[2].title, level="scenario")
    students = normal.loc["Student's t over seeds"]
    assert students["covers"].between(0.88, 1.0).all()
    former = normal.loc["two-level bootstrap, stretched"]
    assert (former["covers"] > 0.96).all() and (former["width"] > students["width"]).all()
