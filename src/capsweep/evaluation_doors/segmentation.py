"""`capsweep eval segmentation`: figure 5 of "Dynamic Routing Between Capsules" for one cell."""

import argparse
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capsweep.evaluation_doors.drawing import Draw, Drawing, check_counts

if TYPE_CHECKING:
    from capsweep.evaluation.trained import Loader

TEXT: str = "draw the two digits that the decoder makes of images of overlapping ones"


def add(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument("--correct", type=int, default=6, help="so many correct ones (6)")
    command.add_argument(
        "--starred", type=int, default=2, help="so many drawn with a class that is not there (2)"
    )
    command.add_argument("--failures", type=int, default=2, help="so many wrong ones (2)")


def asked(parsed: argparse.Namespace) -> Draw:
    """One figure. Raises UserError naming the option."""
    counts = parsed.correct, parsed.starred, parsed.failures
    check_counts(dict(zip(("--correct", "--starred", "--failures"), counts, strict=True)))
    return lambda loader, name: _drawings(loader, name, counts)


def _drawings(loader: "Loader", name: str, counts: tuple[int, int, int]) -> Iterator[Drawing]:
    from capsweep.evaluation import segmentation, segmentation_figure
    from capsweep.ledger.predictions import load_predictions
    from capsweep.statistics.examples import find_wrong

    trained, stored = loader.load(name), load_predictions(loader.ledger, name)
    found = segmentation.of(trained, stored, *counts)
    right, starred, failed = counts
    told = segmentation_figure.caption(
        found, len(stored[1]), int(find_wrong(*stored).sum()), starred
    )
    picture = io.BytesIO()
    segmentation_figure.draw(found, f"cell {name}: segmentation", told, picture)
    yield Drawing(
        stem=f"segmentation-correct{right}-starred{starred}-failures{failed}",
        arrays={
            "places": found.columns.places_K,
            "images": found.columns.images_KCHW,
            "digits": found.digits_KLCHW,
            "labels": found.columns.labels_KL,
            "predictions": found.columns.predictions_KL,
            "drawn_from": found.columns.from_KL,
            "starred": found.starred_K,
            "overlap": found.overlap_KL,
            "reconstructions": found.columns.drawn_KLCHW,
        },
        picture=picture.getvalue(),
        caption=told,
    )
