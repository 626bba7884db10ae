"""Holm over rows, and looking again after more seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.statistics.paired import adjust_holm
from capsweep.statistics.sequential import describe_correction, plan_looks, undecided_rows

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_holms_worked_example() -> None:
    # Holm 1979's procedure on 0.01, 0.04, 0.03, 0.005: 4, 3, 2, 1 times in order, made monotone.
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(p_values=P_VALUES)
def test_adjusted_values_are_never_smaller_keep_the_order_and_stay_below_bonferroni(
    p_values: list[float],
) -> None:
    adjusted = adjust_holm(p_values)
    for raw, found in zip(p_values, adjusted, strict=True):
        assert raw <= found <= min(1.0, raw * len(p_values)) + 1e-15
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_a_p_value_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be in 0\.\.1"):
        adjust_holm([0.5, float("nan")])


def test_the_last_look_is_always_planned() -> None:
    assert plan_looks(3, 8, 2) == (3, 5, 7, 8)
    assert plan_looks(3, 3, 2) == (3,)
    for first in (1, 2):
        with pytest.raises(ValueError, match="cannot look"):
            plan_looks(first, 5, 2)
    assert "4 planned looks" in describe_correction(plan_looks(3, 8, 2))


def test_clear_orders_are_decided_and_equal_rows_are_not() -> None:
    low = {seed: 0.01 + 0.0001 * seed for seed in range(5)}
    high = {seed: 0.05 + 0.0001 * (seed % 3) for seed in range(5)}
    twin = dict(high)
    assert undecided_rows({"low": low, "high": high}, 3) == set()
    assert undecided_rows({"low": low, "high": high, "twin": twin}, 3) == {"high", "twin"}


@pytest.mark.parametrize("num_looks", [0, -1])
def test_a_rule_without_looks_is_refused(num_looks: int) -> None:
    with pytest.raises(ValueError, match="num_looks must be >= 1"):
        undecided_rows({"a": {0: 1.0, 1: 2.0}, "b": {0: 2.0, 1: 1.0}}, num_looks)


def test_under_no_difference_stopping_when_it_suits_rarely_decides() -> None:
    generator = np.random.default_rng(0)
    planned, wrongly = plan_looks(3, 9, 2), 0
    for _ in range(400):
        values = generator.normal(0.02, 0.004, size=(3, 9))
        for seeds in planned:
            rows = {row: dict(enumerate(values[row, :seeds])) for row in range(3)}
            if len(undecided_rows(rows, len(planned))) < 3:
                wrongly += 1
                break
    assert wrongly / 400 <= 0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5


@pytest.mark.parametrize(("examples", "rate"), [(360, 0.01), (360, 0.1), (10_000, 0.005)])
def test_rates_in_steps_of_one_example_are_rarely_decided_by_chance(
    examples: int, rate: float
) -> None:
    generator = np.random.default_rng(1)
    planned, wrongly = plan_looks(3, 9, 2), 0
    for _ in range(400):
        values = generator.binomial(examples, rate, size=(2, 9)) / examples
        for seeds in planned:
            rows = {row: dict(enumerate(values[row, :seeds])) for row in range(2)}
            if not undecided_rows(rows, len(planned)):
                wrongly += 1
                break
    assert wrongly / 400 <= 0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5


def test_a_real_difference_is_decided_before_the_last_seed() -> None:
    generator = np.random.default_rng(0)
    planned, decided = plan_looks(3, 9, 2), 0
    for _ in range(100):
        values = generator.normal([[0.02], [0.03]], 0.003, size=(2, 9))
        for seeds in planned[:-1]:
            rows = {row: dict(enumerate(values[row, :seeds])) for row in range(2)}
            if not undecided_rows(rows, len(planned)):
                decided += 1
                break
    assert decided >= 60
