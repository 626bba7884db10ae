"""The training of one cell, from its configuration to its result.

This module has the hooks with which a caller follows a run and ends the run early. The drivers of
sweeps import this module, so it does not import torch.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]  # a line of metrics.jsonl (one epoch) or of steps.jsonl (some steps)


class StopFlag:
    """A flag that the first SIGTERM sets; a second SIGTERM ends the process.

    Slurm, for example, sends SIGTERM before it takes a node back. Once set, the flag stays set
    for all later cells of the process.
    """

    def __init__(self) -> None:
        self.is_set = False

    @contextmanager
    def handling_sigterm(self) -> Iterator[None]:
        """Let SIGTERM set the flag inside the block, and then restore the earlier handler."""
        before = signal.getsignal(signal.SIGTERM)
        self.install_handler()
        try:
            yield
        finally:
            _set_handler(before)

    def install_handler(self) -> None:
        """Let SIGTERM set the flag, in place of an earlier handler such as Lightning's.

        If the flag is set already, the handler is not changed. Outside the main thread, this method
        does nothing, because Python can set signal handlers only in the main thread.
        """
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
    """Hooks with which the caller of a run follows the epochs and ends the run early.

    Attributes:
        on_epoch: Receives the row of each epoch. If it returns True, the run keeps a checkpoint and
            ends after that epoch.
        stop_flag: If this flag is set, the run also keeps a checkpoint and ends after the current
            epoch. None: the run does not handle SIGTERM.
    """

    on_epoch: Callable[[Row], object] = _ignore
    stop_flag: StopFlag | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether SIGTERM was received."""
        return self.stop_flag is not None and self.stop_flag.is_set
