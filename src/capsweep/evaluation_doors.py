"""`capsweep eval ...`: what is asked of finished cells beyond their errors."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capsweep import choosing
from capsweep.errors import UserError

if TYPE_CHECKING:
    from capsweep.ledger.entry import Entry
    from capsweep.ledger.ledger import Ledger
    from capsweep.report.ensemble_table import Row
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep

FEWEST = 2  # members of an ensemble


def add(doors: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `eval` and its commands to the parser."""
    text = "ask more of finished cells than their errors"
    evaluation = doors.add_parser("eval", help=text, description=text)
    commands = evaluation.add_subparsers(metavar="COMMAND", required=True)
    text = "add the scores of each row's seeds, from stored predictions"
    ensemble = commands.add_parser("ensemble", help=text, description=text)
    ensemble.set_defaults(door=_ensemble)
    choosing.add(ensemble)


def _ensemble(parsed: argparse.Namespace) -> int:
    from rich.console import Console

    from capsweep.config import places
    from capsweep.files import write_text
    from capsweep.ledger.ledger import Ledger
    from capsweep.report import ensemble_table
    from capsweep.sweep import more_seeds

    if parsed.metric is not None:
        raise UserError("METRIC: an ensemble is judged by its test error; leave --metric out")
    sweep, points = choosing.chosen(parsed)
    here = places.resolve(points[0].cell.config["places"])
    places.prepare(here)
    ledger = Ledger(here.ledger)
    rows = ensembles(sweep, more_seeds.load(here.storage, sweep).extend(points), ledger)
    console = Console()
    console.print(ensemble_table.terminal(sweep, rows))
    for note in ensemble_table.footnotes(sweep, rows):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    if all(row.wrong is None for row in rows):
        print(f"no row of {parsed.sweep} has {FEWEST} finished cells", file=sys.stderr)
        return 1
    path = here.storage / "reports" / sweep.name / "ensemble.md"
    try:
        write_text(path, ensemble_table.markdown(sweep, rows))
        said = f"report: {path}"
    except OSError as error:  # the table is on the screen
        said = f"report: {path} could not be written ({error.strerror}); the same command writes it"
    console.print(said, markup=False, highlight=False, soft_wrap=True)
    return 0


def ensembles(sweep: "Sweep", points: "Sequence[Point]", ledger: "Ledger") -> "list[Row]":
    """The ensemble of every row and column of a sweep, of its finished cells.

    Raises UserError naming a cell without predictions, or cells that do not belong together.
    """
    from capsweep.report import table

    entries = ledger.entries_of(point.cell for point in points)
    return [
        _row(sweep, (row, column), there, entries, ledger)
        for row, by_column in table.by_place(sweep, points).items()
        for column, there in by_column.items()
    ]


def _row(
    sweep: "Sweep",
    place: tuple[tuple[Any, ...], tuple[Any, ...]],
    points: "Sequence[Point]",
    entries: "Mapping[str, Entry]",
    ledger: "Ledger",
) -> "Row":
    from capsweep.evaluation.ensemble import Member, evaluate
    from capsweep.report import table
    from capsweep.report.comparison import predictions
    from capsweep.report.ensemble_table import Row

    cells = table.one_per_seed(points)
    there = {s: signature for s, signature in cells.items() if _counts(entries[signature])}
    absent = {s: entries[signature] for s, signature in cells.items() if s not in there}
    members = [Member(name, *predictions(ledger, name)) for name in there.values()]
    found = evaluate(members) if members else None
    return Row(
        coordinates=(*place[0], *place[1]),
        wanted=len(cells),
        missing={seed: entry.cause or entry.status for seed, entry in absent.items()},
        stale=sum(entries[signature].status == "stale" for signature in there.values()),
        single=found.single if found else (),
        wrong=found.wrong if found and len(members) >= FEWEST else None,
        total=found.total if found else 0,
        published=table.published(sweep, place[0]),
        footnotes=table.footnotes(points),
    )


def _counts(entry: "Entry") -> bool:
    from capsweep.report.table import COUNTED

    return entry.status in COUNTED
