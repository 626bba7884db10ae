"""SIGTERM as a notice: of a job of Slurm, say, whose nodes are soon taken."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Notice:
    """Heard once; a second SIGTERM ends the process. given: from then on, also between cells."""

    def __init__(self) -> None:
        self.given = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block lasts."""
        before = signal.getsignal(signal.SIGTERM)
        self.hear()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    def hear(self) -> None:
        """Listen. Only a main thread can; and Lightning may have put its own handler there."""
        if threading.current_thread() is threading.main_thread() and not self.given:
            signal.signal(signal.SIGTERM, self._on_notice)

    def _on_notice(self, *_: object) -> None:
        self.given = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Ends(Notice):
    """SIGTERM that is no notice: it ends the process at once. Lightning would speak to the other
    devices from inside its handler, which then wait for what is never said.
    """

    def hear(self) -> None:
        """See Notice."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
