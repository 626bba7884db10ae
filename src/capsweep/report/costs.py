"""What stands beside an answer: what its networks cost, and how they route as far as
`capsweep eval routing` has measured it.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.ledger.records import Couplings
from capsweep.report import grid
from capsweep.report.evaluation_tables import SeedsRow, format_percent
from capsweep.report.grid import format_value
from capsweep.report.routing_table import COLUMNS, NOTES, RoutingGroup, make_routing_rows
from capsweep.report.table import ResultTable

ROUTING = "routing.json"  # in the evals/ of a cell
NOTE = "parameters: with decoder. images/s: the median speed of training, as the cells ran."


def list_costs(table: ResultTable, ledger: Ledger) -> list[str]:
    """A table in Markdown with a row for each field, and layer where routing was measured, and what
    its columns are. Fields that only settings of the optimiser tell apart share a row, but not
    where routing was measured.

    Raises DamageError for a damaged file of a cell.
    """
    keys = (*table.sweep.rows, *table.sweep.columns)
    shown = range(len(keys))
    cells = _group_cells(table, shown)
    measured = {place: _measure_rows(place, names, ledger) for place, names in cells.items()}
    is_measured = any(row.wanted for rows in measured.values() for row in rows)
    if not is_measured:
        shown = [number for number in shown if not keys[number].startswith("optim")]
        cells = _group_cells(table, shown)
    header = [*(keys[number] for number in shown), "parameters", "images/s"]
    lines = []
    for place, signatures in cells.items():
        start = [*map(format_value, place), *_describe_sizes(signatures, ledger)]
        rows = map(_format_measures, measured[place]) if is_measured else ([],)
        lines += [[*start, *measures] for measures in rows]
    header += ["layer", "measured", *COLUMNS] if is_measured else []
    return [grid.pipe_table(header, lines), NOTE, *(NOTES if is_measured else ())]


def _group_cells(table: ResultTable, shown: Sequence[int]) -> dict[tuple[Any, ...], list[str]]:
    """Signatures of finished cells by the coordinates of those numbers."""
    cells: dict[tuple[Any, ...], list[str]] = {}
    for row in table.rows:
        for column, group in zip(table.columns, row.values, strict=True):
            if group is not None and group.by_seed:
                place = (*row.coordinates, *column)
                signatures = [group.cells[seed] for seed in group.by_seed]
                cells.setdefault(tuple(place[number] for number in shown), []).extend(signatures)
    return cells


def _describe_sizes(signatures: Sequence[str], ledger: Ledger) -> list[str]:
    """Parameters and speed of training."""
    results = [ledger.read_result(signature) or {} for signature in signatures]
    sizes = sorted({result["parameters"] for result in results if "parameters" in result})
    speeds = [speed for result in results if (speed := result.get("images_per_second"))]
    return [
        ", ".join(f"{size:,}" for size in sizes) or grid.MISSING,
        f"{median(speeds):,.0f}" if speeds else grid.MISSING,
    ]


def _measure_rows(
    place: tuple[Any, ...], signatures: Sequence[str], ledger: Ledger
) -> Sequence[SeedsRow]:
    """A row for each routed layer; one without values where nothing was measured."""
    stored = (ledger.read(signature, f"{EVALUATIONS}/{ROUTING}") for signature in signatures)
    contents = [
        stored_files.parse_json(content, ROUTING, "evaluate the cell again", Couplings)
        for content in stored
        if content is not None
    ]
    fields = {"coordinates": place, "wanted": len(contents), "missing": {}, "stale": 0}
    return make_routing_rows([RoutingGroup(contents, None, fields)])


def _format_measures(row: SeedsRow) -> list[str]:
    measures = (format_percent(row.values.get(column, ())) for column in COLUMNS)
    return [*row.beside, f"({row.wanted})", *measures]
