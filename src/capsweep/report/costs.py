"""What stands beside an answer: what its networks cost, and how they route as far as
`capsweep eval routing` has measured it.

A content is that of routing.json in the evals/ of a cell.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.ledger.records import Couplings
from capsweep.report import grid
from capsweep.report.cells import TableCell
from capsweep.report.grid import MISSING, format_value
from capsweep.report.table import ResultTable
from capsweep.statistics.seeds import summarise_values

Content: TypeAlias = Mapping[str, Any]
ROUTING = "routing.json"  # in the evals/ of a cell
NOTE = "parameters: with decoder. images/s: the median speed of training, as the cells ran."
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


def _read_changed(content: Content, iterations: int) -> float | None:
    answers = [a for a in content["iterations"] or () if a["iterations"] == iterations]
    return answers[0]["changed"] if answers else None


# The numbers of a layer, then those of its whole network: each of a content and a layer's name.
COLUMNS: Mapping[str, Callable[[Content, str], float | None]] = {
    **{name: lambda c, layer, name=name: c["layers"][layer][name] for name in MEASURES},
    "error": lambda content, _: content["error"],
    "frozen": lambda content, _: content["frozen_error"],
    f"changed at T'={FEWEST}": lambda content, _: _read_changed(content, FEWEST),
    f"changed at T'={MOST}": lambda content, _: _read_changed(content, MOST),
}


def collect_measures(contents: Sequence[Content]) -> dict[str, dict[str, list[float]]]:
    """Return the numbers of every cell that has them, by layer and by COLUMNS."""
    return {
        layer: {
            column: [value for c in contents if (value := read(c, layer)) is not None]
            for column, read in COLUMNS.items()
        }
        for layer in (contents[0]["layers"] if contents else ())
    }


def format_percent(values: Sequence[float]) -> str:
    """Return `87.31 ± 1.20 %` of fractions, those of seeds; the missing sign of none."""
    if not values:
        return MISSING
    summary = summarise_values(values)
    spread = "" if summary.std is None else f" ± {100 * summary.std:.2f}"
    return f"{100 * summary.mean:.2f}{spread} %"


def list_costs(table: ResultTable, ledger: Ledger) -> list[str]:
    """Return a table in Markdown with a row for each field, and layer where routing was measured,
    and what its columns are. Fields that only settings of the optimiser tell apart share a row, but
    not where routing was measured.

    Raises DamageError for a damaged file of a cell.
    """
    keys = (*table.sweep.rows, *table.sweep.columns)
    shown = range(len(keys))
    cells = _group_cells(table, shown)
    measured = {place: _read_contents(each, ledger) for place, each in cells.items()}
    is_measured = any(measured.values())
    if not is_measured:
        shown = [number for number in shown if not keys[number].startswith("optim")]
        cells = _group_cells(table, shown)
    header = [*(keys[number] for number in shown), "parameters", "images/s"]
    lines = []
    for place, each in cells.items():
        start = [*map(format_value, place), *_describe_sizes(each)]
        rows = _list_measures(measured[place]) if is_measured else ([],)
        lines += [[*start, *measures] for measures in rows]
    header += ["layer", "measured", *COLUMNS] if is_measured else []
    return [grid.pipe_table(header, lines), NOTE, *(NOTES if is_measured else ())]


def _group_cells(
    table: ResultTable, shown: Sequence[int]
) -> dict[tuple[Any, ...], list[TableCell]]:
    """Return the measured cells by the coordinates of those numbers."""
    cells: dict[tuple[Any, ...], list[TableCell]] = {}
    for group in table.groups:
        if group.by_seed:
            place = (*table.rows[group.row].coordinates, *table.columns[group.column])
            measured = [group.cells[seed] for seed in group.by_seed]
            cells.setdefault(tuple(place[number] for number in shown), []).extend(measured)
    return cells


def _describe_sizes(cells: Sequence[TableCell]) -> list[str]:
    """Return parameters and speed of training."""
    results = [cell.result for cell in cells]
    sizes = sorted({result["parameters"] for result in results if "parameters" in result})
    speeds = [speed for result in results if (speed := result.get("images_per_second"))]
    return [
        ", ".join(f"{size:,}" for size in sizes) or MISSING,
        f"{median(speeds):,.0f}" if speeds else MISSING,
    ]


def _read_contents(cells: Sequence[TableCell], ledger: Ledger) -> list[Content]:
    names = (cell.signature for cell in cells if ROUTING in cell.evaluations)
    return [
        stored_files.parse_json(content, ROUTING, "evaluate the cell again", Couplings)
        for name in names
        if (content := ledger.read(name, f"{EVALUATIONS}/{ROUTING}")) is not None
    ]


def _list_measures(contents: Sequence[Content]) -> Iterator[list[str]]:
    """Yield a row for each routed layer; one without values where nothing was measured."""
    by_layer = collect_measures(contents) or {MISSING: {}}
    for layer, values in by_layer.items():
        measures = (format_percent(values.get(column, ())) for column in COLUMNS)
        yield [layer, f"({len(contents)})", *measures]
