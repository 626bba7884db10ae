"""Upload what W&B does not have: cells in parallel, each once, in bounded time."""

import contextlib
import fcntl
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from capsweep.errors import DamageError, UserError
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.tracking import mode
from capsweep.tracking.child import Child, TrackingError
from capsweep.tracking.content import Content, is_synced, read_content

START_SECONDS = 30.0  # the first import of W&B from a cold disk
CHECK_SECONDS = 3.0
LOCK_SECONDS = 5.0  # a sync that was killed leaves processes behind for a moment
UNTRIED = "not tried"
REFUSALS = ("AuthenticationError", "401", "403", "this login")  # in messages of W&B's client

Report = Callable[[str, str | None], object]


@dataclass
class SyncResult:
    """Signatures of uploaded cells, and why others are not uploaded."""

    uploaded: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    def count_causes(self) -> list[tuple[str, int]]:
        """Faults with how many cells have each, the most frequent first."""
        return Counter(self.faults.values()).most_common()


@dataclass(frozen=True)
class SyncState:
    """Cells to upload; signatures that are synced, or live: running and sending their own rows.

    damaged: what is wrong with the files of others, by signature.
    """

    cells: tuple[Content, ...]
    synced: tuple[str, ...]
    live: tuple[str, ...]
    damaged: Mapping[str, str]


def find_unsynced(
    ledger: Ledger, storage: Path, server: str, signatures: Sequence[str]
) -> SyncState:
    """What the server lacks of these cells, by their marks alone, without asking the server.

    Cells that were not tracked with W&B do not count.
    """
    damaged: dict[str, str] = {}

    def read(signature: str) -> Content | None:
        try:
            return read_content(ledger, signature)
        except DamageError as error:
            damaged[signature] = str(error)
            return None

    with ThreadPoolExecutor(READERS if ledger.disk is None else 1) as pool:
        cells = [cell for cell in pool.map(read, signatures) if cell is not None]
    unsynced, synced, live = [], [], []
    for cell in cells:
        if cell.project is None or cell.status == "missing":
            continue
        if cell.status == "running" and cell.mode == "online":
            live.append(cell.signature)
        elif is_synced(storage, cell, server):
            synced.append(cell.signature)
        else:
            unsynced.append(cell)
    return SyncState(tuple(unsynced), tuple(synced), tuple(live), damaged)


class Sync:
    """Uploads cells of a ledger to the server that W&B is configured for.

    jobs: processes that upload. seconds: at most, for one cell.
    """

    def __init__(
        self, ledger: Ledger, storage: Path, server: str, jobs: int = 4, seconds: float = 120.0
    ) -> None:
        self.ledger, self.storage, self.server = ledger, storage, server
        self.jobs, self.seconds = jobs, seconds
        self.result = SyncResult()
        self._folder = storage / "wandb" / "uploading"  # W&B's own files; removed at the end
        self._waiting: deque[str] = deque()
        self._stop: str | None = None
        self._lock = threading.Lock()

    def run(self, cells: Sequence[Content], report: Report) -> SyncResult:
        """Upload them; `report` is called with each cell and its fault, as it ends.

        Raises UserError, before any cell, when nobody is logged in, the server refuses or does not
        answer, or another sync of this storage is at work.
        """
        if not mode.has_login(self.server):
            waiting = f"{len(cells)} cells wait, but nobody is logged in at {self.server}"
            raise UserError(f"W&B: {waiting}; run `wandb login`")
        if mode.is_unreachable(self.server):
            waiting = f"{len(cells)} cells wait, but nobody answers at {self.server}"
            raise UserError(f"W&B: {waiting}; run it again when somebody does")
        self._waiting.extend(cell.signature for cell in cells)
        with self._lock_storage() as lock, contextlib.ExitStack() as end:
            jobs = min(self.jobs, len(cells))
            uploaders = [end.enter_context(_Uploader(lock)) for _ in range(jobs)]
            if (fault := self._check_server(uploaders[0])) is not None:
                raise UserError(f"W&B: {len(cells)} cells wait, but {fault}")
            with ThreadPoolExecutor(jobs) as pool:
                work = [pool.submit(self._upload_cells, one, report) for one in uploaders]
                try:
                    for one in work:
                        one.result()
                except BaseException:  # Ctrl-C: unfinished uploads are repeated by the next sync
                    self._stop = "interrupted"
                    end.close()
                    raise
        for signature in self._waiting:
            self.result.faults[signature] = f"{UNTRIED}: {self._stop}"
        return self.result

    def _upload_cells(self, uploader: "_Uploader", report: Report) -> None:
        while self._stop is None and (signature := self._next_cell()) is not None:
            fault = uploader.send_request("send", self.seconds, **self._cell_request(signature))
            with self._lock:
                if fault is None:
                    self.result.uploaded.append(signature)
                else:
                    self.result.faults[signature] = fault
                report(signature, fault)
            if fault is not None and self._stop is None and self._waiting:
                self._stop = self._check_server(uploader)

    def _next_cell(self) -> str | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _cell_request(self, signature: str) -> dict[str, Any]:
        return {
            "signature": signature,
            "ledger": str(self.ledger.store.root),
            "storage": str(self.storage),
            "server": self.server,
            "folder": str(self._folder),
        }

    def _check_server(self, uploader: "_Uploader") -> str | None:
        """Why no cell can be uploaded now, and the cure."""
        fault = uploader.send_request("check", CHECK_SECONDS)
        if fault is None:
            return None
        if any(sign in fault for sign in REFUSALS):
            return f"{self.server} refuses the login; run `wandb login --relogin`"
        return f"{self.server} does not answer as W&B does ({fault}); run it again when it does"

    @contextlib.contextmanager
    def _lock_storage(self) -> Iterator[int]:
        """Hold the lock of the storage, and its folder of uploads: two syncs at once would both
        send the same cells."""
        path = self.storage / "wandb" / "sync.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise UserError(f"{path}: another sync is at work; wait for it") from error
                    time.sleep(0.1)
            shutil.rmtree(self._folder, ignore_errors=True)  # of a sync that was killed
            self._folder.mkdir()
            try:
                yield file.fileno()
            finally:
                shutil.rmtree(self._folder, ignore_errors=True)


class _Uploader:
    """Drives one process of `upload`, and replaces it after a fault. lock: a file it shares."""

    def __init__(self, lock: int) -> None:
        self._lock = lock
        self._child: Child | None = None
        self._is_over = False

    def __enter__(self) -> "_Uploader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._kill_child()

    def send_request(self, do: str, seconds: float, **what: Any) -> str | None:
        """Why a request could not be carried out within the time; None when it was."""
        if self._is_over:
            return "interrupted"
        began = None
        try:
            child = self._start_child()
            child.send(do, seconds=seconds, **what)
            began = time.monotonic()
            child.wait_for_answer(began + seconds)
        except (TrackingError, OSError) as error:
            self._kill_child()
            if began is not None and time.monotonic() - began >= seconds:
                return f"it took longer than {seconds:g} s"
            return str(error)
        return None

    def _start_child(self) -> Child:
        if self._child is None:
            self._child = Child("capsweep.tracking.upload", inherits=(self._lock,))
            self._child.wait_for_answer(time.monotonic() + START_SECONDS)
        return self._child

    def _kill_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def mark_offline_runs(storage: Path, signatures: Collection[str]) -> None:
    """Make W&B's own `wandb sync` skip the offline runs of these cells.

    wandb 0.31 skips a run's file RUN.wandb beside which RUN.wandb.synced stands.
    """
    for file in _offline_runs(storage):
        if file.stem.removeprefix("run-") in signatures:
            file.with_suffix(".wandb.synced").touch()


def unknown_offline_runs(storage: Path, ledger: Ledger) -> list[Path]:
    """Offline runs, not yet uploaded, of which the ledger has no cell."""
    return [
        file.parent
        for file in _offline_runs(storage)
        if not file.with_suffix(".wandb.synced").exists()
        and not _is_known(ledger, file.stem.removeprefix("run-"))
    ]


def _offline_runs(storage: Path) -> list[Path]:
    return sorted((storage / "wandb").glob("offline-run-*/run-*.wandb"))


def _is_known(ledger: Ledger, signature: str) -> bool:
    try:
        return bool(ledger.read_provenance(signature))
    except DamageError:
        return True
