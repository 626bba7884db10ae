"""What stands beside an answer: what its networks cost, and how they route as far as
`capsweep eval routing` has measured it.
"""

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.report import grid
from capsweep.report.evaluation_tables import SeedsRow, format_percent
from capsweep.report.grid import format_value
from capsweep.report.routing_table import COLUMNS, NOTES, RoutingGroup, make_routing_rows
from capsweep.report.table import CellGroup, ResultTable

ROUTING = "routing.json"  # in the evals/ of a cell
NOTE = "parameters: with decoder. images/s: the median speed of training, as the cells ran."


def list_costs(table: ResultTable, ledger: Ledger) -> list[str]:
    """A table in Markdown with a row for each field, and layer where routing was measured, and what
    its columns are. Raises DamageError for a damaged file of a cell.
    """
    sweep = table.sweep
    fields = [
        ((*row.coordinates, *column), group)
        for row in table.rows
        for column, group in zip(table.columns, row.values, strict=True)
        if group is not None and group.by_seed
    ]
    rows = [(_describe_sizes(g, ledger), _measure_rows(place, g, ledger)) for place, g in fields]
    is_measured = any(row.wanted for _, measured in rows for row in measured)
    header = [*sweep.rows, *sweep.columns, "parameters", "images/s"]
    lines = []
    for (place, _), (sizes, measured) in zip(fields, rows, strict=True):
        start = [*map(format_value, place), *sizes]
        shown = measured if is_measured else measured[:1]
        lines += [[*start, *(_format_measures(row) if is_measured else ())] for row in shown]
    header += ["layer", "measured", *COLUMNS] if is_measured else []
    return [grid.pipe_table(header, lines), NOTE, *(NOTES if is_measured else ())]


def _describe_sizes(group: CellGroup, ledger: Ledger) -> list[str]:
    """Parameters and speed of training."""
    results = [ledger.read_result(group.cells[seed]) or {} for seed in group.by_seed]
    sizes = sorted({result["parameters"] for result in results if "parameters" in result})
    speeds = [speed for result in results if (speed := result.get("images_per_second"))]
    return [
        ", ".join(f"{size:,}" for size in sizes) or grid.MISSING,
        f"{median(speeds):,.0f}" if speeds else grid.MISSING,
    ]


def _measure_rows(place: tuple[Any, ...], group: CellGroup, ledger: Ledger) -> Sequence[SeedsRow]:
    """A row for each routed layer; one without values where nothing was measured."""
    stored = (ledger.read(group.cells[s], f"{EVALUATIONS}/{ROUTING}") for s in group.by_seed)
    contents = [json.loads(content) for content in stored if content is not None]
    fields = {"coordinates": place, "wanted": len(contents), "missing": {}, "stale": 0}
    return make_routing_rows([RoutingGroup(contents, None, fields)])


def _format_measures(row: SeedsRow) -> list[str]:
    measures = (format_percent(row.values.get(column, ())) for column in COLUMNS)
    return [*row.beside, f"({row.wanted})", *measures]
