"""A file that HDF5 writes to, and that never refuses; and signals that wait until it is closed.

HDF5 crashes the process when a write fails while it closes a file (a full disk), and so it may when
a handler of a signal raises inside one of its calls. Both are kept here until HDF5 is done.
"""

import io
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any


class Sink:
    """A new file for `h5py.File(sink)`. fault: why something was not written; None: all was.

    Raises OSError when it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._raw: io.FileIO = path.open("x+b", buffering=0)
        self.fault: OSError | None = None
        self.seek, self.tell = self._raw.seek, self._raw.tell
        self.read, self.close, self.fileno = self._raw.read, self._raw.close, self._raw.fileno

    def readinto(self, buffer: Any) -> int:
        """What HDF5 reads is its own, of the same session."""
        return self._raw.readinto(buffer)

    def write(self, data: Any) -> int:
        """All of it; after the first fault nothing."""
        left = memoryview(data)
        while len(left) and self.fault is None:
            try:
                left = left[self._raw.write(left) :]
            except OSError as error:
                self.fault = error
        return len(data)

    def truncate(self, size: int) -> None:
        """Cut, or lengthen, the file."""
        try:
            self._raw.truncate(size)
        except OSError as error:
            self.fault = self.fault or error

    def flush(self) -> None:
        """Nothing is buffered here."""

    def check(self) -> None:
        """Raise the OSError that there was."""
        if self.fault is not None:
            raise self.fault


class LateSignals:
    """Ctrl-C and SIGTERM that come within the block are acted on at its end.

    asked: whether one came, so that the block can end early.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return bool(self._came)

    def __enter__(self) -> "LateSignals":
        if threading.current_thread() is threading.main_thread():  # handlers run in no other
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for number in self._came[:1]:
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
