"""A process that speaks to W&B, as its parent sees it: writing to it never blocks.

Messages are lines of JSON through a non-blocking pipe; the parent waits for an answer only as long
as it chooses. `private_pipe` and `remove_folder` are for the other side.
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

from capsweep.config import package_files
from capsweep.ledger import garbage
from capsweep.tracking import mode

PIPE_BYTES = 2**20
END_SECONDS = 1.0
KILL_SECONDS = 0.5


class TrackingError(Exception):
    """What W&B could not do, in one line."""


class Child:
    """A process of its own, in a session of its own: no Ctrl-C of a terminal reaches it.

    It imports W&B, so that the process that trains does not. Temporary files and sockets of W&B
    are in a folder of this process alone, which is removed with it.
    module: what it runs. inherits: open files, by number, that it shares. cells: how many it has
    tracked without a fault.
    """

    def __init__(
        self, module: str = "capsweep.tracking.process", inherits: Collection[int] = ()
    ) -> None:
        home = str(package_files.PACKAGE.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        # Not below the storage: the path of a socket may have 107 characters at most.
        place = tempfile.mkdtemp(prefix="capsweep-wandb-")
        garbage.sign_folder(Path(place))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_child_environment() | {"PYTHONPATH": path, "TMPDIR": place},
            pass_fds=inherits,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        _enlarge_pipe(self._to)
        self._received = b""
        self.cells = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, do: str, **what: Any) -> None:
        """Send a command, without waiting. Raises TrackingError when it cannot be sent."""
        line = json.dumps({"do": do, **what}).encode() + b"\n"
        try:
            sent = os.write(self._to, line)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise TrackingError(self._exit_status()) from error
        if sent < len(line):
            raise TrackingError("W&B does not keep up with the epochs")

    def raise_fault(self) -> None:
        """Raises TrackingError for a fault that it has sent meanwhile. Does not wait."""
        self._read_answer(0.0)

    def wait_for_answer(self, deadline: float) -> Mapping[str, Any]:
        """The next answer. Raises TrackingError for a fault, and at the deadline, which is a time
        of time.monotonic()."""
        while (seconds := deadline - time.monotonic()) > 0:
            if (answer := self._read_answer(seconds)) is not None:
                return answer
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
        self._remove_folder()

    def _read_answer(self, seconds: float) -> Mapping[str, Any] | None:
        """The next answer; None when there is none within the time, or only part of one."""
        if b"\n" not in self._received:
            poll = select.poll()
            poll.register(self._from, select.POLLIN)
            if not poll.poll(seconds * 1000):
                return None
            received = os.read(self._from, PIPE_BYTES)
            if not received:
                raise TrackingError(self._exit_status())
            self._received += received
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        self._received = rest
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise TrackingError(f"the process that speaks to W&B says {line[:80]!r}") from error
        if answer["fault"] is not None:
            raise TrackingError(mode.without_keys(answer["fault"]))
        return answer

    def _exit_status(self) -> str:
        return f"the process that speaks to W&B ended (status {self._process.poll()})"


def _child_environment() -> dict[str, str]:
    """Ours, without the address of a W&B process that belongs to somebody else."""
    return {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}


def remove_folder() -> None:
    """In the started process: remove its temporary folder, which a killed parent cannot do."""
    shutil.rmtree(sys.argv[1], ignore_errors=True)


def private_pipe(number: int) -> int:
    """In the started process: standard input or output under a number that no process of W&B's
    inherits. The old number leads nowhere, as standard error does: what W&B prints is no answer."""
    own = os.dup(number)
    os.dup2(2, number)
    return own


def kill_tree(pid: int) -> None:
    """Kill a process and all below it, each by its id: W&B's own starts a session of its own."""
    for one in [*list_descendants(pid), pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def list_descendants(pid: int) -> list[int]:
    """All descendants of a process; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    below, waiting = [], [pid]
    while waiting:
        waiting += (more := children.get(waiting.pop(), []))
        below += more
    return below


def _enlarge_pipe(pipe: int) -> None:
    """Space for the epochs of a quick cell while the process starts; less will do."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
