"""A terminal that a process draws on: a real pseudo-terminal, and what stands on it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from interrupts import listen_to_ctrl_c

CODE = re.compile(r"\x1b\[(?P<number>\??[0-9;]*)(?P<letter>[a-zA-Z])|[\r\n]|[^\x1b\r\n]+")
COLUMNS = 250  # so that no line wraps
CTRL_C = b"\x03"


class Screen:
    """A process in a terminal of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", ours: int) -> None:
        self.process, self._ours, self.received = process, ours, ""

    def read_until(self, condition: Callable[[], object], seconds: float) -> None:
        """Read what is drawn until a condition holds, or to the end; fail when neither comes."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited {seconds} s in vain:\n{self.received}"
            if not self._read():
                assert condition(), f"ended before:\n{self.received}"

    def to_the_end(self, seconds: float) -> int:
        """Read all that is left; the exit status."""
        end = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < end, f"has not ended in {seconds} s:\n{self.received}"
        return self.process.wait(5)

    def type(self, keys: bytes) -> None:
        """As a person at this terminal does."""
        os.write(self._ours, keys)

    def lines(self) -> list[str]:
        """What stands there now, without empty lines."""
        return lines(self.received)

    def shows_cursor(self) -> bool:
        """Whether the cursor is visible, as it is at first."""
        return self.received.rfind("\x1b[?25l") <= self.received.rfind("\x1b[?25h")

    def _read(self) -> bool:
        """Take what comes within a moment; False when the other side is closed."""
        if not select.select([self._ours], [], [], 0.1)[0]:
            return True
        try:
            piece = os.read(self._ours, 65536)
        except OSError:  # Linux says EIO where the other side is closed
            return False
        self.received += piece.decode()
        return bool(piece)


def lines(received: str) -> list[str]:
    """What stands on a wide terminal that was sent this, without empty lines."""
    rows, row, column = [""], 0, 0
    for code in CODE.finditer(received):
        text = code[0]
        if text == "\r":
            column = 0
        elif text == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif code["letter"] == "A":
            row -= int(code["number"])
        elif code["letter"] == "K":
            rows[row] = ""
        elif code["letter"] is None:
            kept = rows[row].ljust(column)
            rows[row] = kept[:column] + text + kept[column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in rows if line.strip()]


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Iterator[Screen]:
    """A command with a terminal, whose Ctrl-C it hears."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")
    kept = {name: value for name, value in environment.items() if name not in hidden}

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        listen_to_ctrl_c()

    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"TERM": "xterm", **kept},
        cwd=folder,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        os.close(ours)
        process.kill()
        process.wait()
