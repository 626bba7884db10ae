"""The bounds of one command: BUDGET and MAX_HOURS.

BUDGET starts only cells whose estimate ends in time, and interrupts none; a cell of unknown length
does not start. MAX_HOURS bounds the bill: a cell that would not fit is not started, and when the
bound is reached, running cells end after their epoch with a checkpoint. So it is exceeded by one
epoch of each running cell, and by the test of a cell in its last epoch. A cell of unknown length
starts, and so does one that is longer than the whole bound: it is cut, and the same command goes on
with it. Both bound one command, several looks of MORE_SEEDS included; each job of an array has its
own.
"""

import math
import re
import time
from collections.abc import Callable

from capsweep.errors import UserError

UNITS = {"s": 1, "m": 60, "h": 3600, "": 3600}


class Limits:
    """The bounds of a command that begins now.

    budget, wall: seconds of BUDGET and of MAX_HOURS; None: no bound.
    """

    def __init__(
        self,
        budget: float | None = None,
        wall: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget, self.wall, self._clock = budget, wall, clock
        self._started_at = clock()
        self._refusal: str | None = None

    @property
    def _passed(self) -> float:
        return self._clock() - self._started_at

    @property
    def has_bounds(self) -> bool:
        """Whether a bound is set: then jobs must not queue inside an executor."""
        return self.budget is not None or self.wall is not None

    @property
    def leave_at(self) -> float | None:
        """When running cells are to leave, in seconds of the epoch; None: never."""
        return None if self.wall is None else time.time() + self.wall - self._passed

    @property
    def is_stopping(self) -> bool:
        """Whether running cells are to leave at their next epoch end, and no other starts."""
        if self._refusal is None and self.wall is not None and self._passed >= self.wall:
            self.refuse_more("MAX_HOURS is reached")
        return self._refusal is not None

    @property
    def stop_reason(self) -> str:
        """Why cells were not run, for a person."""
        if self.is_stopping and self._refusal is not None:
            return self._refusal
        bounds = {"BUDGET": self.budget, "MAX_HOURS": self.wall}
        names = [name for name, bound in bounds.items() if bound is not None]
        return f"nothing more fits into {' and '.join(names)}"

    def refuse_more(self, why: str) -> None:
        """Let no other cell start, for a reason that holds for every cell."""
        self._refusal = why

    def can_start(self, seconds: float | None) -> bool:
        """Return whether a cell may start that is estimated to take `seconds` (None: unknown)."""
        if self.is_stopping:
            return False
        if seconds is None:
            return self.budget is None
        end = self._passed + seconds
        if self.budget is not None and end > self.budget:
            return False
        return self.wall is None or end <= self.wall or seconds > self.wall


def read_limits(budget: str | None, max_hours: str | None) -> Limits:
    """Return the bounds as they were typed. Raises UserError naming the word."""
    return Limits(
        _read_seconds("BUDGET", budget, "[smh]", "a time such as 90s, 9m or 2h"),
        _read_seconds("MAX_HOURS", max_hours, "", "a number of hours above 0, such as 8 or 0.5"),
    )


def _read_seconds(word: str, text: str | None, unit: str, form: str) -> float | None:
    """Return the seconds of a number with a unit; without one it is of hours."""
    if text is None:
        return None
    match = re.fullmatch(rf"([0-9]*\.?[0-9]+)({unit})", text)
    number = 0.0 if match is None else float(match[1])
    if match is None or not 0 < number < math.inf:
        raise UserError(f"{word}={text}: must be {form}")
    return number * UNITS[match[2]]
