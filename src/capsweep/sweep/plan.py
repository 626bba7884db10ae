"""The plan: what a sweep would run, proven to be runnable before anything is taken, and how long it
will take; as a table for a person and as JSON for programs. Of what ran, the failures by cause.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from rich import box
from rich.table import Table as RichTable

from capsweep.config.cell import Cell, count_steps, get, hash_shape
from capsweep.config.places import Places
from capsweep.config.validation import count_validation_examples
from capsweep.errors import ConfigError, DamageError
from capsweep.ledger import causes, stored_files
from capsweep.ledger import ledger as ledgers
from capsweep.ledger.ledger import Entry, Ledger
from capsweep.storage.stores import join
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep
from capsweep.training import provenance
from capsweep.training.size import Measurement, Size, network_size

STATUSES = ("done", "stale", "running", "stopped", "missing", "failed")
COMMON = ("done", "missing", "failed")  # named also where there is none
NUMBERS = ("parameters", "MFLOPs", "s/cell")
COLUMNS = ("cells", "seeds", *NUMBERS, "state")
UNKNOWN = "unknown hardware"


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
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.cell.signature, []).append(point)
    entries = ledger.entries_of(group[0].cell for group in groups.values())
    known: dict[str, Size] = {}
    return Plan(
        tuple(
            PlannedCell(tuple(group), _measure_size(group[0], known), entries[signature])
            for signature, group in groups.items()
        )
    )


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


class Estimates:
    """Seconds of cells: from finished cells of the same shape, else from a calibration.

    Results of the same hardware count before others. hardware: where cells run, None: that is not
    known.
    """

    def __init__(self, hardware: str | None) -> None:
        self.hardware = hardware
        # Seconds of a training step, and of all else of a cell, by shape and hardware.
        self._paces: dict[str, dict[str, list[tuple[float, float]]]] = {}
        self._measured: dict[str, dict[str, Measurement]] = {}

    def add(self, result: Mapping[str, Any]) -> None:
        """A finished cell; one that does not say its shape is skipped, not guessed."""
        seconds, key = result.get("seconds"), result.get("shape")
        if key is not None and seconds and result.get("steps"):
            pace = seconds["fit"] / result["steps"], seconds["total"] - seconds["fit"]
            paces = self._paces.setdefault(key, {})
            paces.setdefault(result.get("hardware") or UNKNOWN, []).append(pace)

    def add_measurement(self, measurement: Measurement) -> None:
        """A calibration."""
        self._measured.setdefault(measurement.shape, {})[measurement.hardware] = measurement

    def seconds(self, cell: Cell) -> float | None:
        """The whole run of a cell, from start to result; None when its shape is unknown."""
        key, hardware = hash_shape(cell), self.hardware or UNKNOWN
        if known := self._paces.get(key):
            paces = known.get(hardware) or [pace for some in known.values() for pace in some]
            steps = count_steps(cell, get(cell.config, "dataset.examples.train"))
            return median(p for p, _ in paces) * steps + median(rest for _, rest in paces)
        if measured := self._measured.get(key):
            return _apply_calibration(cell, measured.get(hardware) or [*measured.values()][-1])
        return None


def _apply_calibration(cell: Cell, measured: Measurement) -> float:
    """A calibration's seconds, evaluation of validation and test examples included."""
    examples, epochs = get(cell.config, "dataset.examples"), cell.config["epochs"]
    images = examples["test"] + count_validation_examples(cell.config["dataset"]) * epochs
    limit = cell.config["limit_batches"]
    if limit is not None:
        images = min(images, limit * 500 * (1 + epochs))
    trained = count_steps(cell, examples["train"]) * measured.seconds_per_step
    return measured.startup_seconds + trained + images * measured.evaluation_seconds_per_image


class Costs(Estimates):
    """Estimates of one ledger. Cells of the plan are looked at first; the rest of the ledger is
    scanned only for a shape that they do not know.
    """

    def __init__(self, ledger: Ledger, places: Places, cells: Sequence[PlannedCell]) -> None:
        self.ledger, self.places = ledger, places
        # The nodes of a cluster are other machines: what they have is seen by what finishes there.
        self.address = next((c.cell.config["cluster"]["address"] for c in cells), None)
        super().__init__(provenance.name_hardware() if self.address is None else None)
        for cell in cells:
            super().add(cell.entry.result or {})
        if any(self.seconds(cell.cell) is None for cell in cells):
            self._add_measurements()
        if any(self.seconds(cell.cell) is None for cell in cells):
            known = {cell.cell.signature for cell in cells}
            others = [s for s in ledger.list_signatures() if s not in known]
            for entry in ledger.entries(others).values():
                super().add(entry.result or {})

    def add(self, result: Mapping[str, Any]) -> None:
        """A cell finished, and where it ran others will."""
        if self.address is not None:
            self.hardware = result.get("hardware")
        super().add(result)

    def _add_measurements(self) -> None:
        store, cure = self.ledger.store, "remove it; plan --calibrate makes it anew"
        names = [field.name for field in fields(Measurement)]
        for path in (f"measurements/{name}" for name in store.list_names("measurements")):
            try:
                if (content := store.read(path)) is not None:
                    where = join(store.root, path)
                    plain = stored_files.parse_json(content, where, cure, *names)
                    self.add_measurement(Measurement(**{name: plain[name] for name in names}))
            except DamageError as error:
                stored_files.print_damage(error)

    def calibrate_cells(self, cells: Sequence[Cell], print_line: Callable[[str], object]) -> None:
        """Time a few steps of every shape that has no estimate, here, and keep what was measured;
        not of cells that run on other machines.
        """
        from capsweep.training.calibrate import calibrate

        if self.address is not None:
            if unknown := sum(self.seconds(cell) is None for cell in cells):
                where = f"{unknown} cells run on {self.address}, whose nodes are not this one"
                print_line(f"not calibrated: {where}")
            return
        for cell in cells:
            if self.seconds(cell) is None:
                name = cell.config["model"]["name"]
                print_line(f"calibrating: 20 steps of {name} ({hash_shape(cell)})")
                measured = calibrate(cell, self.places)
                self.ledger.store.write(measured.name, json.dumps(asdict(measured)).encode())
                self.add_measurement(measured)


def describe_plan(sweep: Sweep, plan: Plan) -> str:
    """The plan in a few words."""
    counts = [f"{n} {s}" for s in STATUSES if (n := plan.count_status(s)) or s in COMMON]
    if equivalent := plan.count_equivalent():
        counts.append(f"{equivalent} equivalent")
    text = f"{sweep.name}: {sweep.question}\n{len(plan.cells)} cells: {', '.join(counts)}"
    damaged = [f"{cell.entry.cause}" for cell in plan.cells if ledgers.is_damaged(cell.entry)]
    return "\n".join([text, *damaged])


def make_table(plan: Plan, costs: Costs) -> RichTable:
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
        states = Counter(
            each.entry.status if point is each.points[0] else f"same as {each.points[0].title}"
            for each, point in cells
        )
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


def as_json(sweep: Sweep, plan: Plan, costs: Costs) -> str:
    """Every cell with its state, size, estimate and command."""
    cells = [
        {
            "signature": planned.cell.signature,
            "places": [point.name for point in planned.points],
            "status": planned.entry.status,
            "cause": planned.entry.cause,
            "due": planned.is_due(),
            **asdict(planned.size),
            "estimated_seconds": costs.seconds(planned.cell),
            "command": planned.cell.command,
        }
        for planned in plan.cells
    ]
    seconds = [cell["estimated_seconds"] for cell in cells if cell["due"]]
    content = {
        "sweep": sweep.name,
        "question": sweep.question,
        "notes": sweep.notes,
        "equivalent": plan.count_equivalent(),
        "estimated_seconds_due": None if None in seconds else sum(seconds),
        "cells": cells,
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def describe_costs(plan: Plan, costs: Costs) -> list[str]:
    """A line on what the due cells will take here; none where no cell is due."""
    from capsweep.sweep.job import count_slots

    due = [cell.cell for cell in plan.cells if cell.is_due()]
    seconds = [s for cell in due if (s := costs.seconds(cell)) is not None]
    if not due:
        return []
    if unknown := len(due) - len(seconds):
        return [f"time: unknown for {unknown} cells of unknown shape; --calibrate measures them"]
    count, kind, share = count_slots(due[0].config)
    makespan, hours = max(max(seconds), sum(seconds) / count), sum(seconds) * share / 3600
    time = f"{makespan:.0f} s" if makespan < 120 else f"{makespan / 60:.0f} min"
    time = time if makespan < 7200 else f"{makespan / 3600:.1f} h"
    return [f"time: about {time} on {count} {kind} slots here, {hours:.2f} {kind}-hours"]


def group_failures(plan: Plan, ledger: Ledger) -> list[dict[str, Any]]:
    """The failed cells of a plan by cause, the largest group first; what is said of a group is of
    its first cell.
    """
    groups: dict[str, list[PlannedCell]] = {}
    for planned in plan.cells:
        if planned.entry.status == "failed" and planned.entry.cause is not None:
            # Step 12 and step 13 are the same failure.
            groups.setdefault(re.sub(r"\d", "#", planned.entry.cause), []).append(planned)
    return [
        {
            "kind": causes.kind_of_cause(str(cells[0].entry.cause)),
            "cause": cells[0].entry.cause,
            "last_line": _read_last_line(ledger, cells[0]),
            "command": cells[0].cell.command,
            "cells": [planned.cell.signature for planned in cells],
        }
        for cells in sorted(groups.values(), key=lambda cells: -len(cells))
    ]


def _read_last_line(ledger: Ledger, planned: PlannedCell) -> str:
    """Of what a failed cell left; a damaged file is its cause, and says no more."""
    try:
        content = ledger.read(planned.cell.signature, "error.txt") or b""
    except DamageError:
        content = b""
    lines = content.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else str(planned.entry.cause)
