"""One cell, from configuration to result; here what its caller is told, and how he ends it early.

Drivers import this: it knows no torch.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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


def _ignore(row: Row) -> None:
    return None


@dataclass(frozen=True)
class RunHooks:
    """What the caller of a run is told, and how it ends the run early.

    on_epoch: gets each epoch's row; it returns True to end the run after that epoch, with a
        checkpoint.
    stop_flag: SIGTERM ends the run as on_epoch can.
    """

    on_epoch: Callable[[Row], object] = _ignore
    stop_flag: StopFlag | None = None

    @property
    def is_stopping(self) -> bool:
        """Return whether SIGTERM has come."""
        return self.stop_flag is not None and self.stop_flag.is_set
