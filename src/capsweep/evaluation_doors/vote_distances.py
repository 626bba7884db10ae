"""`capsweep eval vote-distances`: figure 2 of "Matrix capsules with EM routing" for one cell."""

import argparse
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from capsweep.errors import UserError
from capsweep.evaluation_doors.drawing import Draw, Drawing, check_examples, places

if TYPE_CHECKING:
    from capsweep.evaluation.trained import Trained
    from capsweep.evaluation.vote_distances import Asked

TEXT: str = "draw how far votes are from the class capsules they vote for, by routing iteration"
FULL = "full"


def add(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument("--weights", default="R", help="R (default): assignments; Ra: activated")
    command.add_argument("--distance", default="squared", help="squared (default) or plain")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--images", type=int, default=3, help="the first so many test images (3)")
    which.add_argument("--examples", help="these test images: 0,5,7")
    command.add_argument("--bins", type=int, default=12, help="of equal width (default 12)")
    command.add_argument(
        "--range", default="0.05", help="of distances (default 0.05); full: all, in a log scale"
    )


def asked(parsed: argparse.Namespace) -> Draw:
    """A figure for each of some test images. Raises UserError naming the option."""
    how, images = _asked(parsed), _images(parsed)
    return lambda loader, name: _drawings(loader.load(name), how, images)


def _asked(parsed: argparse.Namespace) -> "Asked":
    from capsweep.evaluation.vote_distances import Asked

    try:
        end = None if parsed.range == FULL else float(parsed.range)
    except ValueError as error:
        raise UserError(f"--range must be {FULL} or a number, got {parsed.range}") from error
    how = Asked(parsed.weights, parsed.distance, parsed.bins, end)
    how.check()
    return how


def _images(parsed: argparse.Namespace) -> list[int]:
    """Which test images, in order."""
    if parsed.examples is not None:
        return places(parsed.examples, "--examples")
    if parsed.images < 1:
        raise UserError(f"--images must be >= 1, got {parsed.images}")
    return list(range(parsed.images))


def _drawings(trained: "Trained", how: "Asked", images: list[int]) -> Iterator[Drawing]:
    from capsweep.evaluation import traces, vote_distance_figure, vote_distances

    check_examples(trained, images)
    end = FULL if how.end is None else f"{how.end:g}"
    for image in images:
        batch = trained.test.evaluation_batch(slice(image, image + 1))
        label = int(batch.labels.flatten()[0])
        traced = traces.of(trained, batch.images_BCHW)
        found = vote_distances.of_image(traced.get(vote_distances.LAYER), 0, how)
        picture = io.BytesIO()
        title = f"cell {trained.name}, test image {image} of class {label}"
        vote_distance_figure.draw(found, how, label, title, picture)
        yield Drawing(
            stem=f"vote-distances-{how.weights}-{how.distance}-{how.bins}-{end}-example{image}",
            arrays={
                "weight": found.weight,
                "beyond": found.beyond,
                "edges": found.edges,
                "activation": found.activation,
                "label": label,
            },
            picture=picture.getvalue(),
            caption=vote_distance_figure.caption(found, how),
        )
