"""The way of an epoch's row and of points inside it, and how a run is asked to stop. Drivers
import this: no torch.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsweep.ledger.ledger import METRICS, POINTS

if TYPE_CHECKING:
    from capsweep.ledger.cell_directory import CellDirectory
    from capsweep.ledger.lease import Lease
    from capsweep.tracking.tracker import Tracker

Row = dict[str, Any]  # of metrics.jsonl: one epoch; of steps.jsonl: a point inside it


class StopFlag:
    """Set by the first SIGTERM, such as Slurm's before it takes a node; a second one ends the
    process. It stays set between cells.
    """

    def __init__(self) -> None:
        self.is_set = False

    @contextmanager
    def handling_sigterm(self) -> Iterator[None]:
        """Handle SIGTERM while the block lasts."""
        before = signal.getsignal(signal.SIGTERM)
        self.install_handler()
        try:
            yield
        finally:
            _set_handler(before)

    def install_handler(self) -> None:
        """Take SIGTERM over, from Lightning too. Only a main thread can."""
        if not self.is_set:
            _set_handler(self._on_sigterm)

    def _on_sigterm(self, *_: object) -> None:
        self.is_set = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _set_handler(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True)
class RunHooks:
    """Takes each epoch's row, and points inside it, to the ledger, to W&B and to the caller.

    on_epoch: the caller's; it returns True to end the run after that epoch, with a checkpoint.
    stop_flag: SIGTERM ends the run as on_epoch can. The others are the cell's, once it runs.
    """

    on_epoch: Callable[[Row], object] = _ignore
    stop_flag: StopFlag | None = None
    directory: "CellDirectory | None" = None
    tracker: "Tracker | None" = None
    lease: "Lease | None" = None

    @property
    def is_stopping(self) -> bool:
        """Whether SIGTERM has come."""
        return self.stop_flag is not None and self.stop_flag.is_set

    def check_lease(self) -> None:
        """Raise ClaimLostError when another process has taken the cell over."""
        if self.lease is not None:
            self.lease.raise_if_lost()

    def record_epoch(self, row: Row) -> bool:
        """Whether the caller ends the run after this epoch. The lease is checked before anything is
        written.
        """
        self._record_row(METRICS, row)
        return self.on_epoch(row) is True

    def record_point(self, point: Row) -> None:
        """As `record_epoch`; a point ends no run."""
        self._record_row(POINTS, point)

    def _record_row(self, name: str, row: Row) -> None:
        self.check_lease()
        if self.directory is not None:
            self.directory.append_row(name, row)
        if self.tracker is not None:
            self.tracker.log(row)
