"""The plan for a person and for programs: sizes, states, what it will take."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table as RichTable

from capsweep.ledger.difference import FinishedCells
from capsweep.sweep.costs import Costs
from capsweep.sweep.estimate import makespan
from capsweep.sweep.gpu_packing import count_slots
from capsweep.sweep.plan import Plan, PlannedCell
from capsweep.sweep.spec import Sweep

NUMBERS = ("parameters", "MFLOPs", "s/cell")
COLUMNS = ("cells", "seeds", *NUMBERS, "state")


def terminal(planned: Plan, costs: Costs) -> RichTable:
    """A line per place of the grid, seeds together: parameters, forward FLOPs of an image,
    estimated seconds of a cell, and how many cells are in which state.
    """
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name in NUMBERS)
    states: dict[str, Counter[str]] = {}
    seeds: dict[str, list[str]] = {}
    cells: dict[str, PlannedCell] = {}
    for cell in planned.cells:
        for point in cell.points:
            same = point is not cell.points[0]
            state = f"same as {cell.points[0].title}" if same else cell.entry.status
            states.setdefault(point.title, Counter())[state] += 1
            seeds.setdefault(point.title, []).append(str(point.seed))
            cells[point.title] = cell
    for title, counts in states.items():
        state = ", ".join(f"{count} {name}" for name, count in counts.items())
        size, seconds = cells[title].size, costs.seconds(cells[title].cell)
        flops, told = f"{size.flops / 1e6:,.1f}", "?" if seconds is None else f"{seconds:,.0f}"
        table.add_row(title, ",".join(seeds[title]), f"{size.parameters:,}", flops, told, state)
    return table


def estimate(planned: Plan, costs: Costs) -> list[str]:
    """What is due will take, on the resources at hand; and how good earlier estimates were."""
    due = [cell for cell in planned.cells if cell.is_due()]
    lines = [_hours(due, costs)] if due else []
    results = [c.entry.result for c in planned.cells if c.entry.result is not None]
    accuracy = costs.accuracy(results)
    return [*lines, *([accuracy] if accuracy else [])]


def _hours(due: list[PlannedCell], costs: Costs) -> str:
    known = [s for cell in due if (s := costs.seconds(cell.cell)) is not None]
    if len(known) < len(due):
        unknown = len(due) - len(known)
        return f"time: unknown for {unknown} cells of unknown shape; --calibrate measures them"
    config = due[0].cell.config
    slots = count_slots(config["resources"])
    wall = makespan(sorted(known, reverse=True), slots.count)
    origins = {origin for cell in due if (origin := costs.origin(cell.cell)) is not None}
    return (
        f"time: about {_duration(wall)} on {slots.count} {slots.kind} slots here, "
        f"{_bill(due, costs, config['cluster'])}; estimated from {', '.join(sorted(origins))}"
    )


def _bill(due: list[PlannedCell], costs: Costs, cluster: Mapping[str, Any]) -> str:
    """CPU-hours or GPU-hours of the due cells, and what those cost where a price is set.

    On a cluster `resources.gpu: auto` is a GPU, whatever this machine has.
    """
    hours = {"GPU": 0.0, "CPU": 0.0}
    for cell in due:
        slots = count_slots(cell.cell.config["resources"])
        takes_gpu = cluster["name"] != "local" and cell.cell.config["resources"]["gpu"] == "auto"
        kind, share = ("GPU", 1.0) if takes_gpu else (slots.kind, slots.share)
        hours[kind] += (costs.seconds(cell.cell) or 0.0) * share / 3600
    told = ", ".join(f"{value:.2f} {kind}-hours" for kind, value in hours.items() if value > 0)
    price = cluster["price_per_gpu_hour"]
    if price is None or hours["GPU"] == 0:
        return told
    money = f"about {hours['GPU'] * price:.2f} at cluster.price_per_gpu_hour={price:g}"
    return f"{told}, {money} (GPU time of cells alone: idle nodes, disks and traffic are not in it)"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def as_json(sweep: Sweep, planned: Plan, costs: Costs) -> str:
    """Every cell with its state, size, estimate and command; why it runs, where it is due."""
    finished = FinishedCells(
        {c.cell.signature: c.cell.science for c in planned.cells if c.entry.result is not None}
    )
    cells = [_cell(cell, costs, finished) for cell in planned.cells]
    due = [cell for cell in planned.cells if cell.is_due()]
    seconds = [costs.seconds(cell.cell) for cell in due]
    total = None if None in seconds else sum(filter(None, seconds))
    head = {"sweep": sweep.name, "question": sweep.question, "equivalent": planned.equivalent}
    return json.dumps(
        {**head, "estimated_seconds_due": total, "cells": cells}, indent=1, ensure_ascii=False
    )


def _cell(planned: PlannedCell, costs: Costs, finished: FinishedCells) -> dict:
    found = finished.find_nearest(planned.cell.science) if planned.is_due() else None
    why = None if found is None else {"nearest": found[0], "keys": [d.key for d in found[1]]}
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
