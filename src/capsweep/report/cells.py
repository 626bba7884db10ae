"""What the ledger knows of a sweep's cells, and which of them are behind a field of its table."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from capsweep.errors import DamageError
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.report.grid import describe_row, format_value
from capsweep.report.table import COUNTED, ResultTable
from capsweep.sweep.expand import Point

Row = Mapping[str, Any]


@dataclass(frozen=True)
class KnownCell:
    """A cell and what its folder holds. rows: one per epoch; evaluations: names below evals/;
    where: the folder.
    """

    point: Point
    entry: Entry
    provenance: Mapping[str, Any]
    rows: tuple[Row, ...]
    evaluations: tuple[str, ...]
    where: str

    @property
    def signature(self) -> str:
        """As everywhere."""
        return self.point.cell.signature

    @property
    def is_counted(self) -> bool:
        """Whether tables and curves count it: one that a search stopped early is never averaged."""
        return self.entry.status in COUNTED and self.entry.result is not None

    @property
    def result(self) -> Mapping[str, Any]:
        """The result; empty where there is none."""
        return self.entry.result or {}


@dataclass(frozen=True)
class FieldCells:
    """The cells behind one field of a table, by seed. row, column: of `Table.rows`, `.columns`;
    name: its row's coordinates.
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

    def one(signature: str) -> KnownCell:
        provenance, rows = _read_known(ledger, signature)
        return KnownCell(
            point=firsts[signature],
            entry=entries[signature],
            provenance=provenance,
            rows=rows,
            evaluations=tuple(ledger.list_evaluations(signature)),
            where=ledger.where(signature),
        )

    return dict(zip(firsts, _map_in_parallel(ledger, one, list(firsts)), strict=True))


def cells_behind(table: ResultTable, known: Mapping[str, KnownCell]) -> list[FieldCells]:
    """The cells behind every field that has any, in the order of the table."""
    return [
        FieldCells(
            i, j, describe_row(row.coordinates), {s: known[c] for s, c in value.cells.items()}
        )
        for i, row in enumerate(table.rows)
        for j, value in enumerate(row.values)
        if value is not None
    ]


def distinct_cells(fields: Sequence[FieldCells]) -> list[KnownCell]:
    """Every cell of some fields once."""
    return list({c.signature: c for field in fields for c in field.cells.values()}.values())


def column_name(table: ResultTable, column: int) -> str:
    """A column as the table's header has it."""
    return ", ".join(map(format_value, table.columns[column]))


def _read_known(ledger: Ledger, signature: str) -> tuple[Mapping[str, Any], tuple[Row, ...]]:
    """Provenance and rows; a damaged file is told of as such: the page must not fail for it."""
    damaged: list[str] = []
    made: Mapping[str, Any] = {}
    rows: tuple[Row, ...] = ()
    try:
        made = ledger.read_provenance(signature)
    except DamageError as error:
        damaged.append(str(error))
    try:
        rows = tuple(ledger.read_rows(signature))
    except DamageError as error:
        damaged.append(str(error))
    return {**made, **({"damaged": "; ".join(damaged)} if damaged else {})}, rows


def _map_in_parallel(
    ledger: Ledger, one: Callable[[str], KnownCell], signatures: Sequence[str]
) -> list[KnownCell]:
    """An object store answers slowly, but many at once."""
    if ledger.disk is not None:
        return [one(signature) for signature in signatures]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(one, signatures))
