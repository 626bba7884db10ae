"""Upload what W&B does not have: cells in parallel, each once, in bounded time."""

import contextlib
import fcntl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsweep.errors import DamageError, UserError
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.tracking import mode
from capsweep.tracking.child import Child, TrackingError
from capsweep.tracking.content import Content, is_synced, read_content

START_SECONDS = 30.0  # the first import of W&B from a cold disk
CHECK_SECONDS = 3.0
REFUSALS = ("AuthenticationError", "401", "403", "this login")  # in messages of W&B's client

Report = Callable[[str, str | None], object]


@dataclass
class SyncResult:
    """Signatures of cells by what W&B has of them.

    waiting: cells to upload. live: running cells that send their rows themselves. faults: why
    cells are not uploaded, by signature.
    """

    waiting: list[Content] = field(default_factory=list)
    synced: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    uploaded: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)


def find_unsynced(
    ledger: Ledger, storage: Path, server: str, signatures: Sequence[str]
) -> SyncResult:
    """What the server lacks of these cells, by their marks alone, without asking the server.

    Cells that were not tracked with W&B do not count.
    """
    result = SyncResult()

    def read_cell(signature: str) -> Content | None:
        try:
            return read_content(ledger, signature)
        except DamageError as error:
            result.faults[signature] = str(error)
            return None

    with ThreadPoolExecutor(READERS if ledger.disk is None else 1) as pool:
        cells = list(pool.map(read_cell, signatures))
    for cell in cells:
        if cell is None or cell.project is None or cell.status == "missing":
            continue
        if cell.status == "running" and cell.mode == "online":
            result.live.append(cell.signature)
        elif is_synced(storage, cell, server):
            result.synced.append(cell.signature)
        else:
            result.waiting.append(cell)
    return result


class Sync:
    """Uploads cells of a ledger to the server that W&B is configured for.

    jobs: processes that upload. seconds: at most, for one cell.
    """

    def __init__(
        self, ledger: Ledger, storage: Path, server: str, jobs: int = 4, seconds: float = 120.0
    ) -> None:
        self.ledger, self.storage, self.server = ledger, storage, server
        self.jobs, self.seconds = jobs, seconds
        self._waiting: deque[str] = deque()
        self._stop: str | None = None
        self._lock = threading.Lock()

    def run(self, result: SyncResult, report: Report) -> None:
        """Upload the cells that wait; `report` is called with each cell and its fault, as it ends.

        Raises UserError, before any cell, when nobody is logged in, the server refuses or does not
        answer, or another sync of this storage is at work.
        """
        waiting = f"{len(result.waiting)} cells wait"
        mode.check_reachable(self.server, waiting)
        self._waiting.extend(cell.signature for cell in result.waiting)
        with self._lock_storage(), contextlib.ExitStack() as end:
            jobs = min(self.jobs, len(result.waiting))
            uploaders = [end.enter_context(contextlib.closing(_Uploader())) for _ in range(jobs)]
            if (fault := self._check_server(uploaders[0])) is not None:
                raise UserError(f"W&B: {waiting}, but {fault}")
            with ThreadPoolExecutor(jobs) as pool:
                upload = [pool.submit(self._upload_cells, u, result, report) for u in uploaders]
                try:
                    for future in upload:
                        future.result()
                except BaseException:  # Ctrl-C: unfinished uploads are repeated by the next sync
                    self._stop = "interrupted"
                    end.close()
                    raise
        result.faults |= dict.fromkeys(self._waiting, f"not tried: {self._stop}")

    def _upload_cells(self, uploader: "_Uploader", result: SyncResult, report: Report) -> None:
        place = {"ledger": str(self.ledger.store.root), "storage": str(self.storage)}
        while self._stop is None and (signature := self._next_cell()) is not None:
            cell = {"signature": signature, "server": self.server, **place}
            fault = uploader.ask("upload", self.seconds, **cell)
            with self._lock:
                if fault is None:
                    result.uploaded.append(signature)
                else:
                    result.faults[signature] = fault
                report(signature, fault)
            if fault is not None and self._stop is None and self._waiting:
                self._stop = self._check_server(uploader)

    def _next_cell(self) -> str | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _check_server(self, uploader: "_Uploader") -> str | None:
        """Why no cell can be uploaded now, and the cure."""
        fault = uploader.ask("check", CHECK_SECONDS)
        if fault is None:
            return None
        if any(sign in fault for sign in REFUSALS):
            return f"{self.server} refuses the login; run `wandb login --relogin`"
        return f"{self.server} does not answer as W&B does ({fault}); run it again when it does"

    @contextlib.contextmanager
    def _lock_storage(self) -> Iterator[None]:
        """Two syncs at once would both send the same cells."""
        path = self.storage / "wandb" / "sync.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"{path}: another sync is at work; wait for it") from error
            yield


class _Uploader:
    """A process that uploads, replaced after a fault."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._is_closed = False

    def ask(self, do: str, seconds: float, **values: Any) -> str | None:
        """Why a request could not be carried out within the time; None when it was."""
        try:
            if self._child is None and not self._is_closed:
                self._child = Child("upload")
                self._child.ask("start", START_SECONDS)
            if self._child is None:
                return "interrupted"
            self._child.ask(do, seconds, **values)
        except (TrackingError, OSError) as error:
            self._kill_child()
            return str(error)
        return None

    def close(self) -> None:
        """End the process, also while it uploads."""
        self._is_closed = True
        self._kill_child()

    def _kill_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
