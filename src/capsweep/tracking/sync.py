"""Upload what W&B does not have: cells in parallel, each once, in bounded time."""

import contextlib
import fcntl
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsweep.errors import DamageError, UserError
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.tracking import content, marks, mode
from capsweep.tracking.content import Content
from capsweep.tracking.uploader import Uploader

CHECK_SECONDS = 3.0
LOCK_SECONDS = 5.0  # a sync that was killed leaves processes behind for a moment
UNTRIED = "not tried"
REFUSALS = ("AuthenticationError", "401", "403", "this login")  # in what W&B's client says


@dataclass(frozen=True)
class How:
    """What the person chose: processes, seconds for a cell."""

    jobs: int = 4
    seconds: float = 120.0


@dataclass
class Ended:
    """How it went: signatures uploaded, and why others are not."""

    uploaded: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    def causes(self) -> list[tuple[str, int]]:
        """Faults with how many cells have each, the most frequent first."""
        return Counter(self.faults.values()).most_common()


@dataclass(frozen=True)
class Due:
    """Cells to upload, and which are tracked: there already, or being sent as they run. damaged:
    what is wrong with the files of others, by signature.
    """

    cells: tuple[Content, ...]
    synced: tuple[str, ...]
    live: tuple[str, ...]
    damaged: Mapping[str, str]


def find(ledger: Ledger, storage: Path, server: str, signatures: Sequence[str]) -> Due:
    """What the server lacks of these cells, by their marks alone; it is asked nothing.

    Cells that were not tracked with W&B do not count.
    """
    damaged: dict[str, str] = {}

    def known(signature: str) -> Content | None:
        try:
            return content.of(ledger, signature)
        except DamageError as error:
            damaged[signature] = str(error)
            return None

    with ThreadPoolExecutor(READERS if ledger.disk is None else 1) as pool:
        found = [cell for cell in pool.map(known, signatures) if cell is not None]
    tracked = [cell for cell in found if cell.project is not None and cell.status != "missing"]
    due, synced, live = [], [], []
    for cell in tracked:
        if cell.status == "running" and cell.mode == "online":
            live.append(cell)
        else:
            (synced if marks.is_synced(storage, cell, server) else due).append(cell)
    return Due(tuple(due), _names(synced), _names(live), damaged)


def _names(cells: Sequence[Content]) -> tuple[str, ...]:
    return tuple(cell.signature for cell in cells)


class Sync:
    """Uploads cells of a ledger to the server that W&B is configured for."""

    def __init__(self, ledger: Ledger, storage: Path, server: str, how: How) -> None:
        self.ledger, self.storage, self.server, self.how = ledger, storage, server, how
        self.ended = Ended()
        self._folder = storage / "wandb" / "uploading"  # what W&B writes meanwhile; then it goes
        self._waiting: deque[str] = deque()
        self._stop: str | None = None
        self._lock = threading.Lock()

    def run(self, cells: Sequence[Content], told: Callable[[str, str | None], object]) -> Ended:
        """Upload them; `told` hears of each cell and its fault, as it ends.

        Raises UserError, before any cell, when nobody is logged in, the server refuses or does not
        answer, or another sync of this storage is at work.
        """
        if not mode.has_login(self.server):
            waiting = f"{len(cells)} cells wait, but nobody is logged in at {self.server}"
            raise UserError(f"W&B: {waiting}; run `wandb login`")
        if mode.is_unreachable(self.server):
            waiting = f"{len(cells)} cells wait, but nobody answers at {self.server}"
            raise UserError(f"W&B: {waiting}; run it again when somebody does")
        self._waiting.extend(_names(cells))
        with self._alone() as lock, contextlib.ExitStack() as end:
            jobs = min(self.how.jobs, len(cells))
            uploaders = [end.enter_context(Uploader(inherits=(lock,))) for _ in range(jobs)]
            if (fault := self._check(uploaders[0])) is not None:
                raise UserError(f"W&B: {len(cells)} cells wait, but {fault}")
            with ThreadPoolExecutor(jobs) as pool:
                work = [pool.submit(self._work, uploader, told) for uploader in uploaders]
                try:
                    for one in work:
                        one.result()
                except BaseException:  # Ctrl-C: what is being sent is sent again another time
                    self._stop = "interrupted"
                    end.close()
                    raise
        for signature in self._waiting:
            self.ended.faults[signature] = f"{UNTRIED}: {self._stop}"
        return self.ended

    def _work(
        self,
        uploader: Uploader,
        told: Callable[[str, str | None], object],
    ) -> None:
        while self._stop is None and (signature := self._next()) is not None:
            fault = uploader.ask("send", self.how.seconds, **self._request(signature))
            with self._lock:
                if fault is None:
                    self.ended.uploaded.append(signature)
                else:
                    self.ended.faults[signature] = fault
                told(signature, fault)
            if fault is not None and self._stop is None and self._waiting:
                self._stop = self._check(uploader)

    def _next(self) -> str | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _request(self, signature: str) -> dict[str, Any]:
        return {
            "signature": signature,
            "ledger": str(self.ledger.store.root),
            "storage": str(self.storage),
            "server": self.server,
            "folder": str(self._folder),
        }

    def _check(self, uploader: Uploader) -> str | None:
        """Why no cell can be uploaded now, and the cure."""
        fault = uploader.ask("check", CHECK_SECONDS)
        if fault is None:
            return None
        if any(sign in fault for sign in REFUSALS):
            return f"{self.server} refuses the login; run `wandb login --relogin`"
        return f"{self.server} does not answer as W&B does ({fault}); run it again when it does"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[int]:
        """Two syncs at once would each send what the other is sending."""
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


def mark_offline_runs(storage: Path, signatures: Sequence[str]) -> None:
    """Tell W&B's own `wandb sync` that it need not upload these cells' offline runs.

    wandb 0.31 skips a run's file RUN.wandb beside which RUN.wandb.synced stands.
    """
    there = set(signatures)
    for file in (storage / "wandb").glob("offline-run-*/run-*.wandb"):
        if file.stem.removeprefix("run-") in there:
            file.with_suffix(".wandb.synced").touch()


def unknown_offline_runs(storage: Path, ledger: Ledger) -> list[Path]:
    """Offline runs, not yet uploaded, of which the ledger has no cell."""
    return [
        file.parent
        for file in sorted((storage / "wandb").glob("offline-run-*/run-*.wandb"))
        if not file.with_suffix(".wandb.synced").exists()
        and not _is_known(ledger, file.stem.removeprefix("run-"))
    ]


def _is_known(ledger: Ledger, signature: str) -> bool:
    try:
        return bool(ledger.provenance(signature))
    except DamageError:
        return True
