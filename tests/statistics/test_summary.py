"""What n numbers say about one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.statistics.summary import Summary, summarise

NUMBERS = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [
        ([1.0, 3.0], 2.0, math.sqrt(2)),  # ((-1)^2 + 1^2) / (2 - 1)
        ([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], 5.0, math.sqrt(32 / 7)),
        ([0.01, 0.02, 0.03], 0.02, 0.01),
        ([5, 5, 5], 5.0, 0.0),
    ],
)
def test_summaries_computed_by_hand(values: list[float], mean: float, std: float) -> None:
    summary = summarise(values)
    assert summary.n == len(values)
    assert summary.mean == pytest.approx(mean, rel=1e-12)
    assert summary.std == pytest.approx(std, rel=1e-12)


def test_a_single_number_has_no_deviation() -> None:
    assert summarise([0.25]) == Summary(n=1, mean=0.25, std=None, interval=None)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.0])
@pytest.mark.parametrize("n", [2, 3, 7, 10])
def test_equal_numbers_have_no_interval(value: float, n: int) -> None:
    assert summarise([value] * n) == Summary(n=n, mean=value, std=0.0, interval=None)


def test_no_numbers_have_no_summary() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        summarise([])


@given(values=st.lists(NUMBERS, min_size=2, max_size=20), shift=NUMBERS)
def test_a_shift_moves_the_mean_and_leaves_the_deviation(values: list[float], shift: float) -> None:
    before, after = summarise(values), summarise([value + shift for value in values])
    scale = max(1.0, abs(shift), *(abs(value) for value in values))
    assert after.mean == pytest.approx(before.mean + shift, abs=1e-9 * scale)
    assert after.std == pytest.approx(before.std, abs=1e-9 * scale)
    assert min(values) - 1e-9 * scale <= before.mean <= max(values) + 1e-9 * scale


@given(values=st.lists(NUMBERS, min_size=2, max_size=8), data=st.data())
def test_the_order_of_the_numbers_does_not_matter(values: list[float], data: st.DataObject) -> None:
    shuffled = summarise(data.draw(st.permutations(values)))
    assert shuffled.mean == pytest.approx(summarise(values).mean, abs=1e-6)
    assert shuffled.std == pytest.approx(summarise(values).std, abs=1e-6)
