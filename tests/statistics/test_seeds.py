"""What numbers of several seeds say: summaries, paired differences and Holm."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from capsweep.statistics.metric_format import measure_of
from capsweep.statistics.seeds import (
    Summary,
    adjust_holm,
    paired_difference,
    smallest_p,
    summarise_values,
    t_test,
)

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)
DIFFERENCES = st.lists(st.integers(-50, 50), min_size=2, max_size=8)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_one_number_and_equal_numbers_have_no_interval(n: int) -> None:
    std = 0.0 if n > 1 else None
    assert summarise_values([1 / 3] * n) == Summary(n=n, mean=1 / 3, std=std, interval=None)


def test_only_common_seeds_are_compared() -> None:
    difference = paired_difference({0: 0.3, 1: 0.5, 2: 9.0}, {0: 0.1, 1: 0.1, 7: 9.0})
    assert (difference.n, difference.mean) == (2, pytest.approx(0.3))
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize("n", [1, 3])
def test_one_pair_and_equal_differences_have_no_interval(n: int) -> None:
    ours = {seed: 0.3 + 0.2 * seed for seed in range(n)}
    difference = paired_difference(ours, {seed: 0.1 + 0.2 * seed for seed in range(n)})
    assert (difference.n, difference.interval, difference.t_test) == (n, None, None)


def test_two_seeds_have_a_spread_and_no_interval() -> None:
    assert summarise_values([0.1, 0.3]).interval is None
    assert summarise_values([0.1, 0.3]).std == pytest.approx(0.02**0.5)
    difference = paired_difference({0: 0.1, 1: 0.3}, {0: 0.0, 1: 0.0})
    assert (difference.interval, difference.t_test) == (None, pytest.approx(0.295, abs=1e-3))


def test_an_interval_is_inside_of_what_the_metric_can_be() -> None:
    ends = {
        m: (measure_of(m).low, measure_of(m).high) for m in ("test/error", "a/loss", "val/mine")
    }
    assert [*ends.values()] == [(0, 1), (0, math.inf), (-math.inf, math.inf)]
    interval = summarise_values([0.0, 0.01, 0.02]).interval
    assert interval is not None
    assert interval[0] < 0
    assert summarise_values([0.0, 0.01, 0.02], *ends["test/error"]).interval == (0, interval[1])
    mirrored = summarise_values([0.98, 0.99, 1.0], *ends["test/error"]).interval
    assert mirrored is not None
    assert mirrored[1] == 1
    far = paired_difference({0: 1.0, 1: 1.0, 2: 0.0}, {0: 0.0, 1: 0.0, 2: 0.5}, most=1)
    assert far.interval == (-1, 1)


@given(ours=DIFFERENCES)
def test_p_and_interval_are_those_of_scipy(ours: list[int]) -> None:
    if len(set(ours)) == 1:
        return
    zeros = dict.fromkeys(range(len(ours)), 0.0)
    difference = paired_difference(dict(enumerate(map(float, ours))), zeros)
    expected = stats.ttest_1samp(ours, 0.0)
    assert difference.t_test == pytest.approx(expected.pvalue, abs=1e-12)
    if len(ours) > 2:
        assert difference.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_the_smallest_p_is_that_of_flipped_signs_that_all_agree() -> None:
    p = stats.permutation_test(([1.0, 2.0, 3.0],), np.sum, permutation_type="samples").pvalue
    assert smallest_p(3) == pytest.approx(p)


@pytest.mark.parametrize("values", [[], [0.1], [float("nan"), 0.1], [float("inf"), 0.1]])
def test_differences_that_are_none_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="2 or more finite differences"):
        t_test(values)


def test_holms_worked_example() -> None:
    # Holm 1979's procedure on 0.01, 0.04, 0.03, 0.005: 4, 3, 2, 1 times in order, made monotone.
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_holm([None, 0.04, None]) == [None, 0.04, None]


@given(p_values=P_VALUES)
def test_adjusted_values_are_never_smaller_keep_the_order_and_stay_below_bonferroni(
    p_values: list[float],
) -> None:
    adjusted = adjust_holm(p_values)
    for raw, p in zip(p_values, adjusted, strict=True):
        assert p is not None
        assert raw <= p <= min(1.0, raw * len(p_values)) + 1e-15
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)
