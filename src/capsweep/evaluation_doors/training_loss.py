"""`capsweep eval training-loss`: figure A.2 of "Dynamic Routing Between Capsules" for one cell."""

import argparse
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capsweep.evaluation_doors.drawing import Draw, Drawing

if TYPE_CHECKING:
    from capsweep.ledger.ledger import Ledger

TEXT: str = "draw the training loss by routing iterations, of this cell and its like in the ledger"


def add(command: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def asked(parsed: argparse.Namespace) -> Draw:
    """One figure. No network is run."""
    return lambda loader, name: _drawings(loader.ledger, name)


def _drawings(ledger: "Ledger", name: str) -> Iterator[Drawing]:
    from capsweep.evaluation import training_loss, training_loss_figure

    losses, picture = training_loss.measure(ledger, name), io.BytesIO()
    if (missing := training_loss_figure.missing(losses)) is not None:
        print(f"{name}: {missing}", file=sys.stderr)
    training_loss_figure.draw(losses, name, picture)
    yield Drawing(
        stem="training-loss",
        arrays=losses.arrays(),
        picture=picture.getvalue(),
        caption=training_loss_figure.caption(losses),
    )
