"""What `capsweep eval routing` says of a sweep: its table, the same as plain data, and a picture.

A content is that of routing.json in the evals/ of a cell: `routing_measures` makes it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation import panels
from capsweep.lab.evaluation.panels import BandedCurve, Bars, Panel
from capsweep.lab.evaluation.routing_measures import FILE, measure_routing
from capsweep.lab.evaluation.sweep_cells import (
    SEEDS_HEADER,
    SEEDS_NOTE,
    Content,
    EvaluationTable,
    Place,
    SweepCells,
    describe_seeds,
)
from capsweep.ledger.records import Couplings
from capsweep.report.costs import COLUMNS, NOTES, collect_measures
from capsweep.report.grid import MISSING
from capsweep.runtime.terminal import count_of

WITHOUT_SUM = (
    "Where the couplings of a child have no sum (normalisers sigmoid and max_min, self_attention), "
    "entropy, polarisation and trees are of couplings divided by their sum over the parents at "
    "each position; those below 0 count as 0."
)
CAPTION = (
    "entropy of the shares of a child by that of equal shares; variety: the part of the variance "
    "of couplings that is between images, no bar where all couplings are equal; error of the same "
    "weights routed with other numbers of iterations, of routings that have them\n"
    "mean over seeds, whiskers and bands: lowest to highest seed"
)


@dataclass(frozen=True)
class RoutingGroup:
    """The cells of a field. contents: of those that route; reason: why there are none."""

    place: Place
    contents: Sequence[Content]
    reason: str | None

    @property
    def layers(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """Return the measures of all cells by layer; of one without a name where none is there."""
        return collect_measures(self.contents) or {MISSING: dict.fromkeys(COLUMNS, ())}


def measure_groups(cells: SweepCells, device: str, examples: int) -> list[RoutingGroup]:
    """Measure the cells of a sweep that route; a file in each one's evals/."""
    reasons: dict[str, str] = {}

    def evaluate(cell: Any, stored: Any) -> list[tuple[str, Content]]:
        try:
            return [(FILE, measure_routing(cell, stored, examples))]
        except NotApplicableError as error:
            reasons[cell.name] = str(error)
            return []

    groups = []
    for place, of_cells in cells.evaluate_networks(device, evaluate, (FILE, Couplings)):
        why = [reasons[p.cell.signature] for p in place.finished if p.cell.signature in reasons]
        contents = [content for contents in of_cells for content in contents]
        groups.append(RoutingGroup(place, contents, why[0] if why else None))
    if not any(group.contents for group in groups):
        raise NotApplicableError(f"{cells.sweep.name}: no cell of it routes")
    return groups


def make_table(cells: SweepCells, groups: Sequence[RoutingGroup]) -> EvaluationTable:
    """Return a row for each field and layer, with notes on what the measures are."""
    lines = [
        (group.place, [layer, *describe_seeds(group.place, group.contents, values.values())])
        for group in groups
        if group.reason is None
        for layer, values in group.layers.items()
    ]
    contents = [content for group in groups for content in group.contents]
    notes = [*NOTES]
    if any(content["without_sum"] for content in contents):
        notes.append(WITHOUT_SUM)
    if ties := sum(content["ties"] for content in contents):
        notes.append(f"{count_of(ties, 'near tie')} came out otherwise than the test stored.")
    notes += [f"left out: {g.place.label}: {g.reason}." for g in groups if g.reason]
    return cells.make_table(
        "routing", ["layer", *SEEDS_HEADER, *COLUMNS], lines, [*notes, SEEDS_NOTE]
    )


def render_data(answer: EvaluationTable, groups: Sequence[RoutingGroup]) -> bytes:
    """Return JSON: values of each seed by column, and answers by iterations at test."""
    keys = (*answer.sweep.rows, *answer.sweep.columns)
    fields = [
        {
            **dict(zip(keys, group.place.coordinates, strict=True)),
            "layer": layer if group.contents else None,
            "wanted": len(group.place.points),
            "missing": {str(seed): cause for seed, cause in group.place.missing.items()},
            "examples": max((content["examples"] for content in group.contents), default=0),
            "values": values,
            "means": {name: fmean(of_cells) for name, of_cells in values.items() if of_cells},
            "iterations": [content["iterations"] for content in group.contents],
        }
        for group in groups
        if group.reason is None
        for layer, values in group.layers.items()
    ]
    content = {
        "sweep": answer.sweep.name,
        "question": answer.sweep.question,
        "warnings": answer.warnings,
        "notes": answer.notes,
        "fields": fields,
    }
    return f"{json.dumps(content, indent=1, allow_nan=False)}\n".encode()


def draw_groups(groups: Sequence[RoutingGroup], title: str) -> bytes:
    """Return a PNG: entropy and variety of couplings, and the error by number of iterations."""
    filled = [group for group in groups if group.contents]
    parts: list[Panel | Bars] = [
        make_bars(filled, "entropy", "entropy / that of equal shares"),
        make_bars(filled, "variety", "variety between images"),
    ]
    curves = [
        make_error_curve(group, colour)
        for colour, group in enumerate(filled)
        if group.contents[0]["iterations"] is not None
    ]
    if curves:
        parts.append(Panel("test error", curves))
    return panels.draw_panels(parts, "routing iterations at test", title, CAPTION)


def make_bars(groups: Sequence[RoutingGroup], measure: str, quantity: str) -> Bars:
    """Return a bar for each field and layer."""
    labels, values, colours = [], [], []
    for colour, group in enumerate(groups):
        for layer, measures in group.layers.items():
            label = group.place.label
            labels.append(label if len(group.layers) == 1 else f"{label} · {layer}")
            values.append(measures[measure])
            colours.append(colour)
    return Bars(quantity, labels, *summarise_seeds(values), colours)


def make_error_curve(group: RoutingGroup, colour: int) -> BandedCurve:
    """Return the errors at the numbers of iterations."""
    numbers = [answer["iterations"] for answer in group.contents[0]["iterations"]]
    by_number = zip(*(content["iterations"] for content in group.contents), strict=True)
    values = [
        [answer["error"] for answer in answers if answer["error"] is not None]
        for answers in by_number
    ]
    curve = summarise_seeds(values)
    return BandedCurve(group.place.label, np.array(numbers), *curve, colour=colour)


def summarise_seeds(
    values: Sequence[Sequence[float]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, lowest and highest of the seeds that have a number; NaN where none has one."""
    numbers = [seeds or [np.nan] for seeds in values]
    mean, low, high = (np.array([f(seeds) for seeds in numbers]) for f in (np.mean, np.min, np.max))
    return mean, low, high
