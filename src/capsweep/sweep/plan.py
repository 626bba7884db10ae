"""The plan of a sweep: the cells to run, as a table for people and as JSON for programs.

Each network and all data are checked here, before a worker or a GPU is used.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Entry, Ledger, fails_again, is_damaged
from capsweep.ledger.stored_files import RESUME
from capsweep.runtime.terminal import count_of, describe_seeds
from capsweep.sweep.estimates import Estimates
from capsweep.sweep.expand import Point
from capsweep.sweep.resources import count_slots
from capsweep.sweep.spec import Sweep
from capsweep.training.size import Size, measure_size

STATUSES = ("done", "stale", "running", "stopped", "missing", "failed")
COMMON = ("done", "missing", "failed")  # printed even if their count is 0
NAMES = {"stale": "stale (finished by other code; RERUN=stale runs these again)"}
COLUMNS = ("cells", "seeds", "parameters", "MFLOPs", "s/cell", "state")


class Start(NamedTuple):
    """The finished cell with fewer epochs from whose last checkpoint a cell begins, if any."""

    signature: str = ""  # the signature of the finished cell; empty: the cell begins at epoch 0
    epochs: int = 0  # the number of epochs that the finished cell has trained
    refusal: str = ""  # why the finished cells with fewer epochs cannot be used; empty: no reason


FIRST_EPOCH = Start()


@dataclass(frozen=True)
class PlannedCell:
    """A distinct cell of a plan. Several places of the grid may share the cell."""

    points: tuple[Point, ...]  # the places of the grid that have this cell
    size: Size  # the size of its network
    entry: Entry  # what the ledger knows of the cell
    start: Start = FIRST_EPOCH  # where its training begins

    @property
    def cell(self) -> Cell:
        """The cell that all points share."""
        return self.points[0].cell

    def is_due(self, retry_failed: bool = False) -> bool:
        """Return whether a sweep would run this cell now.

        A finished cell is due in two cases: RERUN is `always`; or RERUN is `stale`, and other code
        finished the cell. A cell that is not finished is due, except a cell that would fail again
        with the same code.

        Args:
            retry_failed: Whether cells that would fail again with the same code are due too.
        """
        rerun = self.cell.config["rerun"]
        if self.entry.status in ("done", "stale"):
            return rerun == "always" or rerun == self.entry.status
        return retry_failed or not fails_again(self.entry)


@dataclass(frozen=True)
class Plan:
    """All distinct cells of a sweep, in the order of the grid.

    For a search, the cells are candidates: the search may draw these cells or others.
    """

    cells: tuple[PlannedCell, ...]  # each signature once
    trials: int | None = None  # number of trials that a search has left to draw; None: an ablation

    @property
    def entries(self) -> list[tuple[Cell, Entry]]:
        """Each cell with its entry in the ledger."""
        return [(planned.cell, planned.entry) for planned in self.cells]

    @property
    def due(self) -> list[PlannedCell]:
        """The cells that a command runs now; for a search, one candidate for each trial left."""
        if self.trials is None:
            return [planned for planned in self.cells if planned.is_due()]
        return list(itertools.islice(itertools.cycle(self.cells), self.trials))

    def estimate_due(self, costs: Estimates) -> tuple[list[float], int]:
        """Return one estimate in seconds for each due cell that has an estimate.

        The second result is the number of due cells that have no estimate.
        """
        seconds = [costs.seconds(planned.cell) for planned in self.due]
        known = [each for each in seconds if each is not None]
        return known, len(seconds) - len(known)

    @property
    def begun(self) -> dict[str, int]:
        """The number of epochs, by signature, that cells need not train; empty for a search."""
        cells = self.cells if self.trials is None else ()
        return {planned.cell.signature: planned.start.epochs for planned in cells}

    def count_equivalent(self) -> int:
        """Return the number of places of the grid that share a cell with an earlier place."""
        return sum(len(planned.points) - 1 for planned in self.cells)


def make_plan(points: Sequence[Point], ledger: Ledger) -> Plan:
    """Merge points of equal signature into cells, and read what the ledger knows of each cell.

    Each distinct network is built once, to find its size. Networks are built on torch's meta
    device, which needs no memory.

    Raises:
        ConfigError: A network cannot be built; the message names the point.
    """
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.cell.signature, []).append(point)
    entries = ledger.read_cell_entries(group[0].cell for group in groups.values())
    sizes: dict[str, Size] = {}
    is_complete = all(entry.result for entry in entries.values())
    known, cells = set(() if is_complete else ledger.list_signatures()), []
    for signature, group in groups.items():
        size, entry = _measure_size(group[0], sizes), entries[signature]
        start = FIRST_EPOCH if entry.result else find_start(group[0].cell, ledger, known)
        cells.append(PlannedCell(tuple(group), size, entry, start))
    return Plan(tuple(cells))


def find_start(cell: Cell, ledger: Ledger, known: Set[str]) -> Start:
    """Find the finished cell with the most epochs from whose checkpoint a cell can begin.

    The science of both cells is equal, except that the finished cell has fewer epochs. Hardware and
    versions are compared only when the cell starts, because it may run on another machine.

    Args:
        cell: The cell that has no result.
        ledger: The ledger.
        known: The signatures of all cells in the ledger.

    Returns:
        The start. If no finished cell can be used, the start has the reason for the finished cell
        with the most epochs.
    """
    loss, more, refusals = cell.config["loss"], cell.config["epochs"], []
    for epochs, signature in () if cell.config["rerun"] == "always" else cell.list_shorter():
        result = ledger.read_result(signature) if signature in known else None
        if result is None:
            continue
        if (result.get("code") or {}).get("numerics") != code_identity.hash_numerics(cell.config):
            refusals.append("the code has changed since")
        elif RESUME not in ledger.list_files(signature):
            refusals.append("no checkpoint was kept (trainer.kept_checkpoint)")
        elif _depends_on_length(json.dumps(loss), epochs, more, result["steps"]):
            refusals.append(f"the margin of loss={loss['name']} depends on the number of epochs")
        else:
            return Start(signature, result["epochs"])
    return Start(refusal=next(iter(refusals), ""))


@cache
def _depends_on_length(loss: str, epochs: int, more: int, steps: int) -> bool:
    """Return whether the loss of the first epochs depends on the number of all epochs.

    Only the margin of a loss can depend on this number. Network, data and learning rate get
    the index of the step or epoch, and the configuration.

    Args:
        loss: The section `loss` of the configuration, as JSON.
        epochs: The number of epochs of the shorter training.
        more: The number of epochs of the longer training.
        steps: The number of optimiser steps of the shorter training.
    """
    from capsweep.training import build  # it imports torch

    margin_at = build.build_objective({"loss": json.loads(loss)}).margin_at
    longer = steps * more // epochs
    return any(margin_at(step, steps) != margin_at(step, longer) for step in range(steps))


def _measure_size(point: Point, known: dict[str, Size]) -> Size:
    """Return the size of a point's network, from `known` if an equal network was built before."""
    config = point.cell.config
    labels = config["dataset"].get("labels_per_image")
    optimizer = config["optim"]["optimizer"]["_target_"], config["trainer"]["fused_optimizer"]
    parts = [config["model"], config["routing"], labels, optimizer]
    network = json.dumps(parts, sort_keys=True)
    if network not in known:
        try:
            known[network] = measure_size(config)
        except ConfigError as error:
            raise ConfigError(f"{point.title}: {error}") from error
    return known[network]


def check_data(cells: Iterable[PlannedCell], places: Places) -> None:
    """Check that the data sets of some cells are there and undamaged.

    Raises:
        DataError: A file is missing or damaged; the message names it.
    """
    configs = {json.dumps(c.cell.config["dataset"], sort_keys=True): c.cell.config for c in cells}
    for config in configs.values():
        from capsweep.training import build  # it imports torch

        build.build_source(config).check(str(places.data))


def describe_plan(sweep: Sweep, plan: Plan) -> str:
    """Describe a plan: the sweep's question, the number of cells by status, and damaged entries."""
    found = Counter(cell.entry.status for cell in plan.cells)
    counts = [f"{found[s]} {NAMES.get(s, s)}" for s in STATUSES if found[s] or s in COMMON]
    if equivalent := plan.count_equivalent():
        counts.append(f"{equivalent} equivalent")
    cells = count_of(len(plan.cells), "cell")
    chosen = f" with {', '.join(sweep.words)}" if sweep.words else ""
    text = f"{sweep.name}{chosen}: {sweep.question}\n{cells}: {', '.join(counts)}"
    damaged = [f"{cell.entry.cause}" for cell in plan.cells if is_damaged(cell.entry)]
    return "\n".join([text, *describe_starts(cell.start for cell in plan.cells), *damaged])


def describe_starts(starts: Iterable[Start]) -> list[str]:
    """Return lines that say how many cells continue from finished cells, or why cells do not."""
    counts = Counter(start.refusal for start in starts if start != FIRST_EPOCH)
    what = "continue from finished cells with fewer epochs"
    texts = {why: f"cannot {what}: {why}" if why else f"will {what}" for why in counts}
    return [f"{count_of(count, 'cell')} {texts[why]}" for why, count in counts.items()]


def list_rows(plan: Plan, costs: Estimates) -> list[list[str]]:
    """Return the rows of a plan's table; COLUMNS names their fields.

    Each place of the grid has one row for all its seeds. The column MFLOPs counts the forward pass
    of one image. The column s/cell is the estimate for one cell.
    """
    rows = []
    places: dict[str, list[tuple[PlannedCell, Point]]] = {}
    for cell in plan.cells:
        for point in cell.points:
            places.setdefault(point.title, []).append((cell, point))
    for title, cells in places.items():
        cell, _ = cells[-1]
        states = Counter(_name_state(plan, *each) for each in cells)
        seconds = costs.seconds(cell.cell)
        seeds = describe_seeds(point.seed for _, point in cells)
        size = f"{cell.size.parameters:,}", f"{cell.size.flops / 1e6:,.1f}"
        time = "?" if seconds is None else f"{seconds:,.{int(seconds < 10)}f}"
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        rows.append([title, seeds, *size, time, counts])
    return rows


def _name_state(plan: Plan, planned: PlannedCell, point: Point) -> str:
    """Return the status of a cell, or the title of its first point if `point` is another one.

    A missing cell of a search is a "candidate".
    """
    if point is not planned.points[0]:
        return f"same as {planned.points[0].title}"
    is_candidate = plan.trials is not None and planned.entry.status == "missing"
    return "candidate" if is_candidate else planned.entry.status


def as_json(sweep: Sweep, plan: Plan, costs: Estimates) -> str:
    """Return a plan as JSON: every cell with its status, size, estimate and command."""
    cells = [
        {
            "signature": planned.cell.signature,
            "places": [point.name for point in planned.points],
            "status": planned.entry.status,
            "cause": planned.entry.cause,
            "due": plan.trials is None and planned.is_due(),
            **asdict(planned.size),
            "epochs_begun": plan.begun.get(planned.cell.signature, 0),
            "estimated_seconds": costs.seconds(planned.cell),
            "command": planned.cell.command,
        }
        for planned in plan.cells
    ]
    known, unknown = plan.estimate_due(costs)
    content = {
        "sweep": sweep.name,
        "question": sweep.question,
        "notes": sweep.notes,
        "trials_due": plan.trials,
        "equivalent": plan.count_equivalent(),
        "estimated_seconds_due": sum(known) if known or not unknown else None,
        "due_without_estimate": unknown,
        "cells": cells,
    }
    return json.dumps(content, indent=1)


def describe_costs(plan: Plan, costs: Estimates) -> list[str]:
    """Return one line about the time that due cells will take here, or no line if none is due."""
    known, unknown = plan.estimate_due(costs)
    times = [_describe_time(plan.due[0].cell.config, known)] if known else []
    if unknown:
        cells = count_of(unknown, "cell")
        times.append(
            f"unknown for {cells}; make plan ARGS=--calibrate measures 20 training steps of each"
        )
    return [f"time: {'; '.join(times)}"] if times else []


def _describe_time(config: Mapping[str, Any], seconds: Sequence[float]) -> str:
    """Describe how long cells take on this machine, and how many GPU- or CPU-hours they use."""
    count, kind, share = count_slots(config)
    longest = max(max(seconds), sum(seconds) / count)
    size, unit = (1, "s") if longest < 120 else (60, "min") if longest < 7200 else (3600, "h")
    hours = f"{sum(seconds) * share / 3600:.2f} {kind}-hours"
    time = f"about {longest / size:.{int(unit == 'h')}f} {unit}"
    return f"{time} on {count_of(count, f'{kind} slot')} here, {hours}"
