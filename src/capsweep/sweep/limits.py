"""The bounds of one command: --budget, --max-hours and --max-gpu-hours.

--budget starts only cells whose estimate ends in time, and interrupts none; a cell of unknown
length does not start. --max-hours and --max-gpu-hours bound the bill: a cell that would not fit is
not started, and when a bound is reached, running cells end after their epoch with a checkpoint. So
a bound is exceeded by one epoch of each running cell, and by the test of a cell in its last epoch.
A cell of unknown length starts, and so does one that is longer than the whole bound: it is cut, and
the same command goes on with it. All three bound one command, several looks of --more-seeds
included; each job of an array has its own.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from capsweep.errors import UserError

Clock = Callable[[], float]
HOURS = "a number of hours above 0, such as 8 or 0.5"


@dataclass(frozen=True)
class Bounds:
    """Seconds since the start, and GPU-seconds; None: no bound."""

    budget: float | None = None
    wall: float | None = None
    gpu: float | None = None


@dataclass(frozen=True)
class _Use:
    """GPUs of a job, and when a worker took it."""

    gpus: float
    since: float


class Limits:
    """The bounds of a command, and what its cells have taken of them.

    GPU-seconds are the share of devices that a cell was given, times the time it ran.
    """

    def __init__(self, bounds: Bounds | None = None, clock: Clock = time.monotonic) -> None:
        self.bounds, self._clock = bounds or Bounds(), clock
        self._started_at = clock()
        self._ended_gpu_seconds = 0.0
        self._jobs: dict[str, _Use] = {}
        self._stop_reason: str | None = None

    def begin(self, key: str, gpus: float) -> None:
        """A worker has a job."""
        self._jobs[key] = _Use(gpus, self._clock())

    def end(self, key: str) -> None:
        """A job ended, well or not."""
        if (use := self._jobs.pop(key, None)) is not None:
            self._ended_gpu_seconds += use.gpus * (self._clock() - use.since)

    def refuse_more(self, why: str) -> None:
        """Let no other job start, for a reason that holds for every job."""
        self._stop_reason = why

    def has_begun(self, key: str) -> bool:
        """Whether a worker has the job; otherwise it waits inside the executor."""
        return key in self._jobs

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds until now, running jobs included."""
        now = self._clock()
        running = sum(use.gpus * (now - use.since) for use in self._jobs.values())
        return self._ended_gpu_seconds + running

    @property
    def has_bounds(self) -> bool:
        """Whether a bound is set: then jobs must not queue inside an executor."""
        return self.bounds != Bounds()

    @property
    def may_interrupt(self) -> bool:
        """Whether running jobs may ever have to leave: for --budget alone none does."""
        return bool(self._list_hard_bounds())

    @property
    def is_stopping(self) -> bool:
        """Whether running jobs are to leave at their next epoch end, and no other starts."""
        for option, bound, taken in self._list_hard_bounds():
            if self._stop_reason is None and taken >= bound:
                self._stop_reason = f"{option} is reached"  # and stays so
        return self._stop_reason is not None

    @property
    def stop_reason(self) -> str:
        """Why cells were not run, for a person."""
        if self.is_stopping and self._stop_reason is not None:
            return self._stop_reason
        budget = [] if self.bounds.budget is None else ["--budget"]
        options = [*budget, *(option for option, *_ in self._list_hard_bounds())]
        return f"nothing more fits into {' and '.join(options)}"

    def can_start(self, seconds: float | None, gpus: float, needed: float = 0.0) -> bool:
        """Whether a cell may start that is estimated to take `seconds` (None: unknown).

        needed: GPU-seconds that running cells are estimated to take from start to end.
        """
        passed, bounds = self._clock() - self._started_at, self.bounds
        if self.is_stopping:
            return False
        if bounds.budget is not None and (seconds is None or passed + seconds > bounds.budget):
            return False
        if seconds is None:
            return True
        taken = max(self.gpu_seconds, self._ended_gpu_seconds + needed)
        return _has_room(seconds, passed, bounds.wall) and _has_room(
            seconds * gpus, taken, bounds.gpu
        )

    def describe(self) -> list[str]:
        """A line for each bound that interrupts, before the first cell."""
        return [
            f"{option} {bound / 3600:g}: what runs then leaves at its next epoch end, its "
            "checkpoint kept; so it may be exceeded by one epoch of each running cell"
            for option, bound, _ in self._list_hard_bounds()
        ]

    def _list_hard_bounds(self) -> list[tuple[str, float, float]]:
        """Options with their bound and what is taken of it."""
        passed = self._clock() - self._started_at
        uses = {"--max-hours": (self.bounds.wall, passed)}
        uses["--max-gpu-hours"] = self.bounds.gpu, self.gpu_seconds
        return [(option, b, taken) for option, (b, taken) in uses.items() if b is not None]


def _has_room(seconds: float, taken: float, bound: float | None) -> bool:
    """A cell that is longer than the whole bound never would: it starts, and is cut."""
    return bound is None or seconds > bound or taken + seconds <= bound


def read_bounds(budget: str | None, max_hours: str | None, max_gpu_hours: str | None) -> Bounds:
    """The bounds as they were typed. Raises UserError naming the option."""
    return Bounds(
        _read_seconds("--budget", budget, "[smh]", "a time such as 90s, 9m or 2h"),
        _read_seconds("--max-hours", max_hours, "", HOURS),
        _read_seconds("--max-gpu-hours", max_gpu_hours, "", HOURS),
    )


def _read_seconds(option: str, text: str | None, unit: str, form: str) -> float | None:
    """Seconds of a number with a unit; without one it is of hours."""
    if text is None:
        return None
    match = re.fullmatch(rf"([0-9]*\.?[0-9]+)({unit})", text)
    number = 0.0 if match is None else float(match[1])
    if match is None or not 0 < number < math.inf:
        raise UserError(f"{option} {text}: must be {form}")
    return number * {"s": 1, "m": 60, "h": 3600, "": 3600}[match[2]]
