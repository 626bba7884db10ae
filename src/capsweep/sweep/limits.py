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


@dataclass(frozen=True)
class Bounds:
    """Seconds since the start, and GPU-seconds; None: no bound."""

    budget: float | None = None
    wall: float | None = None
    gpu: float | None = None


@dataclass
class _Use:
    """GPUs of a job, its estimated seconds, and when a worker took it."""

    gpus: float
    estimate: float = 0.0
    since: float | None = None


class Limits:
    """The bounds of a command, and what its cells have taken of them.

    GPU-seconds are the share of devices that a cell was given, times the time it ran.
    """

    def __init__(self, bounds: Bounds | None = None, clock: Clock = time.monotonic) -> None:
        self.bounds, self._clock = bounds or Bounds(), clock
        self._started_at = clock()
        self._ended_gpu_seconds = 0.0
        self._jobs: dict[str, _Use] = {}
        self._reached: str | None = None
        self._stop_reason: str | None = None

    def reserve(self, key: str, gpus: float, seconds: float | None) -> None:
        """A job is handed to an executor; seconds: its estimate."""
        self._jobs[key] = _Use(gpus, seconds or 0.0)

    def begin(self, key: str, gpus: float) -> None:
        """A worker has a job."""
        use = self._jobs.setdefault(key, _Use(gpus))
        use.gpus, use.since = gpus, self._clock()

    def end(self, key: str) -> None:
        """A job ended, well or not."""
        if (use := self._jobs.pop(key, None)) is not None:
            self._ended_gpu_seconds += use.gpus * self._seconds_of(use)

    def refuse_more(self, why: str) -> None:
        """Let no other job start, for a reason that holds for every job."""
        self._stop_reason = why

    def has_begun(self, key: str) -> bool:
        """Whether a worker has the job; otherwise it waits inside the executor."""
        return key in self._jobs and self._jobs[key].since is not None

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds until now, running jobs included."""
        running = sum(use.gpus * self._seconds_of(use) for use in self._jobs.values())
        return self._ended_gpu_seconds + running

    @property
    def has_bounds(self) -> bool:
        """Whether a bound is set: then jobs must not queue inside an executor."""
        return self.bounds != Bounds()

    @property
    def may_interrupt(self) -> bool:
        """Whether running jobs may ever have to leave: for --budget alone none does."""
        return self.bounds.wall is not None or self.bounds.gpu is not None

    @property
    def is_stopping(self) -> bool:
        """Whether running jobs are to leave at their next epoch end, and no other starts."""
        return self._stop_reason is not None or self.reached is not None

    @property
    def reached(self) -> str | None:
        """The option whose bound is reached; it stays reached."""
        if self._reached is None:
            for option, bound, taken in self._hard_bounds():
                if taken >= bound:
                    self._reached = option
                    break
        return self._reached

    @property
    def stop_reason(self) -> str:
        """Why cells were not run, for a person."""
        if self._stop_reason is not None:
            return self._stop_reason
        if self.reached is not None:
            return f"{self.reached} is reached"
        budget = [] if self.bounds.budget is None else ["--budget"]
        options = [*budget, *(option for option, *_ in self._hard_bounds())]
        return f"nothing more fits into {' and '.join(options)}"

    def can_start(self, seconds: float | None, gpus: float) -> bool:
        """Whether a cell may start that is estimated to take `seconds` (None: unknown)."""
        passed, bounds = self._clock() - self._started_at, self.bounds
        if self.is_stopping:
            return False
        if bounds.budget is not None and (seconds is None or passed + seconds > bounds.budget):
            return False
        if seconds is None:
            return True
        ahead = sum(
            use.gpus * max(0.0, use.estimate - self._seconds_of(use)) for use in self._jobs.values()
        )
        return _fits(seconds, passed, bounds.wall) and _fits(
            seconds * gpus, self.gpu_seconds + ahead, bounds.gpu
        )

    def describe_bounds(self, seconds_of_epoch: float | None) -> list[str]:
        """Lines before the first cell: the bounds, and by how much they may be exceeded."""
        epoch = "" if seconds_of_epoch is None else f", about {seconds_of_epoch:.0f} s here"
        return [
            f"{option} {bound / 3600:g}: what runs then leaves at its next epoch end, its "
            f"checkpoint kept; so it may be exceeded by one epoch of each running cell{epoch}"
            for option, bound, _ in self._hard_bounds()
        ]

    def describe_use(self) -> list[str]:
        """Lines after the last cell: what was taken of the bounds."""
        return [
            f"{option} {bound / 3600:g}: {taken / 3600:.3g} were taken"
            + ("" if taken else ", no cell had a GPU")
            for option, bound, taken in self._hard_bounds()
        ]

    def _seconds_of(self, use: _Use) -> float:
        return 0.0 if use.since is None else self._clock() - use.since

    def _hard_bounds(self) -> list[tuple[str, float, float]]:
        """Options with their bound and what is taken of it."""
        wall, gpu = self.bounds.wall, self.bounds.gpu
        passed = self._clock() - self._started_at
        bounds = [] if wall is None else [("--max-hours", wall, passed)]
        return bounds + ([] if gpu is None else [("--max-gpu-hours", gpu, self.gpu_seconds)])


def _fits(seconds: float, taken: float, bound: float | None) -> bool:
    """A cell that is longer than the whole bound never would: it starts, and is cut."""
    return bound is None or seconds > bound or taken + seconds <= bound


def read_bounds(budget: str | None, max_hours: str | None, max_gpu_hours: str | None) -> Bounds:
    """The bounds as they were typed. Raises UserError naming the option."""
    return Bounds(
        None if budget is None else read_budget(budget),
        None if max_hours is None else _read_hours("--max-hours", max_hours),
        None if max_gpu_hours is None else _read_hours("--max-gpu-hours", max_gpu_hours),
    )


def read_budget(text: str) -> float:
    """Seconds of 90s, 9m or 2h. Raises UserError naming --budget."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)([smh])", text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"--budget {text}: must be a time such as 90s, 9m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _read_hours(option: str, text: str) -> float:
    hours = float(text) if re.fullmatch(r"[0-9]*\.?[0-9]+", text) else 0.0
    if not 0 < hours < math.inf:
        raise UserError(f"{option} {text}: must be a number of hours above 0, such as 8 or 0.5")
    return hours * 3600
