"""What the doors of a sweep's evaluations share: its rows of finished cells, and their report."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.config import places
from capsweep.config.places import Places
from capsweep.errors import DamageError, UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Entry, Ledger
from capsweep.report import table
from capsweep.report.evaluation_tables import EvaluationTable
from capsweep.storage.files import write_text
from capsweep.sweep import more_seeds
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class Field:
    """One row and column of a sweep's table: its finished cells by seed.

    missing: why the others are not there; by_other_code: the seeds of finished cells that other
    code made; footnotes: what must be said of its data set, by its name.
    """

    row: tuple[Any, ...]
    coordinates: tuple[Any, ...]
    there: Mapping[int, Point]
    missing: Mapping[int, str]
    by_other_code: frozenset[int]
    footnotes: Mapping[str, str]

    @property
    def stale(self) -> int:
        """How many of its cells other code made."""
        return len(self.by_other_code & self.there.keys())

    @property
    def wanted(self) -> int:
        """How many seeds there should be."""
        return len(self.there) + len(self.missing)


@dataclass(frozen=True)
class Chosen:
    """A sweep as chosen, its fields, and where things are. json: whether a program asks, which
    gets one JSON object on standard output; what is said beside it is on standard error. status:
    of the command, 1 where a cell could not be asked.
    """

    sweep: Sweep
    fields: Sequence[Field]
    ledger: Ledger
    here: Places
    json: bool = False
    status: int = 0

    def say(self, text: str) -> None:
        """Say a line at once."""
        print(text, file=sys.stderr if self.json else sys.stdout, flush=True)


def chosen(parsed: argparse.Namespace, judged_by: str) -> Chosen:
    """What the options choose. judged_by: whose own metric the table has, in an error."""
    if parsed.metric is not None:
        raise UserError(f"METRIC: {judged_by}; leave --metric out")
    sweep, points = sweep_options.load_points(parsed)
    here = places.resolve(points[0].cell.config["places"])
    places.prepare(here)
    ledger = Ledger(here.ledger)
    points = more_seeds.load(here, sweep).add_points(points)
    entries = ledger.entries_of(point.cell for point in points)
    found = [
        _field(row, (*row, *column), there, entries)
        for row, by_column in table.group_points(sweep, points).items()
        for column, there in by_column.items()
    ]
    return Chosen(sweep, found, ledger, here, parsed.json)


def _field(
    row: tuple[Any, ...],
    coordinates: tuple[Any, ...],
    points: Sequence[Point],
    entries: Mapping[str, Entry],
) -> Field:
    by_seed = {point.seed: point for point in points}
    known = {seed: entries[point.cell.signature] for seed, point in by_seed.items()}
    there = {seed: by_seed[seed] for seed, e in known.items() if e.status in table.COUNTED}
    return Field(
        row=row,
        coordinates=coordinates,
        there=there,
        missing={seed: e.cause or e.status for seed, e in known.items() if seed not in there},
        by_other_code=frozenset(seed for seed in there if known[seed].status == "stale"),
        footnotes=table.dataset_notes(points),
    )


def ask_each(
    chosen: Chosen, ask: Callable[[Point], Answered]
) -> tuple[Chosen, dict[str, Answered]]:
    """What the finished cells answer, by signature; places that mean the same run are asked once.

    A cell with a damaged file is told of, and is missing in the fields that come back.
    """
    answers: dict[str, Answered] = {}
    damaged: dict[str, str] = {}
    for point in (point for field in chosen.fields for point in field.there.values()):
        name = point.cell.signature
        if name in answers or name in damaged:
            continue
        try:
            answers[name] = ask(point)
        except DamageError as error:
            damaged[name] = str(error)
            stored_files.print_damage(error)
    left = [_without(field, damaged) for field in chosen.fields]
    return replace(chosen, fields=left, status=1 if damaged else 0), answers


def _without(field: Field, damaged: Mapping[str, str]) -> Field:
    names = {seed: point.cell.signature for seed, point in field.there.items()}
    there = {seed: field.there[seed] for seed, name in names.items() if name not in damaged}
    gone = {seed: damaged[name] for seed, name in names.items() if name in damaged}
    return replace(field, there=there, missing={**field.missing, **gone})


def publish(chosen: Chosen, name: str, answer: EvaluationTable) -> None:
    """Print a table and its notes, and write them to the reports of the sweep."""
    if chosen.json:
        print(_as_json(answer))
    else:
        show(answer)
    path: Path = chosen.here.storage / "reports" / chosen.sweep.name / name
    try:
        write_text(path, answer.as_markdown())
        said = f"report: {path}"
    except OSError as error:  # the table is on the screen
        said = f"report: {path} could not be written ({error.strerror}); the same command writes it"
    terminal.print_line(terminal.make_console(stderr=chosen.json), said)


def show(answer: EvaluationTable) -> None:
    """Print a table and its notes."""
    console = terminal.make_console()
    terminal.print_table(console, answer.as_terminal())
    for note in answer.notes:
        terminal.print_paragraph(console, note)


def _as_json(answer: EvaluationTable) -> str:
    sweep = answer.sweep
    keys = (*sweep.rows, *sweep.columns)
    rows = [
        asdict(row) | {"coordinates": dict(zip(keys, row.coordinates, strict=True))}
        for row in answer.rows
    ]
    about = {"sweep": sweep.name, "question": sweep.question, "title": answer.title}
    content = {**about, "notes": answer.notes, "rows": rows}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)


def none_finished(chosen: Chosen) -> int:
    """Say that there is nothing to ask, and return the status for that."""
    print(f"no cell of {chosen.sweep.name} is finished; run the sweep first", file=sys.stderr)
    return 1
