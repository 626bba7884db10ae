"""`capsweep eval NAME CELL`: a figure of one cell. `capsweep eval figures SWEEP`: those that a
sweep's rows lack.

A new figure is a module of `evaluation.figures` and an entry of FIGURES. The module has

    draw_cell(loader, signature, options)       yields its drawings of a cell

and raises NotApplicableError for a cell that has no such figure, and UserError.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from capsweep.cli.program import (
    DEVICE,
    SIGNATURE,
    SWEEP,
    Command,
    whole_number,
)
from capsweep.errors import NotApplicableError, UserError
from capsweep.lab.commands import option
from capsweep.lab.evaluation.figures import TRACED_EXAMPLES

if TYPE_CHECKING:
    from capsweep.lab.evaluation.sweep_cells import SweepCells

DRAWING_FAULTS = (UserError, OSError, RuntimeError, MemoryError)  # a GPU's are RuntimeErrors


def parse_places(text: str) -> list[int]:
    """Return distinct places from 0 on of an option such as `7,0,5`, in order."""
    if not all(word.strip().isdecimal() for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be places such as 0,5,7, got {text}")
    return sorted({int(word) for word in text.split(",")})


FIRST_IMAGES = option(
    "--examples",
    f"the first so many test images ({TRACED_EXAMPLES})",
    type=whole_number(1),
    default=TRACED_EXAMPLES,
)
TRACED = (
    FIRST_IMAGES,
    option("--iterations", "of routing; default: as in training", type=whole_number(1)),
)
CHOSEN = (
    option("--correct", "so many correct ones (8)", type=whole_number(0), default=8),
    option("--failures", "so many wrong ones (4)", type=whole_number(0), default=4),
)
EACH_CLASS = "these test images: 0,5,7; default: the first correct one of each class"
FIGURES: dict[str, Command] = {
    "reconstructions": (
        "draw test examples and what the decoder makes of their class capsules",
        CHOSEN,
    ),
    "perturbations": (
        "draw what each dimension of the pose of a class capsule changes, by class",
        [option("--examples", EACH_CLASS, type=parse_places)],
    ),
    "segmentation": (
        "draw the two digits that the decoder makes of images of overlapping ones",
        CHOSEN,
    ),
    "vote-distances": (
        "draw how far votes are from class capsules, by routing iteration",
        [option("--examples", "these test images (0,1,2)", type=parse_places, default="0,1,2")],
    ),
    "routing-change": (
        "draw how much each routing iteration changes logits (EM: assignments)",
        TRACED,
    ),
    "couplings": (
        "draw the entropy of couplings by layer and iteration, and of equal couplings",
        TRACED,
    ),
    "training-loss": (
        "draw the training loss of this cell and its like, by routing iterations",
        (),
    ),
}
ONLY = option("--only", "of these figures: reconstructions,couplings; default: all")
COMMANDS: dict[str, Command] = {
    "figures": ("draw the figures that rows of a sweep lack", (*SWEEP, ONLY, DEVICE)),
}
for _name, (_text, _options) in FIGURES.items():
    COMMANDS[_name] = _text, (SIGNATURE, *_options, DEVICE)


def run(parsed: argparse.Namespace) -> int:
    """Draw a figure of a cell into its evals/, the numbers beside it; or those of a sweep."""
    if parsed.command == "figures":
        return _draw_missing(parsed)
    from capsweep.lab.evaluation.figures import draw_figure
    from capsweep.lab.evaluation.sweep_cells import open_cell

    draw_figure(parsed.command, *open_cell(parsed), parsed)
    return 0


def _draw_missing(parsed: argparse.Namespace) -> int:
    """Draw the figures that no cell of a row has, of its first finished seed: what a page shows of
    a row. Returns 1 where one could not be drawn, which is printed; the others are drawn.
    """
    from capsweep.lab.evaluation.checkpoint import CellLoader, find_device
    from capsweep.lab.evaluation.figures import draw_figure
    from capsweep.lab.evaluation.sweep_cells import load_cells

    names = list(FIGURES) if parsed.only is None else parsed.only.split(",")
    if unknown := [name for name in names if name not in FIGURES]:
        raise UserError(f"--only: {', '.join(unknown)}: no such figure; have {', '.join(FIGURES)}")
    cells, faults = load_cells(parsed), set()
    loader = CellLoader(cells.ledger, cells.places.data, find_device(parsed.device))
    for signature, name in dict.fromkeys(_list_missing(cells, names)):
        try:
            draw_figure(name, loader, signature, _default_options(name))
        except NotApplicableError as error:
            print(f"{name}: {error}")
        except DRAWING_FAULTS as error:
            fault = f"{type(error).__name__}: {error}"
            if fault not in faults:  # absent data is one fault of all figures
                print(f"error: {name}: {signature}: {fault}", file=sys.stderr)
            faults.add(fault)
    return 1 if faults else 0


def _default_options(name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for word, settings in FIGURES[name][1]:
        parser.add_argument(word, **settings)
    return parser.parse_args([])


def _list_missing(cells: "SweepCells", names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Signature and name of the figures that are to be drawn."""
    for _, finished in cells.evaluate_points(lambda point: point.cell.signature):
        files = [file for cell in finished for file in cells.ledger.list_evaluations(cell)]
        for name in names:
            if finished and not any(f.startswith(name) and f.endswith(".png") for f in files):
                yield finished[0], name
