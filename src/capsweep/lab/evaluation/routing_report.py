"""The table of `capsweep eval routing SWEEP`; each cell keeps its own measures in routing.json."""

from typing import Any

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.routing_measures import FILE, measure_routing
from capsweep.lab.evaluation.sweep_cells import SEEDS_HEADER, Content, SweepCells, describe_seeds
from capsweep.ledger.records import Couplings
from capsweep.report.grid import MISSING
from capsweep.report.publish import COLUMNS, ROUTING_NOTES, collect_measures
from capsweep.runtime.terminal import count_of

WITHOUT_SUM = (
    "Where the couplings of a child have no sum (normalisers sigmoid and max_min, self_attention), "
    "entropy, polarisation and trees are of couplings divided by their sum over the parents at "
    "each position; those below 0 count as 0."
)


def publish_routing(cells: SweepCells, device: str, examples: int) -> None:
    """Measure the cells of a sweep that route, and publish a row for each field and layer.

    Raises NotApplicableError where no cell routes.
    """
    reasons: dict[str, str] = {}

    def evaluate(cell: Any, stored: Any) -> list[tuple[str, Content]]:
        try:
            return [(FILE, measure_routing(cell, stored, examples))]
        except NotApplicableError as error:
            reasons[cell.name] = str(error)
            return []

    lines, measured, left_out = [], [], []
    for place, of_cells in cells.evaluate_networks(device, evaluate, (FILE, Couplings)):
        why = [reasons[p.cell.signature] for p in place.finished if p.cell.signature in reasons]
        if why:
            left_out.append(f"left out: {place.label}: {why[0]}.")
            continue
        contents = [content for contents in of_cells for content in contents]
        measured += contents
        for layer, values in (collect_measures(contents) or {MISSING: {}}).items():
            columns = [values.get(column, ()) for column in COLUMNS]
            lines.append((place, [layer, *describe_seeds(place, contents, columns)]))
    if not measured:
        raise NotApplicableError(f"{cells.sweep.name}: no cell of it routes")
    notes = [*ROUTING_NOTES]
    if any(content["without_sum"] for content in measured):
        notes.append(WITHOUT_SUM)
    if ties := sum(content["ties"] for content in measured):
        notes.append(f"{count_of(ties, 'near tie')} came out otherwise than the test stored.")
    header = ["layer", *SEEDS_HEADER, *COLUMNS]
    cells.publish_table("routing", "routing", header, lines, [*notes, *left_out])
