"""Weights & Biases, as a second copy of what the ledger has first, that training never waits for.

Another process speaks to W&B; it is kept for the next cell. Whatever W&B does, absent, hanging or
slow, it costs a cell at most `logger.max_seconds`. A fault is printed once, ends the tracking of
this cell, and leaves the run to `capsweep wandb sync`.
"""

import atexit
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from capsweep.config.cell import Cell
from capsweep.errors import ConfigError, UserError
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.storage.files import hash_bytes
from capsweep.tracking import content as contents
from capsweep.tracking import mode as modes
from capsweep.tracking.child import KILL_SECONDS, Child, TrackingError
from capsweep.tracking.content import Content, RunSpec
from capsweep.tracking.labels import Labels

CURE = "capsweep wandb sync uploads it"
PATIENCE = 2  # faults in a row, of online or of offline runs
PAUSE_SECONDS = 600.0
CELLS = 100  # of one process: W&B's client keeps 0.25 MB and two temporary folders of each run


class TrackerPool:
    """The tracking process that is kept between cells, and the faults of W&B so far.

    After `PATIENCE` faults in a row, cells no longer pay for W&B: those that would be online are
    offline, those that would be offline are not tracked. After `PAUSE_SECONDS` one cell tries
    again; if it fails, the next ones do not.
    """

    def __init__(self) -> None:
        self._idle: Child | None = None
        self._faults: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def take(self) -> Child:
        """A tracking process: that of the last cell, or a new one."""
        idle, self._idle = self._idle, None
        if idle is not None and idle.cells >= CELLS:
            idle.end()
            idle = None
        return Child() if idle is None else idle

    def keep(self, child: Child, mode: str) -> None:
        """A cell ended without a fault; the next may have its process."""
        self._faults[mode] = 0
        child.cells += 1
        if self._idle is not None:  # of a cell that ran at the same time
            child.end()
        else:
            self._idle = child

    def count_fault(self, mode: str) -> None:
        """A cell could not be tracked."""
        self._faults[mode] = self._faults.get(mode, 0) + 1
        self._last[mode] = time.monotonic()

    def allowed_mode(self, wanted: str) -> str:
        """How a cell that wants "online" or "offline" is tracked; "none": it is not."""
        if wanted == "online" and self._is_paused("online"):
            wanted = "offline"
        return "none" if self._is_paused(wanted) else wanted

    def close(self) -> None:
        """End the process that is kept."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()

    def _is_paused(self, mode: str) -> bool:
        recent = time.monotonic() - self._last.get(mode, 0.0) < PAUSE_SECONDS
        return self._faults.get(mode, 0) >= PATIENCE and recent


POOL = TrackerPool()
atexit.register(POOL.close)


class Tracker:
    """One W&B run; or nothing, with logger=csv. Every call but `close` returns at once.

    seconds: what W&B has cost so far, `spent` included. server: the URL of the server that has all
    of the run; None: no server has. url: of the run there.
    """

    def __init__(
        self, spec: RunSpec | None, pool: TrackerPool, images: bool = True, spent: float = 0.0
    ) -> None:
        self.fault: str | None = None
        self.seconds = spent
        self.server: str | None = None
        self.url: str | None = None
        self._pool, self._images = pool, images
        self._child: Child | None = None
        self._mode, self._max_seconds = "none", 0.0
        if spec is not None:
            self._open_run(spec)

    def log(self, row: Mapping[str, Any]) -> None:
        """One epoch."""
        self._send_command("log", row=dict(row))

    def summarise(self, values: Mapping[str, Any]) -> None:
        """The numbers of the finished run."""
        self._send_command("summarise", values=dict(values))

    def files(self, folder: Path) -> None:
        """Tables and pictures of a cell's folder; its files are read before `close` returns."""
        self._send_command("files", folder=str(folder), images=self._images)

    def close(self, exit_code: int) -> None:
        """End the run, once, within what is left of the time that W&B may cost."""

        def finish_run(child: Child) -> None:
            left = self._max_seconds - KILL_SECONDS - self.seconds
            deadline = time.monotonic() + max(left, 0.0)
            child.send("finish", exit_code=exit_code)
            answer = child.wait_for_answer(deadline)
            if self._mode == "online":
                self.server, self.url = answer["server"], answer["url"]

        self._call_child(finish_run)
        child, self._child = self._child, None
        if child is not None:
            self._pool.keep(child, self._mode)

    def mark(self, ledger: Ledger, storage: Path, signature: str) -> None:
        """Note that W&B has all of a finished cell, if it does. Never raises: a cell without a mark
        is uploaded once more, into the same run."""
        if self.server is None:
            return
        try:
            contents.write_mark(storage, contents.read_content(ledger, signature), self.server)
        except (OSError, ValueError, UserError) as error:
            print(f"W&B: no mark for {signature}: {error}", file=sys.stderr, flush=True)

    def _open_run(self, spec: RunSpec) -> None:
        wanted = "offline" if spec.offline else "online"
        self._mode, self._max_seconds = self._pool.allowed_mode(wanted), spec.seconds
        if self._mode == "none":
            self._report_fault(f"W&B failed {PATIENCE} times in a row and is not asked for a while")
            return
        if self._mode != wanted:
            print(f"W&B failed {PATIENCE} times in a row: offline for a while", file=sys.stderr)

        def open_child() -> None:
            self._child = self._pool.take()
            self._child.send("open", spec=replace(spec, offline=self._mode == "offline").to_plain())

        self._run_guarded(open_child)

    def _send_command(self, do: str, **what: Any) -> None:
        def send_command(child: Child) -> None:
            child.raise_fault()
            child.send(do, **what)

        self._call_child(send_command)

    def _call_child(self, action: Callable[[Child], None]) -> None:
        child = self._child
        if child is not None:
            self._run_guarded(lambda: action(child))

    def _run_guarded(self, action: Callable[[], None]) -> None:
        """Time the action; a fault of it ends the tracking of this cell, and nothing else."""
        started = time.monotonic()
        try:
            action()
        except (TrackingError, OSError) as error:
            child, self._child = self._child, None
            if child is not None:
                child.kill()
            self._pool.count_fault(self._mode)
            self._report_fault(" ".join(str(error).split()))
        self.seconds += time.monotonic() - started

    def _report_fault(self, why: str) -> None:
        self.fault = f"{why}; {CURE}"
        print(f"W&B: {self.fault}", file=sys.stderr, flush=True)


def tracker(cell: Cell, storage: Path, labels: Labels) -> Tracker:
    """The tracker of a cell: one W&B run whose id is the signature."""
    logger = cell.config["logger"]
    if logger["name"] != "wandb":
        return Tracker(None, POOL)
    return Tracker(contents.spec_of_cell(cell, storage, labels), POOL, logger["images"])


def add_pictures(ledger: Ledger, signature: str, storage: Path, files: Mapping[str, bytes]) -> None:
    """Add PNG `files`, by their names below evals/, to the run of a finished cell.

    Does nothing for a cell without W&B or with logger.images=false. W&B takes 5 s at most and its
    fault is one line; the pictures are in the ledger in any case.
    """
    content = contents.read_content(ledger, signature)
    pictures = {name: png for name, png in files.items() if name.endswith(contents.PICTURES)}
    if content.mode == "none" or not content.images or not pictures:
        return
    started = time.monotonic()
    try:
        online = content.mode == "online" and _is_online(str(storage))
    except ConfigError as error:
        print(f"W&B: {error}", file=sys.stderr)
        return
    spec = contents.spec_of_content(content, storage, offline=not online)
    run = Tracker(spec, POOL, spent=time.monotonic() - started)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / EVALUATIONS).mkdir()
        for name, png in pictures.items():
            (Path(folder) / EVALUATIONS / name).write_bytes(png)
        run.files(Path(folder))
        run.close(exit_code=0)
    if run.server is not None:
        _mark_pictures(storage, content, pictures, run.server)


@cache
def _is_online(storage: str) -> bool:
    """Whether W&B can be reached now; the cell may have been trained online long ago."""
    logger = {"name": "wandb", "mode": "auto"}
    return modes.settle({"logger": logger, "places": {"storage": storage}})[0] == "online"


def _mark_pictures(
    storage: Path, content: Content, added: Mapping[str, bytes], server: str
) -> None:
    """If W&B had all but these pictures, it has all now."""
    others = {name: digest for name, digest in content.pictures.items() if name not in added}
    new = {name: hash_bytes(png) for name, png in added.items()}
    if contents.is_synced(storage, replace(content, pictures=others), server):
        contents.write_mark(storage, replace(content, pictures=others | new), server)
