"""The learning-rate schedule of the authors' code."""

import pytest

from capsweep.training.build import decay_continuously

AUTHORS = {"lr": 0.001, "rate": 0.96, "steps": 2000, "floor": 1e-6}


@pytest.mark.parametrize(
    ("step", "lr"), [(0, 1e-3), (30_000, 5.4e-4), (100_000, 1.3e-4), (200_000, 1.7e-5)]
)
def test_learning_rates_are_those_of_the_authors(step: int, lr: float) -> None:
    assert 0.001 * decay_continuously(step, **AUTHORS) == pytest.approx(lr, rel=0.02)


def test_decay_is_continuous_between_periods() -> None:
    assert decay_continuously(1000, **AUTHORS) == pytest.approx(0.96**0.5)


def test_the_learning_rate_rises_in_equal_parts_to_that_without_a_warm_up() -> None:
    warm = [decay_continuously(step, **AUTHORS, warmup=4) for step in range(8)]
    plain = [decay_continuously(step, **AUTHORS) for step in range(8)]
    parts = [risen / whole for risen, whole in zip(warm, plain, strict=True)]
    assert parts == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1])


def test_without_a_warm_up_the_first_step_is_whole() -> None:
    assert decay_continuously(0, **AUTHORS, warmup=0) == 1


def test_the_floor_is_reached_at_step_338433_and_holds() -> None:
    assert 0.001 * decay_continuously(338_432, **AUTHORS) > 1e-6
    assert 0.001 * decay_continuously(338_434, **AUTHORS) == pytest.approx(1e-6)
    assert 0.001 * decay_continuously(10**7, **AUTHORS) == pytest.approx(1e-6)
