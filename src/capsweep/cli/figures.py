"""Figures that a report asks for and no cell has: `make report EVALS=names`."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout

from rich.console import Console

from capsweep import terminal
from capsweep.config.places import Places
from capsweep.errors import NotApplicableError, UserError
from capsweep.evaluation import figures
from capsweep.evaluation.checkpoint import CellLoader, find_device
from capsweep.ledger.ledger import Ledger, kind_of_evaluation
from capsweep.report.cells import TYPES
from capsweep.report.table import ResultTable

FAULTS = (UserError, OSError, RuntimeError, MemoryError)  # a GPU's are torch's RuntimeErrors


def draw_missing(
    table: ResultTable, ledger: Ledger, places: Places, names: str, console: Console
) -> bool:
    """Draw the figures that no cell of a group has, of its first finished seed: what the page shows
    of a row. False where one could not be drawn, which is printed; the others are drawn.

    names: such as `reconstructions,couplings`, or `all`. Raises UserError for one that is no
    figure.
    """
    wanted = _parse_names(names)
    loader = CellLoader(ledger, places.data, find_device("auto"))
    faults: dict[str, None] = {}
    groups = [
        [group.cells[seed] for seed in sorted(group.by_seed)]
        for row in table.rows
        for group in row.values
        if group is not None and group.by_seed
    ]
    if not groups:
        terminal.print_line(console, "EVALS: no cell is finished, so there is nothing to draw")
    for signature, name in dict.fromkeys(_list_missing(groups, ledger, wanted)):
        try:
            with redirect_stdout(sys.stderr if console.stderr else sys.stdout):
                figures.draw_figure(name, loader, signature)
        except NotApplicableError as error:
            terminal.print_line(console, f"{name}: {error}")
        except FAULTS as error:
            kind = "" if isinstance(error, UserError) else f"{signature}: {type(error).__name__}: "
            faults.setdefault(f"{name}: {kind}{error}")
    for message in faults:
        print(f"error: {message}", file=sys.stderr)
    return not faults


def _parse_names(names: str) -> list[str]:
    named = [name.strip() for name in names.split(",")]
    if named == ["all"]:
        return list(figures.FIGURES)
    if unknown := [name for name in named if name not in figures.FIGURES]:
        have = ", ".join(figures.FIGURES)
        raise UserError(f"EVALS: {', '.join(unknown)}: no such figure; have {have}, or all")
    return named


def _list_missing(
    groups: Sequence[Sequence[str]], ledger: Ledger, names: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Signature and figure; groups: their finished cells."""
    for cells in groups:
        present = {
            kind_of_evaluation(file)
            for signature in cells
            for file in ledger.list_evaluations(signature)
            if file.endswith(tuple(TYPES))
        }
        yield from ((cells[0], name) for name in names if name not in present)
