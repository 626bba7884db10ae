"""`capsweep eval perturbations`: figure 4 of "Dynamic Routing Between Capsules" for one cell."""

import argparse
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capsweep.errors import UserError
from capsweep.evaluation_doors.drawing import Draw, Drawing, check_examples, places

if TYPE_CHECKING:
    from capsweep.evaluation.decoded import Stored
    from capsweep.evaluation.trained import Loader

TEXT: str = "draw what each dimension of the pose of a class capsule changes, a page for each class"


@dataclass(frozen=True)
class Asked:
    """classes: the first correct example of each; None: all. examples: these instead."""

    classes: list[int] | None
    examples: list[int] | None


def add(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    which = command.add_mutually_exclusive_group()
    which.add_argument("--classes", help="the first correct test image of each: 0,3; default: all")
    which.add_argument("--examples", help="these test images instead: 0,5,7")


def asked(parsed: argparse.Namespace) -> Draw:
    """A figure for each class. Raises UserError naming the option."""
    how = Asked(
        None if parsed.classes is None else places(parsed.classes, "--classes"),
        None if parsed.examples is None else places(parsed.examples, "--examples"),
    )
    return lambda loader, name: _drawings(loader, name, how)


def _drawings(loader: "Loader", name: str, how: Asked) -> Iterator[Drawing]:
    from capsweep.evaluation import perturbation_figure, perturbations
    from capsweep.ledger.predictions import load_predictions

    trained, stored = loader.load(name), load_predictions(loader.ledger, name)
    if how.examples is not None:
        check_examples(trained, how.examples)
    for found in perturbations.of(trained, stored, _chosen(name, stored, how)):
        page = f"class{found.label}"
        picture = io.BytesIO()
        title = f"cell {name}: perturbations of class {found.label}"
        perturbation_figure.draw(found, title, picture)
        yield Drawing(
            stem=f"perturbations-{page}"
            + ("" if how.examples is None else f"-example{found.place}"),
            arrays={
                "place": found.place,
                "label": found.label,
                "prediction": found.prediction,
                "length": found.length,
                "image": found.image_CHW,
                "tweaks": perturbations.TWEAKS,
                "reconstructions": found.drawn_DTCHW,
            },
            picture=picture.getvalue(),
            caption=perturbation_figure.caption(found),
        )


def _chosen(name: str, stored: "Stored", how: Asked) -> list[tuple[int, int]]:
    from capsweep.evaluation import perturbations

    if how.examples is not None:
        return perturbations.of_examples(stored, how.examples)
    chosen = perturbations.first_of_classes(stored, how.classes)
    if absent := sorted(set(how.classes or []) - {label for label, _ in chosen}):
        raise UserError(f"--classes: no test image of {name} shows class {absent[0]}")
    return chosen
