"""What a plan can say about data without having it."""

from collections.abc import Callable

import pytest

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.errors import ConfigError, DataError
from capsweep.training.run import run


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset.validation=1437", r"dataset\.validation must be below the 1437 training exam"),
        ("dataset.shift=28", r"dataset\.shift must be below the 28 pixels"),
        ("optim.optimizer.betas=[0.9,1.0]", r"optim\.optimizer\.betas must be two numbers in"),
        ("optim.optimizer.betas=[0.9]", r"optim\.optimizer\.betas must be two numbers in"),
    ],
)
def test_settings_that_no_data_could_meet_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose.cell([override])


def test_declared_examples_are_no_part_of_the_signature() -> None:
    assert compose.cell(["dataset.examples.train=99999"]).signature == compose.cell([]).signature


def test_declared_examples_are_verified_when_the_data_is_read(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("dataset.examples.train=1438")
    with pytest.raises(DataError, match=r"dataset\.examples: .*1438.* declared, .*1437.* read"):
        run(cell, places.resolve(cell.config["places"]))
