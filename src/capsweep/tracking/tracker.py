"""Weights & Biases, as a second copy of what the ledger has first, that training never waits for.

All that W&B does is done by another process, which is kept for the next cell. Whatever W&B costs a
cell, absent, hanging or slow, is at most `logger.max_seconds`; a fault is said once, ends the
tracking of this cell, and leaves the run to `capsweep wandb sync`.
"""

import atexit
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capsweep.config.cell import Cell
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content, marks
from capsweep.tracking import opening as openings
from capsweep.tracking.child import KILL_SECONDS, Child, TrackingError
from capsweep.tracking.labels import Labels
from capsweep.tracking.opening import Opening

CURE = "capsweep wandb sync uploads it"
PATIENCE = 2  # faults in a row, of online or of offline runs
PAUSE_SECONDS = 600.0
CELLS = 100  # of one process: W&B's client keeps 0.25 MB and two temporary folders of each run


class Room:
    """The tracking process of this process, and what W&B has to answer for.

    After `PATIENCE` faults in a row, cells do not pay for W&B any more: those that would be online
    are offline, those that would be offline are not tracked. After `PAUSE_SECONDS` one is tried
    again; if that fails too, so do not the next.
    """

    def __init__(self) -> None:
        self._idle: Child | None = None
        self._faults: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def take(self) -> Child:
        """A tracking process: the one of the cell before, or a new one."""
        idle, self._idle = self._idle, None
        if idle is not None and idle.cells >= CELLS:
            idle.end()
            idle = None
        return Child() if idle is None else idle

    def keep(self, child: Child, mode: str) -> None:
        """A cell ended well; the next may have its process."""
        self._faults[mode] = 0
        child.cells += 1
        if self._idle is not None:  # of a cell that ran beside this one
            child.end()
        else:
            self._idle = child

    def failed(self, mode: str) -> None:
        """A cell could not be tracked."""
        self._faults[mode] = self._faults.get(mode, 0) + 1
        self._last[mode] = time.monotonic()

    def mode(self, asked: str) -> str:
        """How a cell that asks for "online" or "offline" is tracked; "none": it is not."""
        if asked == "online" and self._has_failed("online"):
            asked = "offline"
        return "none" if self._has_failed(asked) else asked

    def close(self) -> None:
        """End the process that is kept."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()

    def _has_failed(self, mode: str) -> bool:
        recent = time.monotonic() - self._last.get(mode, 0.0) < PAUSE_SECONDS
        return self._faults.get(mode, 0) >= PATIENCE and recent


ROOM = Room()
atexit.register(ROOM.close)


class Tracker:
    """One W&B run; or nothing, with logger=csv. Every call returns at once, but for `close`.

    seconds: what W&B has cost so far, with what was `spent` before. server: the URL of the one that
    has all that was sent; None: there is none yet. url: of the run there.
    """

    def __init__(
        self, opening: Opening | None, room: Room, images: bool = True, spent: float = 0.0
    ) -> None:
        self.fault: str | None = None
        self.seconds = spent
        self.server: str | None = None
        self.url: str | None = None
        self._room, self._images = room, images
        self._child: Child | None = None
        self._mode, self._max_seconds = "none", 0.0
        if opening is not None:
            self._open(opening)

    def log(self, row: Mapping[str, Any]) -> None:
        """One epoch."""
        self._send("log", row=dict(row))

    def summarise(self, values: Mapping[str, Any]) -> None:
        """The numbers of the finished run."""
        self._send("summarise", values=dict(values))

    def files(self, folder: Path) -> None:
        """Tables and pictures, of the files of a cell's folder; read by the time of `close`."""
        self._send("files", folder=str(folder), images=self._images)

    def close(self, exit_code: int) -> None:
        """End the run, once, within what is left of the time that W&B may cost."""
        if self._child is None:
            return

        def finish(child: Child) -> None:
            left = self._max_seconds - KILL_SECONDS - self.seconds
            deadline = time.monotonic() + max(left, 0.0)
            child.send("finish", exit_code=exit_code)
            answer = child.answer(deadline)
            if self._mode == "online":
                self.server, self.url = answer["server"], answer["url"]

        self._timed(finish)
        child, self._child = self._child, None
        if child is not None:
            self._room.keep(child, self._mode)

    def mark(self, ledger: Ledger, storage: Path, signature: str) -> None:
        """Write down that W&B has all of a finished cell, where it does. Never raises: without a
        mark the cell is uploaded once more, into the same run."""
        if self.server is None:
            return
        try:
            marks.write(storage, content.of(ledger, signature), self.server)
        except (OSError, ValueError, UserError) as error:
            print(f"W&B: no mark for {signature}: {error}", file=sys.stderr, flush=True)

    def _open(self, opening: Opening) -> None:
        asked = "offline" if opening.offline else "online"
        self._mode, self._max_seconds = self._room.mode(asked), opening.seconds
        if self._mode == "none":
            self._say(f"W&B failed {PATIENCE} times in a row and is not asked for a while")
            return
        if self._mode != asked:
            print(f"W&B failed {PATIENCE} times in a row: offline for a while", file=sys.stderr)

        def start() -> None:
            self._child = self._room.take()
            chosen = opening.as_offline() if self._mode == "offline" else opening
            self._child.send("open", opening=chosen.plain())

        self._guard(start)

    def _send(self, do: str, **what: Any) -> None:
        def send(child: Child) -> None:
            child.check()
            child.send(do, **what)

        self._timed(send)

    def _timed(self, call: Callable[[Child], None]) -> None:
        child = self._child
        if child is not None:
            self._guard(lambda: call(child))

    def _guard(self, call: Callable[[], None]) -> None:
        started = time.monotonic()
        try:
            call()
        except (TrackingError, OSError) as error:
            self._fail(" ".join(str(error).split()))
        self.seconds += time.monotonic() - started

    def _fail(self, why: str) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
        self._room.failed(self._mode)
        self._say(why)

    def _say(self, why: str) -> None:
        self.fault = f"{why}; {CURE}"
        print(f"W&B: {self.fault}", file=sys.stderr, flush=True)


def tracker(cell: Cell, storage: Path, labels: Labels) -> Tracker:
    """The tracker of a cell: one W&B run whose id is the signature."""
    logger = cell.config["logger"]
    if logger["name"] != "wandb":
        return Tracker(None, ROOM)
    return Tracker(openings.of_cell(cell, storage, labels), ROOM, logger["images"])
