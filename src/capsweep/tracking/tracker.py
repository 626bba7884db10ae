"""Weights & Biases, as a second copy of what the ledger has first, that training never waits for.

`Tracker` is the run of a cell. Another process, `Child`, imports W&B and speaks to it; it is kept
for the next cell. Whatever W&B does, absent, hanging or slow, it costs a cell at most
`logger.max_seconds`. A fault is printed once, ends the tracking of this cell, and leaves the run to
`capsweep wandb sync`.

Requests and answers are lines of JSON through non-blocking pipes, and the parent chooses how long
it waits for an answer. `python -m capsweep.tracking.tracker HANDLER FOLDER` carries out the
requests one by one; FOLDER has its temporary files. When the parent is gone, a run is finished, and
an upload ends at once.
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
from pkgutil import resolve_name
from typing import Any, ClassVar

from capsweep.config import package_files
from capsweep.config.cell import Cell
from capsweep.errors import UserError
from capsweep.ledger import causes
from capsweep.ledger.ledger import Ledger
from capsweep.runtime import terminal
from capsweep.storage.scratch import make_scratch_prefix
from capsweep.tracking import content, mode

OF_RUNS = "capsweep.tracking.wandb_run:handle_run"  # what carries out a tracker's requests
ALONE_SECONDS = 30.0  # that a run has for its end without a parent
PIPE_BYTES = 2**20
KILL_SECONDS = 0.5
MOST_RUNS = 100  # of one process: W&B's client keeps a quarter of a megabyte of each
PATIENCE = 2  # faults in a row, after which the cells of this process do without W&B


class TrackingError(Exception):
    """What W&B could not do, in one line."""


class Child:
    """A process of its own, in a session of its own: no Ctrl-C of a terminal reaches it.

    It imports W&B, so that the process that trains does not. Temporary files and sockets of W&B
    are in a folder of this process alone, which is removed with it.
    handler: the function that carries out requests, as `module:name`.
    """

    def __init__(self, handler: str) -> None:
        # Not below the storage: the path of a socket may have 107 characters at most.
        folder = tempfile.mkdtemp(prefix=make_scratch_prefix("capsweep-wandb"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        package = str(package_files.PACKAGE.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = mode.clean_environment() | {"PYTHONPATH": path, "TMPDIR": folder}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "capsweep.tracking.tracker", handler, folder],
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
        # Space for the epochs of a continued cell while the process starts; less may do.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._received, self.runs = b"", 0

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

    def kill(self) -> None:
        """End it at once, with W&B's own process."""
        if self.process.poll() is None:
            kill_with_children(self.process.pid)
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


def kill_with_children(pid: int) -> None:
    """Kill a process and those that it has started, each by its id: W&B's own has a session of its
    own.
    """
    processes = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):  # of each thread
        with contextlib.suppress(OSError):
            processes += map(int, children.read_text(encoding="utf-8").split())
    for process in reversed(processes):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


IDLE: list[Child] = []  # processes that are kept for the next cells of this one
atexit.register(lambda: [child.kill() for child in IDLE])


class Tracker:
    """The W&B run of a cell, whose id is the signature; or nothing, with logger=csv.

    Every call but `close` returns at once. seconds: what W&B has cost so far. server: the URL of
    the server that has all of the run; None: no server has. url: of the run there. faults: of this
    process's runs, since one last ended well. provenance: of the cell, with what the run is called
    and where it goes.
    """

    faults: ClassVar[int] = 0

    def __init__(self, cell: Cell, storage: Path, provenance: Mapping[str, Any]) -> None:
        self.fault: str | None = None
        self.seconds = 0.0
        self.server: str | None = None
        self.url: str | None = None
        self._logger = cell.config["logger"]
        self._child: Child | None = None
        if self._logger["name"] != "wandb":
            return
        self._mode = provenance["tracking"]["mode"]
        if Tracker.faults >= PATIENCE:
            self._print_fault("W&B failed before")
            return
        with self._guard_training():
            self._child = IDLE.pop() if IDLE else Child(OF_RUNS)
            self._child.runs += 1
            self._child.send(
                "open",
                run=content.run_arguments(cell.signature, provenance, cell.science),
                storage=str(storage),
                mode=self._mode,
                seconds=self._logger["max_seconds"],
                of_process=os.getpid(),
            )

    def log(self, row: Mapping[str, Any]) -> None:
        """One epoch."""
        if self._child is not None:
            with self._guard_training():
                self._child.send("log", row=dict(row))

    def close(
        self,
        exit_code: int = 1,
        summary: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        """End the run, once, within what is left of the time that W&B may cost.

        summary: its last numbers. folder: the cell's, with tables and pictures.
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
            if self._mode == "online":
                self.server, self.url = answer["server"], answer["url"]
            Tracker.faults = 0
            if self._child.runs < MOST_RUNS:
                IDLE.append(self._child)
            else:
                self._child.kill()
            self._child = None

    def mark_synced(self, ledger: Ledger, storage: Path, signature: str) -> None:
        """Note that W&B has all of a finished cell, if it does. Never raises: a cell without a mark
        is uploaded once more, into the same run."""
        if self.server is None:
            return
        with self._guard_training():
            content.write_mark(storage, content.read_content(ledger, signature), self.server)

    @contextlib.contextmanager
    def _guard_training(self) -> Iterator[None]:
        """Time a block; a fault of it ends the tracking of this cell, and nothing else."""
        started = time.monotonic()
        try:
            yield
        except (TrackingError, OSError, ValueError, UserError) as error:
            if self._child is not None:
                self._child.kill()
                self._child = None
            Tracker.faults += 1
            self._print_fault(" ".join(str(error).split()))
        self.seconds += time.monotonic() - started

    def _print_fault(self, fault: str) -> None:
        self.fault = f"{fault}; capsweep wandb sync uploads it"
        terminal.print_once(f"W&B: {self.fault}")


def main() -> None:
    """Carry out requests until the parent is gone."""
    handler, folder = sys.argv[1:]  # the folder is temporary, and a killed parent cannot remove it
    # Before W&B is imported, so that it runs after W&B's own.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only the end of the input ends this process
    pipe, answers = _take_pipe(0), _take_pipe(1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    alone = ALONE_SECONDS if handler == OF_RUNS else 0.0  # the next sync may send the same cell
    threading.Thread(target=_read_requests, args=(pipe, requests, alone), daemon=True).start()
    do = ""
    while do != "end":
        request = requests.get()
        do = request["do"]
        try:
            answer = resolve_name(handler)(request)
        except Exception as error:  # W&B's own faults have no common class
            answer = {"fault": causes.describe_cause(error)}
        if answer is not None:
            with contextlib.suppress(BrokenPipeError):  # the parent is gone
                os.write(answers, json.dumps(answer).encode() + b"\n")


def _read_requests(pipe: int, requests: "queue.SimpleQueue[Any]", alone: float) -> None:
    """Queue every request; in a thread, so that the pipe is never full."""
    with os.fdopen(pipe, "rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):  # else the parent was killed while it wrote
                requests.put(json.loads(line))
    requests.put({"do": "end"})
    time.sleep(alone)
    kill_with_children(os.getpid())


def _take_pipe(number: int) -> int:
    """Standard input or output under a number that no process of W&B's inherits. The old number
    leads nowhere, as standard error does: what W&B prints is no answer."""
    copy = os.dup(number)
    os.dup2(2, number)
    return copy


if __name__ == "__main__":
    main()
