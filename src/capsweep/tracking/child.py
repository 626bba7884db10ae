"""A process that speaks to W&B, as its parent sees it: writing to it never blocks.

Requests and answers are lines of JSON through non-blocking pipes; the parent waits for an answer
only as long as it chooses.
"""

import contextlib
import fcntl
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
from collections.abc import Mapping
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
    kind: what it does; see `process.HANDLERS`.
    """

    def __init__(self, kind: str) -> None:
        # Not below the storage: the path of a socket may have 107 characters at most.
        folder = tempfile.mkdtemp(prefix="capsweep-wandb-")
        garbage.sign_folder(Path(folder))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        package = str(package_files.PACKAGE.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": folder}
        environment.pop("WANDB_SERVICE", None)  # a W&B process that belongs to somebody else
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "capsweep.tracking.process", kind, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        # Space for the epochs of a quick cell while the process starts; less will do.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._received = b""

    def send(self, do: str, **values: Any) -> None:
        """Send a request, without waiting.

        Raises TrackingError when it cannot be sent, and for a fault that came meanwhile.
        """
        self._read_answer(0.0)
        line = json.dumps({"do": do, **values}).encode() + b"\n"
        try:
            sent = os.write(self._to, line)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise TrackingError(self._exit_status()) from error
        if sent < len(line):
            raise TrackingError("W&B does not keep up with the epochs")

    def ask(self, do: str, seconds: float, **values: Any) -> Mapping[str, Any]:
        """Send a request, and how long it may take; its answer.

        Raises TrackingError for a fault, and where no answer comes within the time.
        """
        deadline = time.monotonic() + seconds
        self.send(do, seconds=seconds, **values)
        while (left := deadline - time.monotonic()) > 0:
            if (answer := self._read_answer(left)) is not None:
                return answer
        raise TrackingError("W&B did not answer in time")

    def end(self) -> None:
        """Let it end by itself, for a moment; then kill it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it at once, with W&B's own process, by their ids."""
        if self.process.poll() is None:
            kill_tree(self.process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a dead file system
            self.process.wait(KILL_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
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
        answer = json.loads(line)
        if "fault" in answer:
            raise TrackingError(mode.without_keys(answer["fault"]))
        return answer

    def _exit_status(self) -> str:
        return f"the process that speaks to W&B ended (status {self.process.poll()})"


def kill_tree(pid: int) -> None:
    """Kill a process and all below it, each by its id: W&B's own starts a session of its own."""
    for process in [*list_descendants(pid), pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def list_descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    descendants, waiting = [], [pid]
    while waiting:
        waiting += (more := children.get(waiting.pop(), []))
        descendants += more
    return descendants
