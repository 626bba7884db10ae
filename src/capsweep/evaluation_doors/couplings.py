"""`capsweep eval couplings`: how evenly the children of each routing layer divide themselves."""

import argparse
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capsweep.evaluation_doors import traced
from capsweep.evaluation_doors.drawing import Draw

if TYPE_CHECKING:
    from capsweep.evaluation.traced_batches import Routed

TEXT: str = "draw the entropy of couplings by layer and iteration, against equal couplings"


def add(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    traced.add(command)


def asked(parsed: argparse.Namespace) -> Draw:
    """One figure. Raises UserError naming the option."""
    return traced.asked(parsed, "couplings", _draw)


def _draw(routed: "Routed", picture: io.BytesIO) -> tuple[Mapping[str, Any], str]:
    from capsweep.evaluation import coupling_figure, couplings

    entropies = couplings.measure(routed)
    coupling_figure.draw(entropies, routed, picture)
    return entropies.arrays(), coupling_figure.caption(entropies, routed)
