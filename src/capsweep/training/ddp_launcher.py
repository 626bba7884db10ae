"""Starts and serves the processes that train one cell together, one process a device.

They train by Lightning's DDP and write the cell's files. Lease, ledger and W&B stay with this
process, which the first of them asks. If one ends, all are ended; if this process does, they end
themselves. Lightning would start this process's own command again instead, which in a worker of
Ray's is Ray's.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any

from capsweep import errors
from capsweep.config import code_identity, package_files
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import RankFailedError, UserError, WorkerLostError
from capsweep.ledger import garbage
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.tracking.child import kill_tree
from capsweep.training.run_hooks import RunHooks, StopFlag

END_SECONDS = 10.0  # for processes that have done their work
LOOK_SECONDS = 0.5  # who else has ended, once one has
# All are on one machine, whatever its name leads to.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class Worker:
    """One process, and what is known of its end. failure: its message on what went wrong."""

    def __init__(self, rank: int) -> None:
        self.connection, its_end = Pipe()
        home = str(package_files.PACKAGE.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.rank = rank
        with its_end:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "capsweep.training.ddp_worker", str(its_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[its_end.fileno()],
                start_new_session=True,  # no Ctrl-C of a terminal reaches it
                env=(LOOPBACK if sys.platform == "linux" else {})
                | os.environ
                | {"PYTHONPATH": path},
            )
        self.failure: dict[str, Any] = {}
        self.is_done = self.has_ended = False

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, and sent neither a result nor a failure."""
        return self.has_ended and not self.is_done and not self.failure

    def send(self, **message: Any) -> None:
        """Send a message. Raises OSError when the process is gone."""
        self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any] | None:
        """The next message; None: the process has ended."""
        try:
            return json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.has_ended = True
            return None

    def end(self, seconds: float) -> None:
        """Let it end by itself for so long; then end it, and all below it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.poll() is None:
            kill_tree(self.process.pid)
            self.process.wait()
        self.connection.close()


def fit(
    count: int,
    cell: Cell,
    places: Places,
    directory: CellDirectory,
    hooks: RunHooks,
    gpus: float | None,
) -> dict[str, Any]:
    """As `fit.fit`, by `count` processes. Raises what one of them raised, WorkerLostError where one
    was ended from outside.
    """
    meeting = Path(tempfile.mkdtemp(prefix="capsweep-ranks-"))
    garbage.sign_folder(meeting)
    task = {
        "cell": cell.to_json(),
        "code": code_identity.numerics(cell.config),
        "places": {name: str(place) for name, place in vars(places).items()},
        "folder": str(directory.path),
        "gpus": gpus,
        "has_stop_flag": hooks.stop_flag is not None,
        "count": count,
        "meeting": str(meeting / "meeting"),
    }
    workers: list[Worker] = []
    patience = 0.0
    try:
        with _handle_sigterm(hooks.stop_flag):
            for rank in range(count):
                workers.append(worker := Worker(rank))
                worker.send(**task, rank=rank)
            result = _serve(workers, directory, hooks)
            patience = END_SECONDS
            return result
    finally:
        for worker in workers:
            worker.end(patience)
            for temporary in directory.path.glob(f".*.{worker.process.pid}.tmp"):
                temporary.unlink(missing_ok=True)
        shutil.rmtree(meeting, ignore_errors=True)


def _serve(workers: Sequence[Worker], directory: CellDirectory, hooks: RunHooks) -> dict[str, Any]:
    """Do what the workers ask for, until the first has the result."""
    while True:
        for worker, message in _receive_messages(workers, None):
            if message["do"] == "finish" and worker.rank == 0:
                return message["result"]
            _answer(worker, message, directory, hooks)
        if any(worker.failure or worker.is_lost for worker in workers):
            raise _find_cause(workers)


def _receive_messages(
    workers: Sequence[Worker], seconds: float | None
) -> Iterator[tuple[Worker, dict[str, Any]]]:
    """A message of each worker that sends one within so long."""
    running = [worker for worker in workers if not worker.has_ended]
    ready = wait([worker.connection for worker in running], seconds)
    for worker in running:
        if worker.connection in ready and (message := worker.receive()) is not None:
            yield worker, message


def _answer(
    worker: Worker, message: dict[str, Any], directory: CellDirectory, hooks: RunHooks
) -> None:
    """Do what a worker waits for. After a failure it waits for its end."""
    leave = False
    match message["do"]:
        case "fail":
            worker.failure = message
            return
        case "finish":
            worker.is_done = True
            return
        case "check":
            hooks.check_lease()
        case "epoch":
            leave = hooks.on_epoch(message["row"]) is True or hooks.is_stopping
        case "resume":
            hooks.on_resume(message["row"])
        case "checkpointed":
            directory.store_checkpoint()
    with contextlib.suppress(OSError):  # it ended meanwhile, which is noticed next
        worker.send(done=message["do"], leave=leave)


def _find_cause(workers: Sequence[Worker]) -> Exception:
    """What went wrong first: the others lose their connections to that one."""
    for worker, message in _receive_messages(workers, LOOK_SECONDS):
        if message["do"] == "fail":
            worker.failure = message
    for worker in workers:
        if worker.is_lost:
            return _explain_loss(worker, len(workers))
    first = min((w for w in workers if w.failure), key=lambda worker: worker.failure["at"])
    return _restore_error(first, len(workers))


def _explain_loss(worker: Worker, count: int) -> Exception:
    worker.end(END_SECONDS)
    status = worker.process.returncode
    if status < 0:
        how = f"was ended by {signal.Signals(-status).name}"
        return WorkerLostError(f"the process of device {worker.rank} of {count} {how}")
    return RankFailedError(
        f"the process of device {worker.rank} of {count} ended (status {status})"
    )


def _restore_error(worker: Worker, count: int) -> Exception:
    """What a worker raised: as what it was, where that is an error of ours."""
    failure = worker.failure
    kind = getattr(errors, failure["type"], None)
    if isinstance(kind, type) and issubclass(kind, UserError | RuntimeError):
        error: Exception = kind(failure["message"])
    else:
        error = RankFailedError(f"device {worker.rank} of {count}: {failure['cause']}")
    error.add_note(f"device {worker.rank} of {count}:\n{failure['trace']}")
    return error


@contextlib.contextmanager
def _handle_sigterm(stop_flag: StopFlag | None) -> Iterator[None]:
    """SIGTERM sets the flag; without one it ends this process in order, as Lightning lets it end
    one that trains by itself.
    """

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    if stop_flag is not None:
        with stop_flag.handling_sigterm():
            yield
    elif not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
    else:
        signal.signal(signal.SIGTERM, leave)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
