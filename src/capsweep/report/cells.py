"""What the ledger knows of a sweep's cells: which are behind a field of its table, and the pictures
that evaluations left with them.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import (
    EVALUATION_KINDS,
    EVALUATIONS,
    READERS,
    Entry,
    Ledger,
    kind_of_evaluation,
)
from capsweep.report.grid import describe_row, format_value
from capsweep.report.table import COUNTED, ResultTable
from capsweep.sweep.expand import Point

TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
MOST_OF_A_KIND = 10  # of one row: as many as there are digits
MOST = 120  # of a page: one of a thousand cells shall open
PNG = b"\x89PNG\r\n\x1a\n"


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
        """As everywhere."""
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


def read_cells(points: Sequence[Point], ledger: Ledger) -> dict[str, KnownCell]:
    """Every cell of some points, by signature; places that mean the same run share one."""
    firsts = {point.cell.signature: point for point in reversed(points)}
    entries = ledger.entries_of(point.cell for point in firsts.values())

    def read_cell(signature: str) -> KnownCell:
        provenance, rows = _read_known(ledger, signature)
        evaluations, where = ledger.list_evaluations(signature), ledger.where(signature)
        entry = entries[signature]
        result = entry.result or {}
        return KnownCell(firsts[signature], entry, provenance, rows, evaluations, where, result)

    with ThreadPoolExecutor(READERS) as pool:  # an object store answers slowly, but many at once
        return dict(zip(firsts, pool.map(read_cell, firsts), strict=True))


def _read_known(
    ledger: Ledger, signature: str
) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """Provenance and rows; a damaged file is named in the provenance: the page must not fail."""
    files: list[Any] = [{}, ()]
    damages: list[str] = []
    for number, read in enumerate((ledger.read_provenance, ledger.read_rows)):
        try:
            files[number] = read(signature)
        except DamageError as error:
            damages.append(str(error))
    provenance, rows = files
    return ({**provenance, "damaged": "; ".join(damages)} if damages else provenance), rows


def cells_behind(table: ResultTable, known: Mapping[str, KnownCell]) -> list[FieldCells]:
    """The cells behind every field that has any, in the order of the table."""
    return [
        FieldCells(
            i, j, describe_row(row.coordinates), {s: known[c] for s, c in group.cells.items()}
        )
        for i, row in enumerate(table.rows)
        for j, group in enumerate(row.values)
        if group is not None
    ]


def distinct_cells(fields: Sequence[FieldCells]) -> list[KnownCell]:
    """Every cell of some fields once."""
    return list({c.signature: c for field in fields for c in field.cells.values()}.values())


def column_name(table: ResultTable, column: int) -> str:
    """A column as the table's header has it."""
    return ", ".join(map(format_value, table.columns[column]))


def read_hardware(provenance: Mapping[str, Any]) -> str | None:
    """The GPUs, else the processor, from what was written down when the cell began."""
    hardware = provenance.get("hardware", {})
    gpus = hardware.get("gpus") or []
    return gpus[0] if gpus else hardware.get("processor")


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

    @property
    def media(self) -> str:
        """Its type, as HTML names it."""
        return TYPES[PurePosixPath(self.name).suffix]

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels; None where its type does not tell."""
        if not self.content.startswith(PNG) or len(self.content) < 24:
            return None
        width, height = struct.unpack(">II", self.content[16:24])
        return width, height


@dataclass(frozen=True)
class PictureKind:
    """Pictures that are shown, row by row; left_out: how many more there are."""

    name: str
    shown: Sequence[Picture]
    left_out: int


def read_pictures(fields: Sequence[FieldCells], ledger: Ledger) -> list[PictureKind]:
    """Of every row the first seed that has a kind, some pictures of it: the first of each before
    any second one, as many as a page has room for.
    """
    candidates = [candidate for field in fields for candidate in _list_candidates(field)]
    places = sorted(range(len(candidates)), key=lambda place: candidates[place][0])[:MOST]
    shown: dict[str, list[Picture]] = {}
    for place in sorted(places):
        picture = _read_picture(*candidates[place][1:], ledger)
        if picture is not None:
            shown.setdefault(kind_of_evaluation(picture.name), []).append(picture)
    count = Counter(
        kind_of_evaluation(name) for cell in distinct_cells(fields) for name in list_pictures(cell)
    )
    for kind, pictures in shown.items():
        count[kind] -= len({(p.field.cells[p.seed].signature, p.name) for p in pictures})
    return [PictureKind(k, shown.get(k, ()), count[k]) for k in sorted(count, key=_rank_kind)]


def list_pictures(cell: KnownCell) -> list[str]:
    """The names of a cell's pictures."""
    return [name for name in cell.evaluations if PurePosixPath(name).suffix in TYPES]


def _list_candidates(field: FieldCells) -> Iterator[tuple[int, str, FieldCells, int]]:
    """Rank among those of its row and kind, name, field and seed of each picture."""
    seeds: dict[str, int] = {}
    ranks: Counter[str] = Counter()
    for seed, cell in sorted(field.cells.items()):
        for name in list_pictures(cell):
            kind = kind_of_evaluation(name)
            if seeds.setdefault(kind, seed) == seed and ranks[kind] < MOST_OF_A_KIND:
                yield ranks[kind], name, field, seed
                ranks[kind] += 1


def _read_picture(name: str, field: FieldCells, seed: int, ledger: Ledger) -> Picture | None:
    """With the caption beside its numbers, if that can be read; None where it is gone."""
    signature = field.cells[seed].signature
    content = ledger.read(signature, f"{EVALUATIONS}/{name}")
    if content is None:
        return None
    numbers = f"{EVALUATIONS}/{PurePosixPath(name).stem}.npz"
    stored = ledger.read(signature, numbers)
    try:
        arrays = stored_files.read_arrays(stored, numbers, "draw it again") if stored else {}
        caption = str(arrays.get("caption", ""))
    except DamageError as error:
        caption = str(error)
    return Picture(name, field, seed, content, caption)


def _rank_kind(kind: str) -> tuple[int, str]:
    """Those that are known come first."""
    return EVALUATION_KINDS.index(kind) if kind in EVALUATION_KINDS else len(EVALUATION_KINDS), kind
