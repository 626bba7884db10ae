"""Upload what W&B does not have: cells in parallel, each once, in bounded time."""

import fcntl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsweep.errors import DamageError, UserError
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.runtime.terminal import count_of
from capsweep.tracking import mode
from capsweep.tracking.content import RunContent, is_synced, read_content
from capsweep.tracking.tracker import Child, TrackingError

START_SECONDS = 30.0  # the first import of W&B from a cold disk
CHECK_SECONDS = 3.0

Report = Callable[[str, str | None], object]


@dataclass
class SyncResult:
    """Signatures of cells by what W&B has of them.

    waiting: cells to upload. live: running cells that send their rows themselves. faults: why
    cells are not uploaded, by signature.
    """

    waiting: list[RunContent] = field(default_factory=list)
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

    def read_cell(signature: str) -> RunContent | None:
        try:
            return read_content(ledger, signature)
        except DamageError as error:
            result.faults[signature] = str(error)
            return None

    with ThreadPoolExecutor(READERS if ledger.disk is None else 1) as pool:
        cells = list(pool.map(read_cell, signatures))
    for cell in cells:
        if cell is None or cell.run["project"] is None or cell.status == "missing":
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
        self.storage, self.server, self.jobs, self.seconds = storage, server, jobs, seconds
        self._place = {"ledger": str(ledger.store.root), "storage": str(storage), "server": server}
        self._children: list[Child] = []  # all that were started
        self._idle: list[Child] = []
        self._stop: str | None = None

    def run(self, result: SyncResult, report: Report) -> None:
        """Upload the cells that wait; `report` is called with each and its fault, in their order.

        Raises UserError, before any cell, when nobody is logged in, the server refuses or does not
        answer, or another sync of this storage is at work.
        """
        count = f"{count_of(len(result.waiting), 'cell')} not uploaded"
        signatures = [cell.signature for cell in result.waiting]
        mode.check_reachable(self.server, count)
        lock = self.storage / "wandb" / "sync.lock"  # two at once would both send the same cells
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("ab") as file, ThreadPoolExecutor(self.jobs) as pool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (fault := self._check_server()) is not None:
                    raise UserError(f"W&B: {count}, but {fault}")
                faults = pool.map(self._upload_cell, signatures)
                for signature, fault in zip(signatures, faults, strict=True):
                    if fault is None:
                        result.uploaded.append(signature)
                    else:
                        result.faults[signature] = fault
                    report(signature, fault)
            except BlockingIOError as error:
                raise UserError(f"{lock}: another sync is at work; wait for it") from error
            finally:  # also at Ctrl-C: unfinished uploads are repeated by the next sync
                self._stop = "interrupted"
                for child in self._children:
                    child.kill()

    def _upload_cell(self, signature: str) -> str | None:
        """Why the cell could not be uploaded; None when it was."""
        if self._stop is not None:
            return f"not tried: {self._stop}"
        fault = self._ask_child("upload", self.seconds, signature=signature, **self._place)
        if fault is not None and self._stop is None:
            self._stop = self._check_server()
        return fault

    def _check_server(self) -> str | None:
        """Why no cell can be uploaded now, and the cure."""
        fault = self._ask_child("check", CHECK_SECONDS)
        cure = "run `wandb login --relogin` if it refuses the login, else try again later"
        return None if fault is None else f"{self.server} refuses or is silent ({fault}); {cure}"

    def _ask_child(self, do: str, seconds: float, **values: Any) -> str | None:
        """Why a request could not be carried out within the time, and then its process is ended;
        None when it was."""
        try:
            child = self._idle.pop()
        except IndexError:
            child = Child("upload")
            self._children.append(child)
            if self._stop == "interrupted":  # as it was started
                child.kill()
        try:
            child.ask("start", START_SECONDS)
            child.ask(do, seconds, **values)
        except (TrackingError, OSError) as error:
            child.kill()
            return str(error)
        self._idle.append(child)
        return None
