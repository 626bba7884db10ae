"""The plan: what a sweep would run, proven to be runnable before anything is taken; as a table for
a person and as JSON for programs. Of what ran, the failures by their cause.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table as RichTable

from capsweep.config.cell import Cell, flat
from capsweep.config.places import Places
from capsweep.errors import ConfigError, DamageError
from capsweep.ledger import causes
from capsweep.ledger import ledger as ledgers
from capsweep.ledger.causes import CauseKind, find_nearest
from capsweep.ledger.ledger import Entry, Ledger
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep
from capsweep.training.size import Size, network_size

if TYPE_CHECKING:
    from capsweep.sweep.costs import Costs

STATUSES = ("done", "stale", "running", "stopped", "missing", "failed")
COMMON = ("done", "missing", "failed")  # named also where there is none
NUMBERS = ("parameters", "MFLOPs", "s/cell")
COLUMNS = ("cells", "seeds", *NUMBERS, "state")


@dataclass(frozen=True)
class PlannedCell:
    """One distinct cell: the places of the grid it answers, its size, what the ledger knows."""

    points: tuple[Point, ...]
    size: Size
    entry: Entry

    @property
    def cell(self) -> Cell:
        """The run itself."""
        return self.points[0].cell

    @property
    def fails_again(self) -> bool:
        """Whether it failed in a way that the same code repeats."""
        return ledgers.fails_again(self.entry)

    def is_due(self, retry_failed: bool = False) -> bool:
        """Whether a sweep runs it now."""
        rerun = self.cell.config["rerun"]
        if self.entry.status in ("done", "stale"):
            return rerun == "always" or rerun == self.entry.status
        return retry_failed or not self.fails_again


@dataclass(frozen=True)
class Plan:
    """All distinct cells of a sweep, in the order of the grid."""

    cells: tuple[PlannedCell, ...]

    def count_status(self, status: str) -> int:
        """Cells the ledger has in `status`."""
        return sum(planned.entry.status == status for planned in self.cells)

    def count_equivalent(self) -> int:
        """Places of the grid that share a cell with an earlier place."""
        return sum(len(planned.points) - 1 for planned in self.cells)


def make_plan(points: Sequence[Point], ledger: Ledger) -> Plan:
    """Merge equivalent cells, build each distinct network without memory, ask the ledger.

    Raises ConfigError naming the point whose network cannot be built.
    """
    by_signature: dict[str, list[Point]] = {}
    for point in points:
        by_signature.setdefault(point.cell.signature, []).append(point)
    known: dict[str, Size] = {}
    sizes = [_measure_size(group[0], known) for group in by_signature.values()]
    entries = ledger.entries_of(group[0].cell for group in by_signature.values())
    cells = [
        PlannedCell(tuple(group), size, entries[signature])
        for (signature, group), size in zip(by_signature.items(), sizes, strict=True)
    ]
    return Plan(tuple(cells))


def _measure_size(point: Point, known: dict[str, Size]) -> Size:
    """The size of a point's network, built once per distinct network."""
    config = point.cell.config
    labels = config["dataset"].get("labels_per_image")
    optimizer = config["optim"]["optimizer"]["_target_"], config["trainer"]["fused_optimizer"]
    parts = [config["model"], config["routing"], labels, optimizer]
    network = json.dumps(parts, sort_keys=True)
    if network not in known:
        try:
            known[network] = network_size(config)
        except ConfigError as error:
            raise ConfigError(f"{point.title}: {error}") from error
    return known[network]


def check_data(cells: Iterable[PlannedCell], places: Places) -> None:
    """Find and verify the data of some cells. Raises DataError naming the file."""
    configs = {json.dumps(c.cell.config["dataset"], sort_keys=True): c.cell.config for c in cells}
    for config in configs.values():
        from capsweep.training import build  # it imports torch

        build.build_source(config).check(str(places.data))


def describe_plan(sweep: Sweep, plan: Plan) -> str:
    """The plan in a few words."""
    counts = [f"{n} {s}" for s in STATUSES if (n := plan.count_status(s)) or s in COMMON]
    if equivalent := plan.count_equivalent():
        counts.append(f"{equivalent} equivalent")
    text = f"{sweep.name}: {sweep.question}\n{len(plan.cells)} cells: {', '.join(counts)}"
    damaged = [f"{cell.entry.cause}" for cell in plan.cells if ledgers.is_damaged(cell.entry)]
    return "\n".join([text, *damaged])


def make_table(plan: Plan, costs: "Costs") -> RichTable:
    """A line per place of the grid, seeds together: parameters, forward FLOPs of an image,
    estimated seconds of a cell, and how many cells are in which state.
    """
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name in NUMBERS)
    places: dict[str, list[tuple[PlannedCell, Point]]] = {}
    for cell in plan.cells:
        for point in cell.points:
            places.setdefault(point.title, []).append((cell, point))
    for title, cells in places.items():
        cell, _ = cells[-1]
        states = Counter(_describe_state(*each) for each in cells)
        seconds = costs.seconds(cell.cell)
        table.add_row(
            title,
            ",".join(str(point.seed) for _, point in cells),
            f"{cell.size.parameters:,}",
            f"{cell.size.flops / 1e6:,.1f}",
            "?" if seconds is None else f"{seconds:,.0f}",
            ", ".join(f"{count} {state}" for state, count in states.items()),
        )
    return table


def _describe_state(cell: PlannedCell, point: Point) -> str:
    is_first = point is cell.points[0]
    return cell.entry.status if is_first else f"same as {cell.points[0].title}"


def as_json(sweep: Sweep, plan: Plan, costs: "Costs") -> str:
    """Every cell with its state, size, estimate and command; why it runs, where it is due."""
    finished = {
        c.cell.signature: flat(c.cell.science) for c in plan.cells if c.entry.result is not None
    }
    cells = [_describe_cell(cell, costs, finished) for cell in plan.cells]
    seconds = [cell["estimated_seconds"] for cell in cells if cell["due"]]
    content = {
        "sweep": sweep.name,
        "question": sweep.question,
        "equivalent": plan.count_equivalent(),
        "estimated_seconds_due": None if None in seconds else sum(seconds),
        "cells": cells,
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def _describe_cell(
    planned: PlannedCell, costs: "Costs", finished: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    nearest = find_nearest(planned.cell.science, finished) if planned.is_due() else None
    why = nearest and {"nearest": nearest[0], "keys": [d.key for d in nearest[1]]}
    return {
        "signature": planned.cell.signature,
        "places": [point.name for point in planned.points],
        "status": planned.entry.status,
        "cause": planned.entry.cause,
        "due": planned.is_due(),
        "why": why,
        **asdict(planned.size),
        "estimated_seconds": costs.seconds(planned.cell),
        "command": planned.cell.command,
    }


def describe_costs(plan: Plan, costs: "Costs") -> list[str]:
    """A line on what the due cells will take here; none where no cell is due."""
    from capsweep.sweep.gpu_packing import count_slots

    due = [cell.cell for cell in plan.cells if cell.is_due()]
    seconds = [s for cell in due if (s := costs.seconds(cell)) is not None]
    if not due:
        return []
    if unknown := len(due) - len(seconds):
        return [f"time: unknown for {unknown} cells of unknown shape; --calibrate measures them"]
    slots = count_slots(due[0].config)
    makespan = max(max(seconds), sum(seconds) / slots.count)
    time = f"{makespan:.0f} s" if makespan < 120 else f"{makespan / 60:.0f} min"
    time = time if makespan < 7200 else f"{makespan / 3600:.1f} h"
    hours: dict[str, float] = {}
    for cell, duration in zip(due, seconds, strict=True):
        own = count_slots(cell.config)
        hours[own.kind] = hours.get(own.kind, 0.0) + duration * own.share / 3600
    bill = ", ".join(f"{value:.2f} {kind}-hours" for kind, value in hours.items())
    return [f"time: about {time} on {slots.count} {slots.kind} slots here, {bill}"]


@dataclass(frozen=True)
class FailureGroup:
    """Cells that failed in one way; last_line and command are of the first."""

    kind: CauseKind
    cause: str
    cells: tuple[PlannedCell, ...]
    last_line: str
    command: str


def group_failures(plan: Plan, ledger: Ledger) -> list[FailureGroup]:
    """The failed cells of a plan by cause, the largest group first."""
    groups: dict[tuple[CauseKind, str], list[PlannedCell]] = {}
    for planned in plan.cells:
        cause = planned.entry.cause
        if planned.entry.status == "failed" and cause is not None:
            # Step 12 and step 13 are the same failure.
            key = causes.kind_of_cause(cause), re.sub(r"\d", "#", cause)
            groups.setdefault(key, []).append(planned)
    failures = []
    for (kind, _), cells in groups.items():
        cause = str(cells[0].entry.cause)
        lines = [line for line in _read_error(ledger, cells[0]).splitlines() if line.strip()]
        last = lines[-1].strip() if lines else cause
        failures.append(FailureGroup(kind, cause, tuple(cells), last, cells[0].cell.command))
    return sorted(failures, key=lambda group: -len(group.cells))


def _read_error(ledger: Ledger, planned: PlannedCell) -> str:
    """What a failed cell left; a damaged file is its cause, and says no more."""
    try:
        content = ledger.read(planned.cell.signature, "error.txt")
    except DamageError:
        content = None
    return (content or b"").decode(errors="replace")
