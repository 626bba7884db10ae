"""The tracking of a cell with Weights & Biases, in a process beside the training process.

A `Tracker` writes the W&B run of a cell. Another process, a `WandbProcess`, imports W&B and sends
the run. The same process is used for the next cells. Training does not wait while rows are sent. If
W&B is absent, slow or does not answer, a cell takes at most `logger.max_seconds` longer. A fault is
printed once and ends the tracking of the current cell. `capsweep wandb sync` can upload the run of
this cell later.

Requests and answers are lines of JSON in pipes. The parent process never waits while it sends a
request, and decides how long to wait for an answer. The command of the other process is
`python -m capsweep.tracking.tracker FOLDER SECONDS`. FOLDER is for temporary files. If the parent
process dies, the other process has SECONDS to close the run of a `Tracker`, but ends an upload
immediately.
"""

import atexit
import contextlib
import fcntl
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from capsweep.config import package_files
from capsweep.config.cell import Cell
from capsweep.ledger import causes
from capsweep.ledger.ledger import Ledger
from capsweep.runtime import terminal
from capsweep.storage.scratch import make_scratch_prefix
from capsweep.tracking import content, mode
from capsweep.tracking.content import Row

ORPHAN_SECONDS = 30.0  # time limit for closing a run after the parent process has died
PIPE_BYTES = 2**20
KILL_SECONDS = 0.5  # time limit for a killed process to end
MOST_RUNS = 100  # limit of runs of one process; W&B's client keeps 0.25 MB of memory for each run
MOST_FAULTS = 2  # after this number of faults in a row, the training process stops using W&B


class TrackingError(Exception):
    """An error of W&B or of the process that uses W&B. The message has one line."""


class WandbProcess:
    """A separate process that imports W&B, so that the training process does not import W&B.

    The process has its own session, so that Ctrl-C in a terminal does not reach the process. The
    process also has its own folder for W&B's temporary files and sockets. This folder is removed
    when the process ends.

    Args:
        orphan_seconds: How long the process may run after the parent process has died.
    """

    def __init__(self, orphan_seconds: float = 0.0) -> None:
        # The folder is not below the storage, because the path of a socket may have at most 107
        # characters.
        folder = tempfile.mkdtemp(prefix=make_scratch_prefix("capsweep-wandb"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        package = str(package_files.PACKAGE.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = mode.clean_environment() | {"PYTHONPATH": path, "TMPDIR": folder}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "capsweep.tracking.tracker", folder, str(orphan_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        self._pipes = [pipe for pipe in (self.process.stdin, self.process.stdout) if pipe]
        self._to, self._from = (pipe.fileno() for pipe in self._pipes)
        os.set_blocking(self._to, False)
        # With this size, the pipe has room for all rows of a resumed cell while the process starts.
        # If the size cannot be set, the default size may still be enough.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._received, self.runs = b"", 0

    def send(self, do: str, **values: Any) -> None:
        """Send a request without waiting.

        Raises:
            TrackingError: If the request cannot be sent, or if an earlier request has failed.
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
            raise TrackingError("W&B is slower than the epochs of this cell")

    def ask(self, do: str, seconds: float, **values: Any) -> Mapping[str, Any]:
        """Send a request, and return the answer; wait at most `seconds`.

        Raises:
            TrackingError: If the request fails, or no answer comes in time.
        """
        deadline = time.monotonic() + seconds
        self.send(do, seconds=seconds, **values)
        while (left := deadline - time.monotonic()) > 0:
            if (answer := self._read_answer(left)) is not None:
                return answer
        raise TrackingError("W&B did not answer in time")

    def kill(self) -> None:
        """Kill the process and W&B's own process, and remove their folder."""
        if self.process.poll() is None:
            kill_with_children(self.process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a dead file system can block the end
            self.process.wait(KILL_SECONDS)
        for pipe in self._pipes:
            pipe.close()
        self._remove_folder()

    def _read_answer(self, seconds: float) -> Mapping[str, Any] | None:
        """Read the next answer; return None if no whole answer comes within `seconds`.

        Raises:
            TrackingError: If the answer is a fault, or the process has ended.
        """
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        if b"\n" not in self._received and poll.poll(seconds * 1000):
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
            raise TrackingError(mode.remove_keys(answer["fault"]))
        return answer

    def _exit_status(self) -> str:
        return f"the process that talks to W&B ended (status {self.process.poll()})"


def kill_with_children(pid: int) -> None:
    """Kill a process and its child processes by their ids.

    A signal to the process group is not enough, because W&B's own process has another session.
    """
    processes = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):  # one file for each thread
        with contextlib.suppress(OSError):
            processes += map(int, children.read_text(encoding="utf-8").split())
    for process in reversed(processes):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


IDLE_PROCESSES: list[WandbProcess] = []  # these wait for the next cells of the training process
atexit.register(lambda: [child.kill() for child in IDLE_PROCESSES])


class Tracker:
    """A writer of the W&B run of a cell. The id of the run is the cell's signature.

    Unless logger=wandb, all methods do nothing. Only `close` waits for an answer of W&B's process.

    Args:
        cell: The cell.
        storage: The folder for W&B's files.
        provenance: The provenance of the cell. Its section `tracking` names the project, the mode
            and the labels of the run.

    Attributes:
        fault: Why the tracking of the cell failed; None: it has not failed.
        seconds: The time in seconds that the cell has spent on tracking so far.
        server: The URL of the server that has the whole run; None: no server has the whole run.
        url: The URL of the run at this server; None: no server has the whole run.
        faults: The number of faults since the last run that was tracked to its end, for all
            trackers of this process.
    """

    faults: ClassVar[int] = 0

    def __init__(self, cell: Cell, storage: Path, provenance: Mapping[str, Any]) -> None:
        self.fault: str | None = None
        self.seconds = 0.0
        self.server: str | None = None
        self.url: str | None = None
        self._logger = cell.config["logger"]
        self._child: WandbProcess | None = None
        if self._logger["name"] != "wandb":
            return
        if Tracker.faults >= MOST_FAULTS:
            self._end_tracking("W&B failed before")
            return
        with self._guard_training():
            self._child = IDLE_PROCESSES.pop() if IDLE_PROCESSES else WandbProcess(ORPHAN_SECONDS)
            self._child.runs += 1
            self._child.send(
                "open",
                run=content.make_run_arguments(cell.signature, provenance, cell.science),
                storage=str(storage),
                mode=provenance["tracking"]["mode"],
                seconds=self._logger["max_seconds"],
                measured_process=os.getpid(),
            )

    def log(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics.jsonl or steps.jsonl to W&B's process, without waiting."""
        if self._child is not None:
            with self._guard_training():
                self._child.send("log", row=dict(row))

    def close(
        self, exit_code: int = 1, summary: Row | None = None, folder: Path | None = None
    ) -> None:
        """End the run in the time that is left of `logger.max_seconds`.

        If the run has been closed already, or if the tracking of the cell has failed, nothing is
        done.

        Args:
            exit_code: 0 if the cell finished; W&B shows other values as a failure.
            summary: Final metrics and other values for the run's summary at W&B.
            folder: The folder of the cell, with predictions and pictures; None: no files are sent.
        """
        if self._child is None:
            return
        with self._guard_training():
            left = self._logger["max_seconds"] - KILL_SECONDS - self.seconds
            answer = self._child.ask(
                "finish",
                max(left, 0.0),
                exit_code=exit_code,
                summary=dict(summary or {}),
                folder=None if folder is None else str(folder),
            )
            self.server, self.url = answer.get("server"), answer.get("url")
            Tracker.faults = 0
            if self._child.runs < MOST_RUNS:
                IDLE_PROCESSES.append(self._child)
            else:
                self._child.kill()
            self._child = None

    def mark_synced(self, ledger: Ledger, storage: Path, signature: str) -> None:
        """Write the mark of a cell if a server has the whole run of the cell.

        The mark tells the next sync that this cell need not be uploaded. If the mark cannot be
        written, no error is raised. The next sync then uploads the cell again, into the same run.
        """
        if self.server is None:
            return
        with self._guard_training():
            content.write_mark(storage, content.read_content(ledger, signature), self.server)

    @contextlib.contextmanager
    def _guard_training(self) -> Iterator[None]:
        """Add the time of a `with` block to `seconds`, and catch errors of W&B in the block.

        An error ends the tracking of the cell, and training continues.
        """
        started = time.monotonic()
        try:
            yield
        except (TrackingError, ImportError, OSError, ValueError) as error:
            self._end_tracking(" ".join(str(error).split()))
        self.seconds += time.monotonic() - started

    def _end_tracking(self, fault: str) -> None:
        """End the tracking of the cell, and print the reason once."""
        if self._child is not None:
            self._child.kill()
            self._child = None
        Tracker.faults += 1
        self.fault = f"{fault}; capsweep wandb sync uploads this run"
        terminal.print_once(terminal.complete_commands(f"W&B: {self.fault}"))


def main() -> None:
    """Carry out requests until the parent process ends."""
    folder, orphan_seconds = sys.argv[1:]
    # This process removes its folder, because a killed parent cannot. The removal is registered
    # before W&B is imported, so that it is done after W&B's exit functions.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process ends only when its input ends
    pipe, answers = _take_pipe(0), _take_pipe(1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    reading = pipe, requests, float(orphan_seconds)
    threading.Thread(target=_read_requests, args=reading, daemon=True).start()
    do, handler = "", None
    while do != "end":
        request = requests.get()
        do = request.pop("do")
        try:
            from capsweep.tracking.wandb_run import Requests  # imports W&B, which may be missing

            handler = handler or Requests()
            answer = getattr(handler, do)(**request)
        except Exception as error:  # the exceptions of W&B have no common base class
            answer = {"fault": causes.describe_cause(error)}
        if answer is not None:
            with contextlib.suppress(BrokenPipeError):  # the parent is gone
                os.write(answers, json.dumps(answer).encode() + b"\n")


def _read_requests(pipe: int, requests: "queue.SimpleQueue[Any]", alone: float) -> None:
    """Put every request from a pipe in a queue, until the parent process closes the pipe.

    This function runs in a thread, so that the pipe never fills up. When the pipe is closed, the
    request "end" is put in the queue. If this process has not ended `alone` seconds later, this
    function kills the process.
    """
    with os.fdopen(pipe, "rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):  # else the parent was killed while it wrote the line
                requests.put(json.loads(line))
    requests.put({"do": "end"})
    time.sleep(alone)
    kill_with_children(os.getpid())


def _take_pipe(number: int) -> int:
    """Move standard input or output to a file descriptor that no process of W&B inherits.

    The old descriptor is then connected with the null device, like standard error. So text that W&B
    prints does not get into the pipe of the answers.
    """
    copy = os.dup(number)
    os.dup2(2, number)
    return copy


if __name__ == "__main__":
    main()
