"""The plan: what a sweep would run, proven to be runnable before anything is taken; as a table for
a person and as JSON for programs.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table as RichTable

from capsweep.config.cell import Cell, flat
from capsweep.config.places import Places
from capsweep.errors import ConfigError
from capsweep.ledger import ledger as ledgers
from capsweep.ledger.causes import find_nearest
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
    """Lines: what the due cells will take here; how good earlier estimates were."""
    from capsweep.sweep.costs import describe_accuracy

    due = [cell for cell in plan.cells if cell.is_due()]
    results = [cell.entry.result for cell in plan.cells if cell.entry.result is not None]
    return [*([_describe_time(due, costs)] if due else []), *describe_accuracy(results)]


def _describe_time(due: Sequence[PlannedCell], costs: "Costs") -> str:
    from capsweep.sweep.costs import find_makespan
    from capsweep.sweep.gpu_packing import count_slots

    known = [s for cell in due if (s := costs.seconds(cell.cell)) is not None]
    if unknown := len(due) - len(known):
        return f"time: unknown for {unknown} cells of unknown shape; --calibrate measures them"
    config = due[0].cell.config
    slots = count_slots(config["resources"])
    seconds = find_makespan(sorted(known, reverse=True), slots.count)
    time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    time = time if seconds < 7200 else f"{seconds / 3600:.1f} h"
    origins = {origin for cell in due if (origin := costs.describe_origin(cell.cell)) is not None}
    return (
        f"time: about {time} on {slots.count} {slots.kind} slots here, "
        f"{_describe_bill(due, costs, config['cluster'])}; "
        f"estimated from {', '.join(sorted(origins))}"
    )


def _describe_bill(due: Sequence[PlannedCell], costs: "Costs", cluster: Mapping[str, Any]) -> str:
    """CPU-hours or GPU-hours of the due cells, and what those cost where a price is set.

    On a cluster `resources.gpu: auto` is a GPU, whatever this machine has.
    """
    from capsweep.sweep.gpu_packing import AUTO, count_slots

    hours = {"GPU": 0.0, "CPU": 0.0}
    for cell in due:
        resources = cell.cell.config["resources"]
        slots = count_slots(resources)
        takes_gpu = cluster["name"] != "local" and resources["gpu"] == AUTO
        kind, share = ("GPU", 1.0) if takes_gpu else (slots.kind, slots.share)
        hours[kind] += (costs.seconds(cell.cell) or 0.0) * share / 3600
    text = ", ".join(f"{value:.2f} {kind}-hours" for kind, value in hours.items() if value > 0)
    price = cluster["price_per_gpu_hour"]
    if price is None or hours["GPU"] == 0:
        return text
    money = f"about {hours['GPU'] * price:.2f} at cluster.price_per_gpu_hour={price:g}"
    return f"{text}, {money} (GPU time of cells alone: idle nodes, disks and traffic are not in it)"
