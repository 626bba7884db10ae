"""`capsweep eval routing-change`: figure A.1 of "Dynamic Routing Between Capsules" for one cell."""

import argparse
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capsweep.evaluation_doors import traced
from capsweep.evaluation_doors.drawing import Draw, Drawing

if TYPE_CHECKING:
    from capsweep.evaluation.traced_batches import Asked
    from capsweep.evaluation.trained import Loader

TEXT: str = "draw how much each routing iteration changes the logits (EM routing: assignments)"


def add(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    traced.add(command)


def asked(parsed: argparse.Namespace) -> Draw:
    """One figure. Raises UserError naming the option."""
    how = traced.asked(parsed)
    return lambda loader, name: _drawings(loader, name, how)


def _drawings(loader: "Loader", name: str, how: "Asked") -> Iterator[Drawing]:
    from capsweep.evaluation import routing_change, routing_change_figure

    routed = traced.routed(loader, name, how)
    changes, picture = routing_change.measure(routed), io.BytesIO()
    routing_change_figure.draw(changes, routed, picture)
    yield Drawing(
        stem=traced.stem("routing-change", how),
        arrays=changes.arrays(),
        picture=picture.getvalue(),
        caption=routing_change_figure.caption(changes, routed),
    )
