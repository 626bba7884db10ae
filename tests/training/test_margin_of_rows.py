"""The margin of a spread loss stands in the rows of its cell, as far as it has grown."""

from collections.abc import Callable

import pytest

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger
from capsweep.training.run import run


def margins(cell: Cell) -> list[float | None]:
    """Of every epoch; None where a row has none."""
    here = places.resolve(cell.config["places"])
    run(cell, here)
    return [row.get("margin") for row in Ledger(here.ledger).read_rows(cell.signature)]


def test_a_growing_margin_is_told_as_it_is_after_each_epoch(
    small_cell: Callable[..., Cell],
) -> None:
    spread = ["loss.classification.first=0.2", "loss.classification.last=0.8"]
    cell = small_cell("loss=spread", "epochs=3", *spread)
    assert margins(cell) == pytest.approx([0.4, 0.6, 0.8])


def test_a_loss_without_a_schedule_tells_no_margin(small_cell: Callable[..., Cell]) -> None:
    assert margins(small_cell("epochs=1")) == [None]
