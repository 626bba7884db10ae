"""Weights & Biases, as a second copy of what the ledger has first, that training never waits for.

Another process speaks to W&B; it is kept for the next cell. Whatever W&B does, absent, hanging or
slow, it costs a cell at most `logger.max_seconds`. A fault is printed once, ends the tracking of
this cell, and leaves the run to `capsweep wandb sync`.
"""

import atexit
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capsweep.config.cell import Cell
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content
from capsweep.tracking.labels import Labels
from capsweep.tracking.process import KILL_SECONDS, Child, TrackingError

PATIENCE = 2  # faults in a row
PAUSE_SECONDS = 600.0
CELLS = 100  # of one process: W&B's client keeps 0.25 MB and two temporary folders of each run


class TrackerPool:
    """The tracking process that is kept between cells, and the faults of W&B so far.

    After `PATIENCE` faults in a row, cells no longer pay for W&B: they are not tracked. After
    `PAUSE_SECONDS` one cell tries again; if it fails, the next ones do not.
    """

    def __init__(self) -> None:
        self._idle: Child | None = None
        self._cells = 0
        self._faults = 0
        self._last_fault = 0.0

    def take_child(self) -> Child:
        """A tracking process: that of the last cell, or a new one."""
        idle, self._idle = self._idle, None
        return idle or Child("run")

    def keep_child(self, child: Child) -> None:
        """A cell ended without a fault; the next may have its process."""
        self._faults = 0
        self._cells += 1
        if self._idle is not None or self._cells % CELLS == 0:  # or of a cell at the same time
            child.close()
        else:
            self._idle = child

    def count_fault(self) -> None:
        """A cell could not be tracked."""
        self._faults += 1
        self._last_fault = time.monotonic()

    def is_paused(self) -> bool:
        """Whether cells are not tracked for a while."""
        return self._faults >= PATIENCE and time.monotonic() - self._last_fault < PAUSE_SECONDS

    def close(self) -> None:
        """End the process that is kept."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()


POOL = TrackerPool()
atexit.register(lambda: POOL.close())


class Tracker:
    """The W&B run of a cell, whose id is the signature; or nothing, with logger=csv.

    Every call but `close` returns at once. seconds: what W&B has cost so far. server: the URL of
    the server that has all of the run; None: no server has. url: of the run there.
    """

    def __init__(
        self, cell: Cell, storage: Path, labels: Labels, pool: TrackerPool | None = None
    ) -> None:
        self.fault: str | None = None
        self.seconds = 0.0
        self.server: str | None = None
        self.url: str | None = None
        self._pool = pool or POOL
        self._logger = cell.config["logger"]
        self._child: Child | None = None
        if self._logger["name"] != "wandb":
            return
        if self._pool.is_paused():
            self._report_fault(f"W&B failed {PATIENCE} times in a row and is not asked for a while")
            return
        with self._guard_training():
            self._child = self._pool.take_child()
            self._child.send(
                "open",
                run=content.run_of_cell(cell, labels),
                storage=str(storage),
                mode="online" if self._logger["mode"] == "online" else "offline",
                seconds=self._logger["max_seconds"],
                of_process=os.getpid(),
            )

    def log(self, row: Mapping[str, Any]) -> None:
        """One epoch."""
        if self._child is not None:
            with self._guard_training():
                self._child.send("log", row=dict(row))

    def close(
        self,
        exit_code: int = 1,
        summary: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        """End the run, once, within what is left of the time that W&B may cost.

        summary: its last numbers. folder: the cell's, with tables and pictures.
        """
        if self._child is None:
            return
        with self._guard_training():
            left = self._logger["max_seconds"] - KILL_SECONDS - self.seconds
            answer = self._child.ask(
                "finish",
                max(left, 0.0),
                exit_code=exit_code,
                summary=dict(summary or {}),
                folder=None if folder is None else str(folder),
                images=self._logger["images"],
            )
            if self._logger["mode"] == "online":
                self.server, self.url = answer["server"], answer["url"]
            self._pool.keep_child(self._child)
            self._child = None

    def mark_synced(self, ledger: Ledger, storage: Path, signature: str) -> None:
        """Note that W&B has all of a finished cell, if it does. Never raises: a cell without a mark
        is uploaded once more, into the same run."""
        if self.server is None:
            return
        try:
            content.write_mark(storage, content.read_content(ledger, signature), self.server)
        except (OSError, ValueError, UserError) as error:
            print(f"W&B: no mark for {signature}: {error}", file=sys.stderr, flush=True)

    @contextmanager
    def _guard_training(self) -> Iterator[None]:
        """Time a block; a fault of it ends the tracking of this cell, and nothing else."""
        started = time.monotonic()
        try:
            yield
        except (TrackingError, OSError) as error:
            if self._child is not None:
                self._child.kill()
                self._child = None
            self._pool.count_fault()
            self._report_fault(" ".join(str(error).split()))
        self.seconds += time.monotonic() - started

    def _report_fault(self, why: str) -> None:
        self.fault = f"{why}; capsweep wandb sync uploads it"
        print(f"W&B: {self.fault}", file=sys.stderr, flush=True)
