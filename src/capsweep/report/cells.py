"""What the ledger knows of a sweep's cells, and which of them are behind a field of its table."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from capsweep.errors import DamageError
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.report.grid import describe_row, format_value
from capsweep.report.table import COUNTED, ResultTable
from capsweep.sweep.expand import Point


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
    damaged: list[str] = []
    provenance: Mapping[str, Any] = {}
    rows: Sequence[Mapping[str, Any]] = ()
    try:
        provenance = ledger.read_provenance(signature)
    except DamageError as error:
        damaged.append(str(error))
    try:
        rows = ledger.read_rows(signature)
    except DamageError as error:
        damaged.append(str(error))
    return {**provenance, **({"damaged": "; ".join(damaged)} if damaged else {})}, rows


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
