"""What `capsweep eval routing` says: a table of a sweep, of one cell, and the same as plain data.

A content is that of routing.json in the evals/ of a cell: `evaluation.routing_measures` makes it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

from rich.table import Table as RichTable

from capsweep.report import grid
from capsweep.report.evaluation_tables import (
    EvaluationTable,
    SeedsRow,
    format_percent,
    make_seeds_table,
)
from capsweep.report.grid import MISSING, describe_row
from capsweep.runtime.terminal import count_of
from capsweep.sweep.spec import Sweep

Content: TypeAlias = Mapping[str, Any]
MEASURES = ("entropy", "polarisation", "variety", "dead", "trees")  # of a layer
FEWEST, MOST = 1, 10  # iterations at test whose answers are in the table
NOTES = (
    "Of each layer, by couplings of the last iteration. entropy: that of the shares of a child, by "
    "that of equal shares. polarisation: how far a child's largest share is from an equal one; 0 "
    "where all are equal, 100 % where one parent has the child. Both are means over children and "
    "images. variety: the part of the variance of couplings that is between images, the rest being "
    "between links; none where all couplings are equal. dead: parents whose activation is below "
    "0.01 in all images; the threshold is ours. trees: distinct parse trees, of the strongest "
    "parent of every child, by number of images.",
    "Of the whole network, the same beside each of its layers. error: as trained. frozen: with the "
    "couplings of all layers replaced by their mean over as many training images, not augmented. "
    f"changed at T'={FEWEST}, T'={MOST}: images whose predicted classes change when the same "
    "weights are routed with so many iterations.",
)


@dataclass(frozen=True)
class RoutingGroup:
    """The cells of a field of a sweep's table. contents: of those that route; reason: why there are
    none; fields: of the rows of the table.
    """

    contents: Sequence[Content]
    reason: str | None
    fields: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Which row and column."""
        return describe_row(self.fields["coordinates"])


def read_answer(content: Content, key: str, iterations: int) -> float | None:
    """The changed, or the error, of a cell with so many iterations at test."""
    matching = [a for a in content["iterations"] or () if a["iterations"] == iterations]
    return matching[0][key] if matching else None


CELL_COLUMNS: Mapping[str, Callable[[Content], float | None]] = {
    "error": lambda content: content["error"],
    "frozen": lambda content: content["frozen_error"],
    f"changed at T'={FEWEST}": lambda content: read_answer(content, "changed", FEWEST),
    f"changed at T'={MOST}": lambda content: read_answer(content, "changed", MOST),
}
COLUMNS = (*MEASURES, *CELL_COLUMNS)


def make_routing_rows(groups: Sequence[RoutingGroup]) -> list[SeedsRow]:
    """A row for each group and layer; one without a layer where no cell is finished."""
    rows = []
    for group in groups:
        if group.reason is not None:
            continue
        layers = group.contents[0]["layers"] if group.contents else [MISSING]
        examples = max((content["examples"] for content in group.contents), default=0)
        for layer in layers:
            values = _collect_values(group.contents, layer)
            row = SeedsRow(beside=(layer,), examples=examples, values=values, **group.fields)
            rows.append(row)
    return rows


def _collect_values(contents: Sequence[Content], layer: str) -> dict[str, list[float]]:
    """By column, of every cell that has it."""
    by_column: dict[str, list[float | None]] = {
        name: [content["layers"][layer][name] for content in contents] for name in MEASURES
    }
    for name, read in CELL_COLUMNS.items():
        by_column[name] = [read(content) for content in contents]
    return {name: [v for v in values if v is not None] for name, values in by_column.items()}


def make_routing_table(sweep: Sweep, groups: Sequence[RoutingGroup]) -> EvaluationTable:
    """The rows, and notes on what the measures are and which cells have none."""
    contents = [content for group in groups for content in group.contents]
    notes = [*NOTES, *describe_exceptions(contents)]
    notes += [f"left out: {group.label}: {group.reason}." for group in groups if group.reason]
    rows = make_routing_rows(groups)
    return make_seeds_table(sweep, "routing", rows, COLUMNS, notes, ["layer"])


def describe_exceptions(contents: Sequence[Content]) -> list[str]:
    """A note where couplings have no sum, and where predictions were near ties."""
    notes = []
    if any(content["without_sum"] for content in contents):
        notes.append(
            "Where the couplings of a child have no sum (normalisers sigmoid and max_min, "
            "self_attention), entropy, polarisation and trees are of couplings divided by their "
            "sum over the parents at each position; those below 0 count as 0."
        )
    if ties := sum(content["ties"] for content in contents):
        notes.append(f"{count_of(ties, 'near tie')} came out otherwise than the test stored.")
    return notes


def describe_groups(answer: EvaluationTable, groups: Sequence[RoutingGroup]) -> dict[str, Any]:
    """The table as plain data: values of each seed by column, and answers by iterations at test."""
    keys = (*answer.sweep.rows, *answer.sweep.columns)
    by_place = {group.fields["coordinates"]: group for group in groups}
    records = []
    for row in make_routing_rows(groups):
        contents = by_place[row.coordinates].contents
        record = {
            **dict(zip(keys, row.coordinates, strict=True)),
            "layer": row.beside[0] if contents else None,
            "wanted": row.wanted,
            "missing": {str(seed): cause for seed, cause in row.missing.items()},
            "examples": row.examples,
            "values": row.values,
            "means": {name: fmean(values) for name, values in row.values.items() if values},
            "iterations": [content["iterations"] for content in contents],
        }
        records.append(record)
    sweep = answer.sweep
    return {
        "sweep": sweep.name,
        "question": sweep.question,
        "warnings": answer.warnings,
        "notes": answer.notes,
        "fields": records,
    }


def render_content(content: Mapping[str, Any]) -> str:
    """JSON for programs."""
    return json.dumps(content, indent=1, allow_nan=False)


def make_cell_tables(content: Content) -> list[RichTable]:
    """Those of one cell for a terminal: its layers, and its answers by iterations at test."""
    layers = [
        [name, *(_format_share(layer[measure]) for measure in MEASURES)]
        for name, layer in content["layers"].items()
    ]
    errors = [["as trained", MISSING, _format_share(content["error"])]]
    errors.append(["frozen couplings", MISSING, _format_share(content["frozen_error"])])
    for answer in content["iterations"] or ():
        changed, error = (_format_share(answer[key]) for key in ("changed", "error"))
        errors.append([f"T'={answer['iterations']}", changed, error])
    return [
        grid.grid_terminal(None, ["layer", *MEASURES], layers),
        grid.grid_terminal(None, ["routed", "changed", "error"], errors),
    ]


def _format_share(value: float | None) -> str:
    return format_percent([] if value is None else [value])
