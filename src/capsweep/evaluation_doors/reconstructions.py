"""`capsweep eval reconstructions`: figure 3 of "Dynamic Routing Between Capsules" for one cell."""

import argparse
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capsweep.evaluation_doors.drawing import Draw, Drawing, check_counts

if TYPE_CHECKING:
    from capsweep.evaluation.trained import Loader

TEXT: str = "draw test examples and what the decoder makes of their class capsules"


def add(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument("--correct", type=int, default=8, help="so many correct ones (8)")
    command.add_argument("--failures", type=int, default=4, help="so many wrong ones (4)")


def asked(parsed: argparse.Namespace) -> Draw:
    """One figure. Raises UserError naming the option."""
    right, failed = parsed.correct, parsed.failures
    check_counts({"--correct": right, "--failures": failed})
    return lambda loader, name: _drawings(loader, name, right, failed)


def _drawings(loader: "Loader", name: str, right: int, failed: int) -> Iterator[Drawing]:
    from capsweep.evaluation import reconstruction_figure, reconstructions
    from capsweep.ledger.predictions import load_predictions
    from capsweep.statistics.examples import find_wrong

    trained, stored = loader.load(name), load_predictions(loader.ledger, name)
    found = reconstructions.of(trained, stored, right, failed)
    told = reconstruction_figure.caption(found, len(stored[1]), int(find_wrong(*stored).sum()))
    picture = io.BytesIO()
    reconstruction_figure.draw(found, f"cell {name}: reconstructions", told, picture)
    yield Drawing(
        stem=f"reconstructions-correct{right}-failures{failed}",
        arrays={
            "places": found.places_K,
            "images": found.images_KCHW,
            "labels": found.labels_KL[:, 0],
            "predictions": found.predictions_KL[:, 0],
            "drawn_from": found.from_KL[:, 0],
            "reconstructions": found.drawn_KLCHW[:, 0],
        },
        picture=picture.getvalue(),
        caption=told,
    )
