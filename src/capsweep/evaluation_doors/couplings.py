"""`capsweep eval couplings`: how evenly the children of each routing layer divide themselves."""

import argparse
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capsweep.evaluation_doors import traced
from capsweep.evaluation_doors.drawing import Draw, Drawing

if TYPE_CHECKING:
    from capsweep.evaluation.traced_batches import Asked
    from capsweep.evaluation.trained import Loader

TEXT: str = "draw the entropy of couplings by layer and iteration, against equal couplings"


def add(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    traced.add(command)


def asked(parsed: argparse.Namespace) -> Draw:
    """One figure. Raises UserError naming the option."""
    how = traced.asked(parsed)
    return lambda loader, name: _drawings(loader, name, how)


def _drawings(loader: "Loader", name: str, how: "Asked") -> Iterator[Drawing]:
    from capsweep.evaluation import coupling_figure, couplings

    routed = traced.routed(loader, name, how)
    entropies, picture = couplings.measure(routed), io.BytesIO()
    coupling_figure.draw(entropies, routed, picture)
    yield Drawing(
        stem=traced.stem("couplings", how),
        arrays=entropies.arrays(),
        picture=picture.getvalue(),
        caption=coupling_figure.caption(entropies, routed),
    )
