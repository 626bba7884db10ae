"""Numbers that are counted instead of kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.statistics.summary import BINS, Distribution

LEVELS = (0.05, 0.5, 0.95)


@given(
    st.lists(st.lists(st.floats(0, 2.5), min_size=1, max_size=30), min_size=1, max_size=4),
)
def test_it_says_what_all_numbers_together_say(parts: list[list[float]]) -> None:
    found, every = Distribution(2.5), np.concatenate(parts)
    for part in parts:
        found.add_values(np.array(part))
    assert found.count == len(every)
    assert found.mean == pytest.approx(every.mean())
    assert found.std == pytest.approx(every.std(), abs=1e-6)
    quantiles = found.quantiles(LEVELS)
    assert (np.diff(quantiles) >= 0).all()
    assert every.min() <= quantiles[0]
    assert quantiles[-1] <= every.max()


def test_quantiles_of_many_numbers_are_theirs_to_a_bin() -> None:
    values = np.random.default_rng(0).beta(50, 0.5, 100_000)
    found = Distribution(1.0)
    for part in np.array_split(values, 7):
        found.add_values(part.reshape(1, -1))
    np.testing.assert_allclose(
        found.quantiles(LEVELS), np.quantile(values, LEVELS), rtol=0, atol=3 / BINS
    )


def test_equal_numbers_are_their_own_quantiles() -> None:
    found = Distribution(np.log(10))
    found.add_values(np.full((3, 4), np.log(10)))
    assert found.mean == np.log(10)
    assert found.std < 1e-7
    np.testing.assert_array_equal(found.quantiles(LEVELS), np.full(3, np.log(10)))
