"""What one command may take: the one place for --budget, --max-hours and --max-gpu-hours.

--budget starts only cells whose estimate ends in time, and interrupts none; a cell of unknown
length does not start. --max-hours and --max-gpu-hours bound the bill: what would not fit is not
started, and when a bound is reached, what runs leaves at its next epoch end with its checkpoint. So
it is exceeded by one epoch of what runs then, and by the test of a cell that was in its last. A
cell of unknown length starts, and so does one that would not fit even into the whole bound: it is
cut, and the same command goes on with it. All three bound one command, several looks of
--more-seeds included; each job of an array has its own.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from capsweep.errors import UserError

Clock = Callable[[], float]


@dataclass(frozen=True)
class Bounds:
    """Seconds since the start, and GPU-seconds; None: any."""

    budget: float | None = None
    wall: float | None = None
    gpu: float | None = None


class Limits:
    """The bounds of a command, and what its cells have taken of them.

    GPU-seconds are the share of devices that a cell was given, times the time it ran.
    """

    def __init__(self, bounds: Bounds | None = None, clock: Clock = time.monotonic) -> None:
        self.bounds, self._clock = bounds or Bounds(), clock
        self._begun = clock()
        self._spent = 0.0  # GPU-seconds of what has ended
        self._running: dict[str, tuple[float, float]] = {}  # GPUs, since when
        self._reached: str | None = None
        self._stop_reason: str | None = None

    def begins(self, key: str, gpus: float) -> None:
        """A worker took a job."""
        self._running[key] = gpus, self._clock()

    def ends(self, key: str) -> None:
        """A job ended, well or not."""
        gpus, since = self._running.pop(key, (0.0, 0.0))
        self._spent += gpus * (self._clock() - since)

    def refuse_more(self, why: str) -> None:
        """Let nothing more start, for a reason that holds for every job."""
        self._stop_reason = why

    def has_begun(self, key: str) -> bool:
        """Whether a worker has the job; not yet: it waits inside the executor."""
        return key in self._running

    @property
    def gpu_seconds(self) -> float:
        """What was taken until now, running jobs included."""
        now = self._clock()
        return self._spent + sum(gpus * (now - since) for gpus, since in self._running.values())

    @property
    def starts_little(self) -> bool:
        """Whether what is started must start at once: no job may wait inside an executor."""
        return self.bounds != Bounds()

    @property
    def may_leave(self) -> bool:
        """Whether running jobs may ever have to leave: for --budget alone none does."""
        return self.bounds.wall is not None or self.bounds.gpu is not None

    @property
    def leaves(self) -> bool:
        """Whether running jobs are to leave at their next epoch end, and no other starts."""
        return self._stop_reason is not None or self.reached is not None

    @property
    def reached(self) -> str | None:
        """The option whose bound is reached, after which running cells leave; it stays so."""
        bounds = self.bounds
        if self._reached is None:
            if bounds.wall is not None and self._clock() - self._begun >= bounds.wall:
                self._reached = "--max-hours"
            elif bounds.gpu is not None and self.gpu_seconds >= bounds.gpu:
                self._reached = "--max-gpu-hours"
        return self._reached

    @property
    def why_left(self) -> str:
        """Why cells were not run, for a person."""
        if self._stop_reason is not None:
            return self._stop_reason
        if self.reached is not None:
            return f"{self.reached} is reached"
        if not self._hard():
            return "the budget is used up"
        budget = [] if self.bounds.budget is None else ["--budget"]
        options = [*budget, *(option for option, _ in self._hard())]
        return f"nothing more fits into {' and '.join(options)}"

    def allows(self, seconds: float | None, gpus: float, ahead: float = 0.0) -> bool:
        """Whether a cell may start that is estimated to take `seconds` (None: unknown).

        ahead: GPU-seconds that running cells are estimated to take still.
        """
        passed, bounds = self._clock() - self._begun, self.bounds
        if self.leaves:
            return False
        if bounds.budget is not None and (seconds is None or passed + seconds > bounds.budget):
            return False
        if seconds is None:
            return True
        return _fits(seconds, passed, bounds.wall) and _fits(
            seconds * gpus, self.gpu_seconds + ahead, bounds.gpu
        )

    def describe(self, seconds_of_epoch: float | None) -> list[str]:
        """What is said before the first cell: the bounds, and by how much they may be exceeded."""
        lines = []
        known = "" if seconds_of_epoch is None else f", about {seconds_of_epoch:.0f} s here"
        for option, bound in self._hard():
            lines.append(
                f"{option} {bound / 3600:g}: what runs then leaves at its next epoch end, its "
                f"checkpoint kept; so it may be exceeded by one epoch of each running cell{known}"
            )
        return lines

    def summary(self) -> list[str]:
        """What is said after the last cell: what was taken, against the bounds."""
        taken = {
            "--max-hours": (self._clock() - self._begun) / 3600,
            "--max-gpu-hours": self.gpu_seconds / 3600,
        }
        lines = [
            f"{option} {bound / 3600:g}: {taken[option]:.3g} were taken"
            + (", no cell had a GPU" if option == "--max-gpu-hours" and not taken[option] else "")
            for option, bound in self._hard()
        ]
        return lines

    def _hard(self) -> list[tuple[str, float]]:
        pairs = (("--max-hours", self.bounds.wall), ("--max-gpu-hours", self.bounds.gpu))
        return [(option, bound) for option, bound in pairs if bound is not None]


def _fits(wanted: float, taken: float, bound: float | None) -> bool:
    """What is longer than the whole bound never would: it starts, and is cut."""
    return bound is None or wanted > bound or taken + wanted <= bound


def read(budget: str | None, max_hours: str | None, max_gpu_hours: str | None) -> Bounds:
    """The bounds as they were typed. Raises UserError naming the option."""
    return Bounds(
        None if budget is None else seconds_of(budget),
        None if max_hours is None else _hours("--max-hours", max_hours),
        None if max_gpu_hours is None else _hours("--max-gpu-hours", max_gpu_hours),
    )


def seconds_of(text: str) -> float:
    """Read a budget: 90s, 9m, 2h. Raises UserError naming --budget."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)([smh])", text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"--budget {text}: must be a time such as 90s, 9m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _hours(option: str, text: str) -> float:
    """Seconds of a number of hours."""
    found = re.fullmatch(r"[0-9]*\.?[0-9]+", text)
    hours = float(text) if found else 0.0
    if not 0 < hours < math.inf:
        raise UserError(f"{option} {text}: must be a number of hours above 0, such as 8 or 0.5")
    return hours * 3600
