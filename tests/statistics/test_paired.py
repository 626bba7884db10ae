"""Differences over common seeds: Student's interval, sign flips, what n cannot show."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from capsweep.statistics.paired import paired_difference, sign_flip, smallest_p, t_test

DIFFERENCES = st.lists(st.integers(-50, 50), min_size=2, max_size=8)


def test_only_common_seeds_are_compared() -> None:
    found = paired_difference({0: 0.3, 1: 0.5, 2: 9.0}, {0: 0.1, 1: 0.1, 7: 9.0})
    assert found is not None
    assert (found.n, found.mean) == (2, pytest.approx(0.3))
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_one_pair_has_a_difference_and_nothing_else() -> None:
    found = paired_difference({4: 0.3}, {4: 0.1})
    assert found is not None
    assert (found.n, found.interval, found.t_test, found.sign_flip) == (1, None, None, None)


def test_equal_differences_have_no_interval() -> None:
    found = paired_difference({0: 0.3, 1: 0.5, 2: 0.7}, {0: 0.1, 1: 0.3, 2: 0.5})
    assert found is not None
    assert (found.n, found.interval, found.t_test) == (3, None, None)


@given(ours=DIFFERENCES)
def test_p_and_interval_are_those_of_scipy(ours: list[int]) -> None:
    if len(set(ours)) == 1:
        return
    found = paired_difference(
        dict(enumerate(map(float, ours))), dict.fromkeys(range(len(ours)), 0.0)
    )
    expected = stats.ttest_1samp(ours, 0.0)
    assert found is not None
    assert found.t_test == pytest.approx(expected.pvalue, abs=1e-12)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))


@given(differences=DIFFERENCES)
def test_sign_flips_agree_with_scipys_permutation_test(differences: list[int]) -> None:
    expected = stats.permutation_test(
        (np.array(differences, float),), np.sum, permutation_type="samples", n_resamples=10**4
    )
    assert sign_flip(differences) == pytest.approx(expected.pvalue)
    assert sign_flip([-d for d in differences]) == sign_flip(differences)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_the_smallest_p_is_reached_when_all_signs_agree(n: int) -> None:
    assert sign_flip([float(i + 1) for i in range(n)]) == smallest_p(n)
    assert smallest_p(3) == 0.25


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [0.25, 0.25], [0.3 - 0.2, 0.2 - 0.1]])
def test_differences_that_do_not_vary_have_no_t_test(values: list[float]) -> None:
    assert t_test(values) is None


@pytest.mark.parametrize("values", [[], [float("nan"), 0.1], [float("inf"), 0.1]])
def test_differences_that_are_none_are_refused(values: list[float]) -> None:
    for test in (sign_flip, t_test):
        with pytest.raises(ValueError, match="finite differences"):
            test(values)
    with pytest.raises(ValueError, match="2 or more"):
        t_test([0.1])
    with pytest.raises(ValueError, match="at least one pair"):
        smallest_p(0)


def test_sign_flips_are_counted_up_to_sixteen_pairs() -> None:
    assert sign_flip(np.ones(16)) == smallest_p(16)
    assert sign_flip(np.ones(17)) is None
