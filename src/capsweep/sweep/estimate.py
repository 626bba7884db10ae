"""How long cells will take: from finished cells of the same shape, else from a calibration."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from capsweep.config.cell import Cell, get
from capsweep.config.shape import shape, steps
from capsweep.config.validation import count_validation_examples
from capsweep.training.size import Measurement

UNKNOWN = "unknown hardware"


@dataclass(frozen=True)
class Pace:
    """Seconds per training step, and once per cell."""

    per_step: float
    fixed: float


class Estimates:
    """Seconds of a cell, None when nothing of its shape was ever seen.

    Results of the same hardware count before others; a calibration counts when there is neither.
    hardware: where cells run, None: that is not known.
    """

    def __init__(self, hardware: str | None) -> None:
        self.hardware = hardware
        self._paces: dict[str, dict[str, list[Pace]]] = {}  # by shape and hardware
        self._measured: dict[str, dict[str, Measurement]] = {}

    def add(self, result: Mapping[str, Any]) -> None:
        """A finished cell; one that does not say its shape is skipped, not guessed."""
        seconds, key = result.get("seconds"), result.get("shape")
        if key is None or not seconds or not result.get("steps"):
            return
        pace = Pace(seconds["fit"] / result["steps"], seconds["total"] - seconds["fit"])
        paces = self._paces.setdefault(key, {})
        paces.setdefault(result.get("hardware") or UNKNOWN, []).append(pace)

    def add_measurement(self, measurement: Measurement) -> None:
        """A calibration."""
        self._measured.setdefault(measurement.shape, {})[measurement.hardware] = measurement

    def origin(self, cell: Cell) -> str | None:
        """Where the seconds of a cell come from; None where there are none."""
        key = shape(cell)
        for found, what in ((self._paces, "finished cells"), (self._measured, "calibrations")):
            if known := found.get(key):
                if self.hardware is None:
                    return f"{what} of {', '.join(sorted(known))}: where these run is not known yet"
                is_here = self.hardware in known
                return f"{what} {f'of this machine ({self.hardware})' if is_here else 'elsewhere'}"
        return None

    def seconds(self, cell: Cell) -> float | None:
        """The whole run of a cell, from start to result."""
        key = shape(cell)
        if known := self._paces.get(key):
            own = known.get(self.hardware or UNKNOWN)
            paces = own or [pace for some in known.values() for pace in some]
            per_step = median(pace.per_step for pace in paces)
            train = get(cell.config, "dataset.examples.train")
            return per_step * steps(cell, train) + median(pace.fixed for pace in paces)
        if measured := self._measured.get(key):
            own = measured.get(self.hardware or UNKNOWN)
            return _calibrated(cell, own or list(measured.values())[-1])
        return None


def _calibrated(cell: Cell, measured: Measurement) -> float:
    """A calibration's seconds, evaluation of validation and test examples included."""
    examples = get(cell.config, "dataset.examples")
    images = (
        examples["test"] + count_validation_examples(cell.config["dataset"]) * cell.config["epochs"]
    )
    limit = cell.config["limit_batches"]
    if limit is not None:
        images = min(images, limit * 500 * (1 + cell.config["epochs"]))
    trained = steps(cell, examples["train"]) * measured.seconds_per_step
    evaluated = images * measured.evaluation_seconds_per_image
    return measured.startup_seconds + trained + evaluated


def makespan(seconds: Iterable[float], slots: int) -> float:
    """When the last of some cells ends, each started in order on the first free of `slots`."""
    free = [0.0] * max(1, slots)
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


@dataclass(frozen=True)
class Accuracy:
    """How far estimates were off: `ratio` of measured to estimated seconds, all cells together."""

    cells: int
    ratio: float
    worst: float


def accuracy(results: Sequence[Mapping[str, Any]]) -> Accuracy | None:
    """Of the finished cells that recorded an estimate; None when there is none."""
    pairs = [
        (result["estimate_seconds"], result["seconds"]["total"])
        for result in results
        if result.get("estimate_seconds") and result.get("seconds", {}).get("total")
    ]
    if not pairs:
        return None
    ratio = sum(actual for _, actual in pairs) / sum(estimate for estimate, _ in pairs)
    worst = max((actual / estimate for estimate, actual in pairs), key=lambda r: max(r, 1 / r))
    return Accuracy(len(pairs), ratio, worst)
