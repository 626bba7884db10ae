"""What a run calls, and how it is asked to stop. Drivers import this: it imports no torch."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]  # of metrics.jsonl: one epoch


@contextmanager
def handling_sigterm(handler: Any) -> Iterator[None]:
    """Handle SIGTERM while the block lasts. Only a main thread can."""
    before = signal.getsignal(signal.SIGTERM)
    _set_handler(handler)
    try:
        yield
    finally:
        _set_handler(before)


def _set_handler(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


class StopFlag:
    """Set by the first SIGTERM, such as Slurm's before it takes a node; a second one ends the
    process. It stays set between cells.
    """

    def __init__(self) -> None:
        self.is_set = False

    @contextmanager
    def handling_sigterm(self) -> Iterator[None]:
        """Handle SIGTERM while the block lasts."""
        with handling_sigterm(signal.getsignal(signal.SIGTERM)):
            self.install_handler()
            yield

    def install_handler(self) -> None:
        """Take SIGTERM over, from Lightning too. Only a main thread can."""
        if not self.is_set:
            _set_handler(self._on_sigterm)

    def _on_sigterm(self, *_: object) -> None:
        self.is_set = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class RankStopFlag(StopFlag):
    """Of one of several devices. SIGTERM ends it at once, or is left to the process that holds the
    cell, since Slurm sends it to all. Lightning's handler would call the other devices from inside
    the handler, which then wait for ever.
    """

    def __init__(self, holder_stops: bool) -> None:
        super().__init__()
        self.handler = signal.SIG_IGN if holder_stops else signal.SIG_DFL

    def install_handler(self) -> None:
        """Take SIGTERM over."""
        _set_handler(self.handler)


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True)
class RunHooks:
    """What a run calls, always in the process that holds the cell.

    on_epoch: gets every epoch's row; it returns True to end the run after that epoch, with a
    checkpoint. on_resume: gets each row of the earlier run that this one continues, since the first
    call may have been lost. on_checkpoint: the checkpoint was renewed. check_lease: raises
    ClaimLostError when another process has taken the cell over; called before an epoch is written.
    stop_flag: SIGTERM ends the run as on_epoch can.
    """

    on_epoch: Callable[[Row], object] = _ignore
    on_resume: Callable[[Row], object] = _ignore
    on_checkpoint: Callable[[], object] = _ignore
    check_lease: Callable[[], object] = _ignore
    stop_flag: StopFlag | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether SIGTERM has come."""
        return self.stop_flag is not None and self.stop_flag.is_set
