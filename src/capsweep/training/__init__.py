"""The training of one cell, from its configuration to its result.

This module has the hooks with which a caller follows a run and ends the run early. The drivers of
sweeps import this module, so it does not import torch.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]  # a row of metrics.jsonl (one epoch) or of steps.jsonl (several steps)


class StopFlag:
    """A flag that the first SIGTERM sets; a second SIGTERM ends the process.

    Slurm, for example, sends SIGTERM before it ends a job. The flag is never cleared, so all later
    cells of the process end early too.
    """

    def __init__(self) -> None:
        self.is_set = False

    @contextmanager
    def handling_sigterm(self) -> Iterator[None]:
        """Let SIGTERM set the flag in the `with` block; restore the old handler after the block."""
        before = signal.getsignal(signal.SIGTERM)
        self.install_handler()
        try:
            yield
        finally:
            _set_handler(before)

    def install_handler(self) -> None:
        """Replace the handler of SIGTERM, such as Lightning's, with a handler that sets the flag.

        If the flag is set already, the handler is not replaced. Outside the main thread, this
        method does nothing, because Python can set signal handlers only in the main thread.
        """
        if not self.is_set:
            _set_handler(self._on_sigterm)

    def _on_sigterm(self, *_: object) -> None:
        self.is_set = True
        os.write(2, b"SIGTERM: this run ends after its epoch; a second SIGTERM ends it at once\n")
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
        on_epoch: Called after each epoch with the row of this epoch. If the call returns True, the
            run writes a checkpoint and ends. After the last epoch, the returned value is ignored.
        stop_flag: If this flag is set before the last epoch begins, the run writes a checkpoint
            after the current epoch and ends. None: the run does not handle SIGTERM.
    """

    on_epoch: Callable[[Row], object] = _ignore
    stop_flag: StopFlag | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether SIGTERM has set `stop_flag`."""
        return self.stop_flag is not None and self.stop_flag.is_set
