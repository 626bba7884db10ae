"""When a sweep will have ended: cells take as much longer than expected as those did so far.

It is only shown. What bounds and placement go by (`limits`, `queue`) are the estimates themselves.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from capsweep.sweep.limits import Clock


@dataclass(frozen=True)
class Expected:
    """What a cell has before it. work: seconds, or any measure that is the same for all cells."""

    work: float
    epochs: int


@dataclass
class Running:
    """A cell at work. at: when it began, or its last epoch ended. epochs: that it has done, also in
    earlier runs; of those told of, how many, and their seconds.
    """

    at: float
    epochs: int = 0
    told: int = 0
    seconds: float = 0.0


class TimeLeft:
    """What is left of the cells, on as many slots as were seen to work at once.

    cells: by their signatures, those that are known; of others there are so many that there are
    `total`, and each is a `usual` one. What a call costs grows with the cells that run, not with
    all: each epoch of each asks.
    """

    def __init__(
        self,
        cells: Mapping[str, Expected],
        total: int,
        usual: Expected,
        clock: Clock = time.monotonic,
    ) -> None:
        self.cells, self.total, self.usual, self._clock = cells, total, usual, clock
        self.running: dict[str, Running] = {}
        self._slots = 1
        self._ended: set[str] = set()
        self._ended_seconds = self._ended_work = 0.0  # of those that tell what others may take
        known = sum(cell.work for cell in cells.values())
        self._untaken_work = known + (total - len(cells)) * usual.work

    @classmethod
    def of(
        cls,
        epochs: Mapping[str, int],
        seconds: Mapping[str, float | None],
        clock: Clock = time.monotonic,
    ) -> "TimeLeft":
        """Of cells whose epochs are known, and mostly their seconds.

        One without an estimate takes as long an epoch as the others do; where there is none at
        all, epochs are what is counted.
        """
        known = {s: of / epochs[s] for s, of in seconds.items() if of is not None}
        usual = fmean(known.values()) if known else 1.0
        cells = {s: Expected(count * known.get(s, usual), count) for s, count in epochs.items()}
        return cls(cells, len(cells), Expected(usual, 1), clock)

    @property
    def completed(self) -> float:
        """Cells, running ones in part."""
        return len(self._ended) + sum(map(self._fraction, self.running))

    def started(self, signature: str) -> None:
        """A worker took the cell; or takes it again, after another one was lost or left."""
        self._take(signature)
        self._ended.discard(signature)
        self.running[signature] = Running(self._clock())
        self._slots = max(self._slots, len(self.running))

    def epoch(self, signature: str, row: Mapping[str, Any]) -> None:
        """A running cell finished an epoch. The last word of a lost worker may come too late, and
        is nothing.
        """
        if (cell := self.running.get(signature)) is None:
            return
        cell.epochs, cell.at = row["epoch"] + 1, self._clock()
        cell.told, cell.seconds = cell.told + 1, cell.seconds + row["seconds"]

    def ended(self, signature: str, is_typical: bool, seconds: float | None = None) -> None:
        """A cell runs no more. is_typical: others may take as long; a failed one tells nothing.
        seconds: None where those of its epochs are all that is known.
        """
        self._take(signature)
        cell = self.running.pop(signature, Running(0.0))
        self._ended.add(signature)
        if is_typical:
            self._ended_seconds += cell.seconds if seconds is None else seconds
            self._ended_work += self._expected(signature).work

    def seconds(self) -> float | None:
        """Until all have ended; None before anything is known."""
        done = self._ended_work + sum(
            cell.told * self._epoch_work(s) for s, cell in self.running.items()
        )
        took = self._ended_seconds + sum(cell.seconds for cell in self.running.values())
        if not done or not took:
            return None
        pace = took / done
        rest = [self._rest(s, pace) for s in self.running]
        return max(*rest, 0.0, (sum(rest) + pace * self._untaken_work) / self._slots)

    def _rest(self, signature: str, pace: float) -> float:
        """Of a running cell: at least the epochs after its present one, should that be late."""
        cell, an_epoch = self.running[signature], pace * self._epoch_work(signature)
        rest = (self._expected(signature).epochs - cell.epochs) * an_epoch
        return max(rest - (self._clock() - cell.at), rest - an_epoch, 0.0)

    def _fraction(self, signature: str) -> float:
        return self.running[signature].epochs / self._expected(signature).epochs

    def _take(self, signature: str) -> None:
        if signature not in self.running and signature not in self._ended:
            self._untaken_work -= self._expected(signature).work

    def _epoch_work(self, signature: str) -> float:
        expected = self._expected(signature)
        return expected.work / expected.epochs

    def _expected(self, signature: str) -> Expected:
        return self.cells.get(signature, self.usual)


def told(seconds: float | None) -> str:
    """`about 90 s left`, `about 12 min left`."""
    if seconds is None:
        return "time left: unknown"
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"
