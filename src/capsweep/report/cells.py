"""What the ledger knows of a sweep's cells: which are behind a field of its table, and the pictures
that evaluations left with them.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, READERS, Entry, Ledger
from capsweep.ledger.listing import read_hardware
from capsweep.report.grid import describe_row, format_value
from capsweep.report.table import COUNTED, ResultTable
from capsweep.sweep.expand import Point

PICTURES = ".png"
KIND = re.compile("[a-z]+(-[a-z]+)*(?=-|$)")
MOST_BYTES = 6_000_000  # of the pictures of a page: one of a thousand cells shall open


@dataclass(frozen=True)
class KnownCell:
    """A cell and what its folder holds. rows: one per epoch; evaluations: names below evals/;
    where: the folder; result: empty where there is none.
    """

    point: Point
    entry: Entry
    provenance: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    evaluations: Sequence[str]
    where: str
    result: Mapping[str, Any]

    @property
    def signature(self) -> str:
        """The cell's signature."""
        return self.point.cell.signature

    @property
    def is_counted(self) -> bool:
        """Whether tables and curves count it: one that a search stopped early is never averaged."""
        return self.entry.status in COUNTED and self.entry.result is not None

    @property
    def hardware(self) -> str | None:
        """What decided its speed: its GPUs, else its processor; None where nobody wrote it down."""
        return self.result.get("hardware") or read_hardware(self.provenance)


@dataclass(frozen=True)
class FieldCells:
    """The cells behind one field of a table, by seed. row, column: of `ResultTable.rows`,
    `.columns`; name: its row's coordinates.
    """

    row: int
    column: int
    name: str
    cells: Mapping[int, KnownCell]

    @property
    def counted_cells(self) -> list[KnownCell]:
        """Those that are finished, in the order of seeds."""
        return [cell for _, cell in sorted(self.cells.items()) if cell.is_counted]


def read_fields(table: ResultTable, ledger: Ledger) -> list[FieldCells]:
    """Return the cells behind every field that has any, in the order of the table; places that mean
    the same run share a cell.
    """
    firsts = {point.cell.signature: point for point in reversed(table.points)}
    entries = ledger.entries_of(point.cell for point in firsts.values())

    def read_cell(signature: str) -> KnownCell:
        return KnownCell(
            firsts[signature],
            entries[signature],
            stored_files.read_if_sound(partial(ledger.read_provenance, signature)) or {},
            stored_files.read_if_sound(partial(ledger.read_rows, signature)) or (),
            ledger.list_evaluations(signature),
            ledger.locate_files(signature),
            entries[signature].result or {},
        )

    with ThreadPoolExecutor(READERS) as pool:  # an object store answers slowly, but many at once
        known_cells = dict(zip(firsts, pool.map(read_cell, firsts), strict=True))
    return [
        FieldCells(
            i, j, describe_row(row.coordinates), {s: known_cells[c] for s, c in group.cells.items()}
        )
        for i, row in enumerate(table.rows)
        for j, group in enumerate(row.values)
        if group is not None
    ]


def distinct_cells(fields: Sequence[FieldCells]) -> list[KnownCell]:
    """Return every cell of some fields once."""
    return list({c.signature: c for field in fields for c in field.cells.values()}.values())


def column_name(table: ResultTable, column: int) -> str:
    """Return a column as the table's header has it."""
    return ", ".join(map(format_value, table.columns[column]))


@dataclass(frozen=True)
class Picture:
    """A picture of the cell of a field and a seed. name: of its file; caption: what the file of its
    numbers says of it, empty where nothing does.
    """

    name: str
    field: FieldCells
    seed: int
    content: bytes
    caption: str


def read_pictures(fields: Sequence[FieldCells], ledger: Ledger) -> dict[str, list[Picture]]:
    """Return by kind the pictures of the first seed of every field that has some, as many as a page
    has room for.
    """
    by_kind: dict[str, list[Picture]] = {}
    room = MOST_BYTES
    for field in fields:
        for kind, (seed, names) in _list_pictures(field).items():
            for name in names:
                picture = _read_picture(field, seed, name, ledger)
                if picture is not None and len(picture.content) <= room:
                    by_kind.setdefault(kind, []).append(picture)
                    room -= len(picture.content)
    return dict(sorted(by_kind.items()))


def _list_pictures(field: FieldCells) -> dict[str, tuple[int, list[str]]]:
    """Return by kind the first seed that has pictures of it, and their names."""
    shown: dict[str, tuple[int, list[str]]] = {}
    for seed, cell in sorted(field.cells.items()):
        for name in filter(lambda name: name.endswith(PICTURES), cell.evaluations):
            first, names = shown.setdefault(name_kind(name), (seed, []))
            if first == seed:
                names.append(name)
    return shown


def name_kind(name: str) -> str:
    """Return `perturbations` of `perturbations-class3.png`: the words before what tells it from its
    like.
    """
    stem = PurePosixPath(name).stem
    words = KIND.match(stem)
    return words[0] if words else stem


def _read_picture(field: FieldCells, seed: int, name: str, ledger: Ledger) -> Picture | None:
    """Read a picture, with the caption beside its numbers if that can be read; None where it is
    gone.
    """
    signature = field.cells[seed].signature
    content = ledger.read(signature, f"{EVALUATIONS}/{name}")
    if content is None:
        return None
    numbers = f"{EVALUATIONS}/{PurePosixPath(name).stem}.npz"
    stored = ledger.read(signature, numbers)
    read = partial(stored_files.read_arrays, stored or b"", numbers, "draw it again")
    arrays = (stored and stored_files.read_if_sound(read)) or {}
    return Picture(name, field, seed, content, str(arrays.get("caption", "")))
