"""`capsweep eval routing-change`: figure A.1 of "Dynamic Routing Between Capsules" for one cell."""

import argparse
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capsweep.evaluation_doors import traced
from capsweep.evaluation_doors.drawing import Draw

if TYPE_CHECKING:
    from capsweep.evaluation.traced_batches import Routed

TEXT: str = "draw how much each routing iteration changes the logits (EM routing: assignments)"


def add(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    traced.add(command)


def asked(parsed: argparse.Namespace) -> Draw:
    """One figure. Raises UserError naming the option."""
    return traced.asked(parsed, "routing-change", _draw)


def _draw(routed: "Routed", picture: io.BytesIO) -> tuple[Mapping[str, Any], str]:
    from capsweep.evaluation import routing_change, routing_change_figure

    changes = routing_change.measure(routed)
    routing_change_figure.draw(changes, routed, picture)
    return changes.arrays(), routing_change_figure.caption(changes, routed)
