"""Estimates of how long cells take, and the time limits of a command: BUDGET and MAX_HOURS.

An estimate comes from finished cells of the same shape, or else from a calibration.

With BUDGET, only cells that are estimated to end in time start, and no cell is interrupted. With
BUDGET, a cell of unknown length does not start.

MAX_HOURS limits the wall-clock time, because a rented machine is paid by the hour. With MAX_HOURS,
a cell of unknown length starts, and so does a cell that is longer than the whole limit. Any other
cell starts only if it is estimated to end before the limit. When MAX_HOURS is reached, running
cells stop after their epoch and keep a checkpoint, from which the next command continues. So
MAX_HOURS is exceeded by at most one epoch of each running cell, plus the test if that epoch was the
cell's last.

Both limits are for one command as a whole, even if matched arms make it run the sweep in rounds.
Each job of an array has its own limits.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console

from capsweep.config.cell import Cell, count_steps
from capsweep.config.places import Places
from capsweep.config.validation import count_validation_examples
from capsweep.errors import UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Entry, Ledger
from capsweep.ledger.records import Measurement
from capsweep.storage.stores import join
from capsweep.training import provenance
from capsweep.training.size import calibrate

UNKNOWN = "unknown hardware"
UNITS = {"s": 1, "m": 60, "h": 3600, "": 3600}


class Estimates:
    """Estimates of the seconds that cells take.

    Results from the hardware that runs the cells are preferred to results from other hardware.

    Args:
        hardware: The name of the hardware that runs the cells. None if the cells do not
            run on this machine. Then the hardware of the last added result is preferred.
        begun: The number of epochs, by signature, that cells need not train, because they continue
            from finished cells.
    """

    def __init__(self, hardware: str | None, begun: Mapping[str, int] | None = None) -> None:
        self._begun = begun or {}
        self._is_here = hardware is not None
        self._hardware = hardware or UNKNOWN
        # By shape, then by hardware: two numbers for each result. They are the seconds of a
        # training step, and the seconds of the cell outside training.
        self._paces: dict[str, dict[str, list[tuple[float, float]]]] = {}
        self._measured: dict[str, Measurement] = {}
        self._medians: dict[str, tuple[float, float]] = {}  # by shape

    def add(self, result: Mapping[str, Any]) -> None:
        """Add the result of a finished cell; skip a result without shape, seconds or steps."""
        seconds, shape = result.get("seconds"), result.get("shape")
        if shape is None or not seconds or not result.get("steps"):
            return
        hardware, fit = result.get("hardware") or UNKNOWN, seconds["fit"]
        if not self._is_here:
            self._hardware = hardware
        paces = self._paces.setdefault(shape, {}).setdefault(hardware, [])
        paces.append((fit / result["steps"], seconds["total"] - fit))
        self._medians.clear()  # of all shapes, because the hardware may have changed

    def add_measurement(self, measured: Measurement) -> None:
        """Add a calibration, unless its shape has a calibration from the hardware of the cells."""
        known = self._measured.get(measured.shape)
        if known is None or known.hardware != self._hardware:
            self._measured[measured.shape] = measured

    def seconds(self, cell: Cell) -> float | None:
        """Estimate the seconds of a whole run of a cell; return None if no estimate is possible.

        The estimate comes from results of the cell's shape, or else from a calibration.
        """
        if begun := self._begun.get(cell.signature):
            cell = Cell({**cell.config, "epochs": cell.config["epochs"] - begun}, cell.overrides)
        if cell.shape in self._paces:
            per_step, rest = self._find_pace(cell.shape)
            return per_step * count_steps(cell) + rest
        measured = self._measured.get(cell.shape)
        return None if measured is None else _apply_calibration(cell, measured)

    def _find_pace(self, shape: str) -> tuple[float, float]:
        """Return the medians of the two numbers in `_paces` over the results of a shape."""
        if shape not in self._medians:
            known = self._paces[shape]
            paces = known.get(self._hardware) or [pace for some in known.values() for pace in some]
            per_step, rest = map(median, zip(*paces, strict=True))
            self._medians[shape] = per_step, rest
        return self._medians[shape]


def _apply_calibration(cell: Cell, measured: Measurement) -> float:
    """Estimate from a calibration how many seconds a cell takes in total.

    The total is the sum for start, training, validation and test.
    """
    dataset, epochs = cell.config["dataset"], cell.config["epochs"]
    images = dataset["examples"]["test"] + count_validation_examples(dataset) * epochs
    limit = cell.config["limit_batches"]
    if limit is not None:
        images = min(images, limit * 500 * (1 + epochs))
    trained = count_steps(cell) * measured.seconds_per_step
    return measured.startup_seconds + trained + images * measured.evaluation_seconds_per_image


def read_estimates(
    ledger: Ledger, cells: Sequence[tuple[Cell, Entry]], begun: Mapping[str, int] | None = None
) -> Estimates:
    """Make estimates from the results and calibrations of a ledger.

    Three sources are read in this order, until every given cell has an estimate: results of the
    given cells, calibrations, results of all other cells.

    Args:
        ledger: The ledger.
        cells: The cells to estimate, each with its entry in the ledger.
        begun: The number of epochs, by signature, that cells need not train.
    """
    is_here = not cells or cells[0][0].config["cluster"]["address"] is None
    estimates = Estimates(provenance.name_hardware() if is_here else None, begun)
    for _, entry in cells:
        estimates.add(entry.result or {})
    if any(estimates.seconds(cell) is None for cell, _ in cells):
        _add_measurements(estimates, ledger)
    if any(estimates.seconds(cell) is None for cell, _ in cells):
        others = {*ledger.list_signatures()} - {cell.signature for cell, _ in cells}
        for entry in ledger.read_entries(sorted(others)).values():
            estimates.add(entry.result or {})
    return estimates


def _add_measurements(estimates: Estimates, ledger: Ledger) -> None:
    """Add the calibrations of a ledger to estimates; report damaged files, and skip them."""
    store, cure = ledger.store, "remove it; plan --calibrate writes it again"
    for path in (f"measurements/{name}" for name in store.list_names("measurements")):
        content, where = store.read(path) or b"", join(store.root, path)
        arguments = content, where, cure, Measurement
        if plain := stored_files.read_if_sound(stored_files.parse_json, *arguments):
            estimates.add_measurement(Measurement(**plain))


def calibrate_cells(
    estimates: Estimates, cells: Sequence[Cell], ledger: Ledger, places: Places, console: Console
) -> None:
    """Time a few training steps for every shape without an estimate, and store the times.

    Nothing is measured if the cells run on another machine. The console says what is measured.
    """
    for cell in cells:
        if estimates.seconds(cell) is not None:
            continue
        if (address := cell.config["cluster"]["address"]) is not None:
            console.out(f"not calibrated: the cells run on {address}, and not on this machine")
            return
        console.out(f"calibrating: 20 steps of {cell.config['model']['name']} (shape {cell.shape})")
        measured = calibrate(cell, places)
        ledger.store.write(measured.name, measured.model_dump_json().encode())
        estimates.add_measurement(measured)


class Limits:
    """The time limits of a command, counted from the construction of this object.

    Args:
        budget: BUDGET in seconds; None for no limit.
        wall: MAX_HOURS in seconds; None for no limit.

    Attributes:
        refusal: The reason why no other cell may start, whatever the time; empty: there is none.
    """

    def __init__(self, budget: float | None = None, wall: float | None = None) -> None:
        self.budget, self.wall, self.refusal = budget, wall, ""
        self._started_at = time.monotonic()

    @property
    def _passed(self) -> float:
        return time.monotonic() - self._started_at

    @property
    def has_bounds(self) -> bool:
        """Whether BUDGET or MAX_HOURS is set.

        If so, the queue hands a job to the executor only if the job can start immediately.
        """
        return self.budget is not None or self.wall is not None

    @property
    def leave_at(self) -> float | None:
        """The Unix time, in seconds, at which running cells are to stop; None for never."""
        return None if self.wall is None else time.time() + self.wall - self._passed

    @property
    def is_stopping(self) -> bool:
        """Whether MAX_HOURS is reached, or there is a `refusal`.

        If so, running cells stop after their present epoch, and no other cell starts.
        """
        return bool(self.refusal) or (self.wall is not None and self._passed >= self.wall)

    @property
    def stop_reason(self) -> str:
        """The reason why cells were not run, for a message."""
        if self.is_stopping:
            return self.refusal or "MAX_HOURS is reached"
        bounds = {"BUDGET": self.budget, "MAX_HOURS": self.wall}
        names = [name for name, bound in bounds.items() if bound is not None]
        return f"no other cell fits into {' and '.join(names)}"

    def can_start(self, seconds: float | None) -> bool:
        """Return whether a cell may start, given its estimated `seconds` (None if unknown)."""
        if self.is_stopping:
            return False
        if seconds is None:
            return self.budget is None
        end = self._passed + seconds
        if self.budget is not None and end > self.budget:
            return False
        return self.wall is None or end <= self.wall or seconds > self.wall


def read_limits(budget: str | None, max_hours: str | None) -> Limits:
    """Read the values of BUDGET and MAX_HOURS.

    Raises:
        UserError: A value is not a time above 0; the message names the word.
    """
    return Limits(
        _read_seconds("BUDGET", budget, "[smh]", "a time such as 90s, 9m or 2h"),
        _read_seconds("MAX_HOURS", max_hours, "", "a number of hours above 0, such as 8 or 0.5"),
    )


def _read_seconds(word: str, text: str | None, unit: str, form: str) -> float | None:
    """Return the seconds of a text such as `9m`; a number without a unit is in hours."""
    if text is None:
        return None
    match = re.fullmatch(rf"([0-9]*\.?[0-9]+)({unit})", text)
    number = 0.0 if match is None else float(match[1])
    if match is None or not 0 < number < math.inf:
        raise UserError(f"{word}={text}: must be {form}")
    return number * UNITS[match[2]]
