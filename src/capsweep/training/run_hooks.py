"""What a run reports, and how it is asked to stop. Drivers import this: it imports no torch."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

Row = dict[str, Any]  # of metrics.jsonl: one epoch


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
            if _is_main_thread():
                signal.signal(signal.SIGTERM, before)

    def install_handler(self) -> None:
        """Take SIGTERM over, from Lightning too. Only a main thread can."""
        if _is_main_thread() and not self.is_set:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, *_: object) -> None:
        self.is_set = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class NoStopFlag(StopFlag):
    """SIGTERM ends the process at once. Lightning's own handler would call the other devices from
    inside the handler, which then wait for ever.
    """

    def install_handler(self) -> None:
        """Give SIGTERM its default effect."""
        if _is_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True)
class RunHooks:
    """What a run calls, always in the process that holds the cell.

    on_epoch: gets every epoch's row; it returns True to end the run after that epoch, with a
    checkpoint. on_resume: gets each row of the earlier run that this one continues, since the first
    call may have been lost. check_lease: raises ClaimLostError when another process has taken the
    cell over; called before an epoch is written. stop_flag: SIGTERM ends the run as on_epoch can.
    """

    on_epoch: Callable[[Row], object] = _ignore
    on_resume: Callable[[Row], object] = _ignore
    check_lease: Callable[[], object] = _ignore
    stop_flag: StopFlag | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether SIGTERM has come."""
        return self.stop_flag is not None and self.stop_flag.is_set

    def with_log(
        self, log: Callable[[Row], object], check_lease: Callable[[], object]
    ) -> "RunHooks":
        """These hooks, for which `log` gets all rows first."""

        def on_epoch(row: Row) -> object:
            log(row)
            return self.on_epoch(row)

        return replace(self, on_epoch=on_epoch, on_resume=log, check_lease=check_lease)
