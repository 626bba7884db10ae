"""The learning-rate schedule of the authors' code."""

import pytest

from capsweep.training.schedule import continuous_decay

AUTHORS = {"lr": 0.001, "rate": 0.96, "steps": 2000, "floor": 1e-6}


@pytest.mark.parametrize(
    ("step", "lr"), [(0, 1e-3), (30_000, 5.4e-4), (100_000, 1.3e-4), (200_000, 1.7e-5)]
)
def test_learning_rates_are_those_of_the_authors(step: int, lr: float) -> None:
    assert 0.001 * continuous_decay(step, **AUTHORS) == pytest.approx(lr, rel=0.02)


def test_decay_is_continuous_between_periods() -> None:
    assert continuous_decay(1000, **AUTHORS) == pytest.approx(0.96**0.5)


def test_the_floor_is_reached_at_step_338433_and_holds() -> None:
    assert 0.001 * continuous_decay(338_432, **AUTHORS) > 1e-6
    assert 0.001 * continuous_decay(338_434, **AUTHORS) == pytest.approx(1e-6)
    assert 0.001 * continuous_decay(10**7, **AUTHORS) == pytest.approx(1e-6)
