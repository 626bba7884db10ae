"""The tracking process, from the side of the process that trains: asked, and never waited for.

Messages are lines of JSON through a pipe that is never waited for; an answer is waited for only as
long as the caller says.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from capsweep.config import roots
from capsweep.ledger import owned
from capsweep.tracking import mode

PIPE_BYTES = 2**20
END_SECONDS = 1.0
KILL_SECONDS = 0.5


class TrackingError(Exception):
    """What W&B could not do, in one line."""


class Child:
    """A process of its own, in a session of its own: no Ctrl-C of a terminal reaches it.

    It imports W&B, so that the process that trains does not. What W&B leaves in temporary folders
    and sockets when it is killed is in a folder of this process alone, and goes with it.
    module: what it runs; see `tidy`. inherits: open files, by number, that are its too. cells: how
    many it has tracked well.
    """

    def __init__(
        self, module: str = "capsweep.tracking.process", inherits: Collection[int] = ()
    ) -> None:
        home = str(roots.PACKAGE.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        # Not below the storage: the path of a socket may have 107 characters at most.
        place = tempfile.mkdtemp(prefix="capsweep-wandb-")
        owned.sign(Path(place))
        self._tidy = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment() | {"PYTHONPATH": path, "TMPDIR": place},
            pass_fds=inherits,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        _widen(self._to)
        self._heard = b""
        self.cells = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, do: str, **what: Any) -> None:
        """Ask for something, without waiting. Raises TrackingError when it cannot be asked."""
        line = json.dumps({"do": do, **what}).encode() + b"\n"
        try:
            sent = os.write(self._to, line)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise TrackingError(self._ended()) from error
        if sent < len(line):
            raise TrackingError("W&B does not keep up with the epochs")

    def check(self) -> None:
        """Raises TrackingError for a fault that was told meanwhile. Does not wait."""
        self._hear(0.0)

    def answer(self, deadline: float) -> Mapping[str, Any]:
        """What `finish` is answered by. deadline: of time.monotonic(); then, or when something
        failed, TrackingError is raised."""
        while (seconds := deadline - time.monotonic()) > 0:
            if (found := self._hear(seconds)) is not None:
                return found
        raise TrackingError("W&B did not take the whole run in time")

    def end(self) -> None:
        """Let it end by itself, for a moment; then kill it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def kill(self) -> None:
        """End it at once, with W&B's own process, by their ids."""
        if self._process.poll() is None:
            kill_tree(self._process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a dead file system
            self._process.wait(KILL_SECONDS)
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._tidy()

    def _hear(self, seconds: float) -> Mapping[str, Any] | None:
        """The next answer; None when there is none within the time, or only part of one."""
        if b"\n" not in self._heard:
            poll = select.poll()
            poll.register(self._from, select.POLLIN)
            if not poll.poll(seconds * 1000):
                return None
            found = os.read(self._from, PIPE_BYTES)
            if not found:
                raise TrackingError(self._ended())
            self._heard += found
        line, newline, rest = self._heard.partition(b"\n")
        if not newline:
            return None
        self._heard = rest
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise TrackingError(f"the process that speaks to W&B says {line[:80]!r}") from error
        if answer["fault"] is not None:
            raise TrackingError(mode.without_keys(answer["fault"]))
        return answer

    def _ended(self) -> str:
        return f"the process that speaks to W&B ended (status {self._process.poll()})"


def _environment() -> dict[str, str]:
    """Ours, without the address of a process of W&B's that somebody else has started, and ends."""
    return {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}


def tidy() -> None:
    """In a process that a Child started: remove its temporary folder. Where the Child is gone,
    nobody else does."""
    shutil.rmtree(sys.argv[1], ignore_errors=True)


def kill_tree(pid: int) -> None:
    """Kill a process and all below it, each by its id: W&B's own starts a session of its own."""
    for one in [*_below(pid), pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    """Processes that were started by `pid`, or by those; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        waiting += (more := children.get(waiting.pop(), []))
        found += more
    return found


def _widen(pipe: int) -> None:
    """Room for the epochs of a quick cell while the process starts; less will do."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
