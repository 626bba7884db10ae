"""What the page says of a field's cells, and where on the page it says it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsweep.config.cell import flat
from capsweep.report import facts, origin
from capsweep.report.cells import FieldCells, KnownCell, column_name
from capsweep.report.table import ResultTable


@dataclass(frozen=True)
class CellDetails:
    """One cell, in words. told: see `origin.of`; number: the table's metric; config: where
    it is not its field's.
    """

    anchor: str
    seed: int
    number: str
    told: Mapping[str, Any]
    facts: Sequence[tuple[str, str]]
    config: str | None
    evaluations: tuple[str, ...]


@dataclass(frozen=True)
class FieldDetails:
    """The cells of one field, which is `text`; config: what they share, all but the seed."""

    anchor: str
    name: str
    column: str
    text: str
    counts: str
    config: str
    cells: tuple[CellDetails, ...]


def field_details(table: ResultTable, field: FieldCells, text: str) -> FieldDetails:
    """The details of a field; text: as the table has it."""
    shared = _config_of(next(iter(field.cells.values())))
    return FieldDetails(
        anchor=make_anchor(field.row, field.column),
        name=field.name,
        column=column_heading(table, field),
        text=text,
        counts=describe_counts(list(field.cells.values())),
        config=_list_config(shared),
        cells=tuple(_cell_details(table, field, seed, shared) for seed in sorted(field.cells)),
    )


def column_heading(table: ResultTable, field: FieldCells) -> str:
    """Its column's name, where that tells fields apart."""
    return column_name(table, field.column) if len(table.columns) > 1 else ""


def make_anchor(row: int, column: int, seed: int | None = None) -> str:
    """The place on the page of a field's cells, or of one of them."""
    return f"cells-{row}-{column}" + ("" if seed is None else f"-{seed}")


def describe_counts(cells: Sequence[KnownCell]) -> str:
    """`9 finished, 6 not run`."""
    found = Counter(facts.STATUS[cell.entry.status] for cell in cells)
    known = [status for status in facts.STATUS.values() if status in found]
    return "; ".join(f"{found[status]} {status}" for status in known)


def _cell_details(
    table: ResultTable, field: FieldCells, seed: int, shared: Mapping[str, Any]
) -> CellDetails:
    cell = field.cells[seed]
    told, config = origin.collect_origin(cell), _config_of(cell)
    number = cell.result.get("metrics", {}).get(table.sweep.metric)
    return CellDetails(
        anchor=make_anchor(field.row, field.column, seed),
        seed=seed,
        number=""
        if number is None
        else f"{table.measure.format_number(number)}{table.measure.unit}",
        told=told,
        facts=facts.list_facts(told),
        config=None if config == shared else _list_config(config),
        evaluations=cell.evaluations,
    )


def _config_of(cell: KnownCell) -> dict[str, Any]:
    return {key: value for key, value in cell.point.cell.science.items() if key != "seed"}


def _list_config(config: Mapping[str, Any]) -> str:
    """A line for each key, as overrides name it: YAML of the whole takes ten times as long."""
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in flat(config).items())
