"""Figures that a report asks for and no cell has: `make report EVALS=names`."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout

from rich.console import Console

from capsweep import terminal
from capsweep.config.places import Places
from capsweep.errors import NotApplicableError, UserError
from capsweep.evaluation.trained import Loader, device_of
from capsweep.evaluation_doors import figures
from capsweep.ledger.ledger import Ledger, kind_of_evaluation
from capsweep.report.pictures import TYPES
from capsweep.report.table import ResultTable

FAULTS = (UserError, OSError, RuntimeError, MemoryError)  # a GPU's are torch's RuntimeErrors


def make(table: ResultTable, ledger: Ledger, here: Places, names: str, console: Console) -> bool:
    """Draw the figures that no cell of a field has, of its first finished seed: what the page shows
    of a row. False where one could not be drawn, which is said; the others are drawn all the same.

    names: such as `reconstructions,couplings`, or `all`. Raises UserError for one that is no
    figure.
    """
    asked = _asked(names)
    loader = Loader(ledger, here.data, device_of("auto"))
    if not any(value.by_seed for row in table.rows for value in row.values if value is not None):
        terminal.print_line(console, "EVALS: no cell is finished, so there is nothing to draw")
    said: dict[str, None] = {}
    for signature, name in _missing(table, ledger, asked):
        try:
            with redirect_stdout(sys.stderr if console.stderr else sys.stdout):
                figures.make(name, loader, signature)
        except NotApplicableError as error:
            terminal.print_line(console, f"{name}: {error}")
        except FAULTS as error:
            kind = "" if isinstance(error, UserError) else f"{signature}: {type(error).__name__}: "
            said.setdefault(f"{name}: {kind}{error}")
    for message in said:
        print(f"error: {message}", file=sys.stderr)
    return not said


def _asked(names: str) -> list[str]:
    named = [name.strip() for name in names.split(",")]
    if named == ["all"]:
        return list(figures.FIGURES)
    if unknown := [name for name in named if name not in figures.FIGURES]:
        have = ", ".join(figures.FIGURES)
        raise UserError(f"EVALS: {', '.join(unknown)}: no such figure; have {have}, or all")
    return named


def _missing(table: ResultTable, ledger: Ledger, asked: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Signature and figure; cells that fill several fields are asked once."""
    seen: set[tuple[str, str]] = set()
    for value in (value for row in table.rows for value in row.values if value is not None):
        finished = [value.cells[seed] for seed in sorted(value.by_seed)]
        there = {
            kind_of_evaluation(file)
            for signature in finished
            for file in ledger.list_evaluations(signature)
            if file.endswith(tuple(TYPES))
        }
        new = [(finished[0], name) for name in asked if name not in there] if finished else []
        yield from (one for one in new if one not in seen)
        seen.update(new)
