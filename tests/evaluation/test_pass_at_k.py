from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troll.evaluation.pass_at_k import mean_pass_at_k, pass_at_k, reported_ks


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_it_is_the_share_of_subsets_with_a_right_sample(flags, data):
    k = data.draw(st.integers(1, len(flags)))
    subsets = list(combinations(flags, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(flags), sum(flags), k) == pytest.approx(expected)


def test_large_counts_stay_exact():
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)
    assert pass_at_k(10_000, 0, 10_000) == 0.0
    assert pass_at_k(10_000, 9_999, 2) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4), (0, 0, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_problems_count_alike_whatever_their_samples():
    assert mean_pass_at_k([(1, 1), (9, 0)], 1) == 0.5


def test_reported_ks():
    assert [reported_ks(n) for n in (1, 4, 8, 32)] == [[1], [1, 4], [1, 8], [1, 8, 32]]
