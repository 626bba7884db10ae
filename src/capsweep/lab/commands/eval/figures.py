"""The commands `capsweep eval NAME CELL` and `capsweep eval figures SWEEP`, which draw figures.

The first command draws the figure NAME of one cell. The second command draws the missing figures of
a sweep. To add a figure, add an entry to FIGURES. The entry names a module of
`lab.evaluation.figures`. Add this function to that module:

    draw_NAME(cell, options)       yields the drawings of a trained cell

The function raises NotApplicableError for a cell that cannot have this figure, and UserError for
other faults.
"""

import argparse
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from capsweep.cli.program import DEVICE, SIGNATURE, SWEEP, Command, Option, option, whole_number
from capsweep.errors import NotApplicableError
from capsweep.lab.commands import make_list_type
from capsweep.lab.commands.eval.sweeps import FIRST_IMAGES

if TYPE_CHECKING:
    from capsweep.lab.evaluation.checkpoint import CellLoader
    from capsweep.lab.evaluation.sweep_cells import SweepCells

parse_examples = make_list_type("indices such as 0,5,7", int, lambda index: index >= 0)
TRACED = (
    FIRST_IMAGES,
    option("--iterations", "routing iterations; default: as in training", type=whole_number(1)),
)
PLACED = option("--image", "test image to draw by place (0)", type=whole_number(0), default=0)
COUPLED = (*TRACED, PLACED)
CHOSEN = (
    option("--correct", "number of correct examples (8)", type=whole_number(0), default=8),
    option("--failures", "number of wrong examples (4)", type=whole_number(0), default=4),
)
IMAGES = (option("--examples", "image indices (0,1,2)", type=parse_examples, default=[0, 1, 2]),)


class Figure(NamedTuple):
    """A kind of figure and its command.

    Attributes:
        module: Name of the module of `lab.evaluation.figures` that draws the figure.
        text: Help text of the command.
        options: Options of the command, besides the cell and `--device`.
    """

    module: str
    text: str
    options: Sequence[Option] = ()


FIGURES: dict[str, Figure] = {
    "reconstructions": Figure("decoded", "draw test examples and their reconstructions", CHOSEN),
    "perturbations": Figure("decoded", "draw what each dimension of a pose changes"),
    "segmentation": Figure("decoded", "draw overlapping digits one by one", CHOSEN),
    "vote-distances": Figure("vote_distances", "draw distances of votes from classes", IMAGES),
    "routing-change": Figure("iterations", "draw how much each routing iteration changes", TRACED),
    "couplings": Figure("iterations", "draw couplings: entropy, map, histogram", COUPLED),
}
parse_figures = make_list_type(f"some of {', '.join(FIGURES)}", str, FIGURES.__contains__)
ONLY = option("--only", "figures, such as couplings,segmentation (all)", type=parse_figures)
COMMANDS: dict[str, Command] = {
    "figures": ("draw the missing figures of a sweep", (*SWEEP, ONLY, DEVICE)),
    **{name: (f.text, (SIGNATURE, *f.options, DEVICE)) for name, f in FIGURES.items()},
}


def run(parsed: argparse.Namespace) -> None:
    """Draw a figure of a cell, or the missing figures of a sweep.

    Pictures and their numbers are written to the folder `evals/` of the cell.
    """
    from capsweep.lab.evaluation.sweep_cells import open_cell

    if parsed.command == "figures":
        _draw_missing(parsed)
    else:
        _draw(parsed.command, *open_cell(parsed), parsed)


def _draw(name: str, loader: "CellLoader", signature: str, options: argparse.Namespace) -> None:
    """Draw a figure of a finished cell; print the paths of the figure's files, and the captions.

    Raises:
        NotApplicableError: The cell cannot have this figure, for example because its network has no
            decoder or no routing; the error names the cell.
        UserError: The figure cannot be drawn for another reason.
    """
    module = f"capsweep.lab.evaluation.figures.{FIGURES[name].module}"
    draw = pkgutil.resolve_name(f"{module}:draw_{name.replace('-', '_')}")
    try:
        for drawing in draw(loader.load(signature), options):
            for file, content in drawing.make_files().items():
                print(loader.ledger.write_evaluation(signature, file, content))
            print(drawing.caption, flush=True)
    except NotApplicableError as error:
        raise NotApplicableError(f"{signature}: {error}") from error


def _draw_missing(parsed: argparse.Namespace) -> None:
    """Draw the missing figures of each group of cells that differ only in the seed.

    A figure is missing if no finished cell of the group has it. The figure is then drawn for the
    first finished cell of the group. If this cell cannot have the figure, the reason is printed,
    and the next figure is drawn. The page of the sweep shows the figures. If an error ends the
    command, finished figures stay, and the next call draws only the other figures.
    """
    from capsweep.lab.evaluation.sweep_cells import load_cells

    cells = load_cells(parsed)
    loader = cells.make_loader(parsed.device)
    for signature, name in dict.fromkeys(_list_missing(cells, parsed.only or FIGURES)):
        usual = {word.lstrip("-"): how.get("default") for word, how in FIGURES[name].options}
        try:
            _draw(name, loader, signature, argparse.Namespace(**usual))
        except NotApplicableError as error:
            print(f"{name}: {error}")


def _list_missing(cells: "SweepCells", names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield, for each missing figure, the signature of the cell to draw and the figure's name."""
    for group, finished in cells.evaluate_points(lambda point: point.cell.signature):
        files = [file for cell in group.finished.values() for file in cell.evaluations]
        for name in names:
            if finished and not any(f.startswith(name) and f.endswith(".png") for f in files):
                yield finished[0], name
