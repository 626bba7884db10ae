"""How long cells take: from finished cells of the same shape, else from a calibration."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from capsweep.config.cell import Cell, count_steps, get, hash_shape
from capsweep.config.places import Places
from capsweep.config.validation import count_validation_examples
from capsweep.errors import DamageError
from capsweep.ledger import records, stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.runtime.terminal import count_of
from capsweep.storage.stores import join
from capsweep.training import provenance
from capsweep.training.size import Measurement, count_training_bytes

if TYPE_CHECKING:
    from capsweep.sweep.plan import Plan, PlannedCell

UNKNOWN = "unknown hardware"
GIB = 2**30
LEAST_SPREAD = 0.2  # of an estimate, to either side: machines differ from hour to hour


@dataclass(frozen=True)
class Estimate:
    """Seconds of a cell, from start to result; `low` to `high` holds the middle half of what is
    known, and 20 % to either side.

    steps: that were timed. cells: finished ones whose steps they are; 0: of a calibration.
    """

    seconds: float
    low: float
    high: float
    steps: int
    cells: int

    @property
    def text(self) -> str:
        """`12-18`, in seconds."""
        digits = 0 if self.high >= 10 else 1
        return f"{self.low:,.{digits}f}-{self.high:,.{digits}f}"


def _widen(seconds: float, low: float, high: float, steps: int, cells: int = 0) -> Estimate:
    low, high = min(low, seconds * (1 - LEAST_SPREAD)), max(high, seconds * (1 + LEAST_SPREAD))
    return Estimate(seconds, low, high, steps, cells)


def describe_origin(estimates: Iterable[Estimate]) -> str:
    """`500 steps of 36 finished cells and 1 calibration`, of estimates of several shapes."""
    known = list(estimates)
    counts = {
        "finished cell": sum(each.cells for each in known),
        "calibration": sum(not each.cells for each in known),
    }
    sources = " and ".join(count_of(count, noun) for noun, count in counts.items() if count)
    return f"{count_of(sum(each.steps for each in known), 'step')} of {sources}"


class Estimates:
    """Seconds of cells: from finished cells of the same shape, else from a calibration.

    Results of the same hardware count before others. hardware: where cells run, None: that is not
    known.
    """

    def __init__(self, hardware: str | None) -> None:
        self.hardware = hardware
        # Seconds of a training step, of all else of a cell, and steps, by shape and hardware.
        self._paces: dict[str, dict[str, list[tuple[float, float, int]]]] = {}
        self._measured: dict[str, dict[str, Measurement]] = {}

    def add(self, result: Mapping[str, Any]) -> None:
        """A finished cell; one that does not say its shape is skipped, not guessed."""
        seconds, key = result.get("seconds"), result.get("shape")
        if key is not None and seconds and result.get("steps"):
            fit, steps = seconds["fit"], result["steps"]
            paces = self._paces.setdefault(key, {}).setdefault(
                result.get("hardware") or UNKNOWN, []
            )
            paces.append((fit / steps, seconds["total"] - fit, steps))

    def add_measurement(self, measurement: Measurement) -> None:
        """A calibration."""
        self._measured.setdefault(measurement.shape, {})[measurement.hardware] = measurement

    def seconds(self, cell: Cell) -> float | None:
        """The middle of a cell's estimate; None when its shape is unknown."""
        known = self.estimate(cell)
        return None if known is None else known.seconds

    def estimate(self, cell: Cell) -> Estimate | None:
        """The whole run of a cell; None when its shape is unknown."""
        key, hardware = hash_shape(cell), self.hardware or UNKNOWN
        if known := self._paces.get(key):
            paces = known.get(hardware) or [pace for some in known.values() for pace in some]
            steps = count_steps(cell, get(cell.config, "dataset.examples.train"))
            totals = [pace * steps + rest for pace, rest, _ in paces]
            low, _, high = quantiles(totals * 2, n=4, method="inclusive")  # of one there are none
            per_step, rest, _ = map(median, zip(*paces, strict=True))
            timed = sum(count for *_, count in paces)
            return _widen(per_step * steps + rest, low, high, timed, len(paces))
        if measured := self._measured.get(key):
            chosen = measured.get(hardware) or [*measured.values()][-1]
            middle = _apply_calibration(cell, chosen)
            return _widen(middle, middle, middle, chosen.steps)
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

    memories: bytes of each device that is known, by name.
    """

    def __init__(self, ledger: Ledger, places: Places, cells: "Sequence[PlannedCell]") -> None:
        self.ledger, self.places = ledger, places
        # The nodes of a cluster are other machines: what they have is seen by what finishes there.
        self.address = next((c.cell.config["cluster"]["address"] for c in cells), None)
        super().__init__(provenance.name_hardware() if self.address is None else None)
        self.memories = dict(provenance.list_memories())
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

    def add_measurement(self, measurement: Measurement) -> None:
        """Add a calibration, and the device that it was made on."""
        if measurement.device_memory_bytes is not None:
            self.memories[measurement.hardware] = measurement.device_memory_bytes
        super().add_measurement(measurement)

    def _add_measurements(self) -> None:
        store, cure = self.ledger.store, "remove it; plan --calibrate makes it anew"
        names = [field.name for field in fields(Measurement)]
        for path in (f"measurements/{name}" for name in store.list_names("measurements")):
            try:
                if (content := store.read(path)) is not None:
                    where = join(store.root, path)
                    plain = stored_files.parse_json(content, where, cure, records.TimedSteps)
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
                where = f"run on {self.address}, whose nodes are not this one"
                print_line(f"not calibrated: {count_of(unknown, 'cell')} to be {where}")
            return
        for cell in cells:
            if self.seconds(cell) is None:
                name = cell.config["model"]["name"]
                print_line(f"calibrating: 20 steps of {name} ({hash_shape(cell)})")
                measured = calibrate(cell, self.places)
                self.ledger.store.write(measured.name, json.dumps(asdict(measured)).encode())
                self.add_measurement(measured)


def describe_costs(plan: "Plan", costs: Costs) -> list[str]:
    """Return lines on what the due cells will take here; none where no cell is due."""
    due = plan.due
    known = [(c.cell, e) for c in due if (e := costs.estimate(c.cell)) is not None]
    times = [_describe_time(known)] if known else []
    if unknown := len(due) - len(known):
        cells = count_of(unknown, "cell")
        times.append(
            f"unknown for {cells} of unknown shape; ARGS=--calibrate times 20 steps of each"
        )
    lines = [f"time: {'; '.join(times)}"] if times else []
    return [*lines, *_describe_memory(due, costs.memories)]


def _describe_memory(due: "Sequence[PlannedCell]", memories: Mapping[str, int]) -> list[str]:
    """Return a line on cells that no known device can hold, whatever the size of a batch."""
    needed = [count_training_bytes(cell.cell.config, cell.size.parameters) for cell in due]
    count = sum(size > max(memories.values()) for size in needed)
    if not count:
        return []
    most = max(needed)
    title = due[needed.index(most)].points[0].title
    have = ", ".join(f"{name} {size / GIB:,.0f} GiB" for name, size in memories.items())
    return [
        f"memory: {count_of(count, 'cell')} will not fit on any known device ({have}): weights, "
        f"gradients and optimiser state alone take up to {most / GIB:,.0f} GiB ({title})"
    ]


def _describe_time(known: Sequence[tuple[Cell, Estimate]]) -> str:
    from capsweep.sweep.job import count_slots

    count, kind, share = count_slots(known[0][0].config)
    lows, highs = [e.low for _, e in known], [e.high for _, e in known]
    low, high = (max(max(some), sum(some) / count) for some in (lows, highs))
    hours = _join_range(*(f"{sum(some) * share / 3600:.2f}" for some in (lows, highs)))
    total = "" if hours == "about 0.00" else f", {hours} {kind}-hours"
    origin = describe_origin({hash_shape(c): e for c, e in known}.values())
    time = f"{_format_range(low, high)} on {count_of(count, f'{kind} slot')} here"
    return f"{time}{total}, from {origin}"


def _format_range(low: float, high: float) -> str:
    size, unit = (1, "s") if high < 120 else (60, "min") if high < 7200 else (3600, "h")
    return f"{_join_range(*(f'{v / size:.{int(size == 3600)}f}' for v in (low, high)))} {unit}"


def _join_range(first: str, last: str) -> str:
    return f"about {last}" if first == last else f"{first} to {last}"
