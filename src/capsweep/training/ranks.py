"""Several devices for one cell, from the side of the process that holds it: one process a device.

They train by Lightning's DDP and write the cell's files. Claim, ledger and Weights & Biases stay
with this process, which the first of them asks. If one ends, all are ended; if this one does, they
end themselves. Lightning would start this process' own command again instead, which in a worker of
Ray's is Ray's.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from capsweep import errors
from capsweep.config import code_identity, roots
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import RankFailedError, UserError, WorkerLostError
from capsweep.ledger import owned
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.tracking.child import kill_tree
from capsweep.training.callbacks import Hearing
from capsweep.training.line import Line
from capsweep.training.notice import Notice

END_SECONDS = 10.0  # for processes that have done their work
LOOK_SECONDS = 0.5  # who else has ended, once one has
# All are on one machine, whatever its name leads to.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class Rank:
    """One process, and what was heard of its end. failure: what it said that went wrong."""

    def __init__(self, rank: int) -> None:
        ours, its = socket.socketpair()
        home = str(roots.PACKAGE.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.rank, self.line = rank, Line(ours)
        with its:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "capsweep.training.rank", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,  # no Ctrl-C of a terminal reaches it
                env=(LOOPBACK if sys.platform == "linux" else {})
                | os.environ
                | {"PYTHONPATH": path},
            )
        self.failure: dict[str, Any] = {}
        self.is_done = self.has_ended = False

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, and said neither a result nor why."""
        return self.has_ended and not self.is_done and not self.failure

    def end(self, seconds: float) -> None:
        """Let it end by itself for so long; then end it, and all below it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.poll() is None:
            kill_tree(self.process.pid)
            self.process.wait()
        self.line.close()


def fit(
    devices: int,
    cell: Cell,
    places: Places,
    directory: CellDirectory,
    hearing: Hearing,
    gpus: float | None,
) -> dict[str, Any]:
    """As `fit.fit`, by so many processes. Raises what one of them raised, WorkerLostError where one
    was ended from outside.
    """
    meeting = Path(tempfile.mkdtemp(prefix="capsweep-ranks-"))
    owned.sign(meeting)
    ranks: list[Rank] = []
    patience = 0.0
    try:
        with _sigterm(hearing.notice):
            for rank in range(devices):
                ranks.append(one := Rank(rank))
                one.line.say(
                    cell=cell.to_json(),
                    code=code_identity.numerics(cell.config),
                    places={name: str(place) for name, place in vars(places).items()},
                    folder=str(directory.path),
                    gpus=gpus,
                    notice=hearing.notice is not None,
                    rank=one.rank,
                    ranks=devices,
                    meeting=str(meeting / "meeting"),
                )
            result = _listen(ranks, directory, hearing)
            patience = END_SECONDS
            return result
    finally:
        for one in ranks:
            one.end(patience)
        _tidy(directory, ranks)
        shutil.rmtree(meeting, ignore_errors=True)


def _listen(ranks: Sequence[Rank], directory: CellDirectory, hearing: Hearing) -> dict[str, Any]:
    """Do what the ranks ask for, until the first has the result."""
    while True:
        for one in _spoken(ranks, None):
            for message in _heard(one):
                if message["do"] == "finish" and one.rank == 0:
                    return message["result"]
                _do(one, message, directory, hearing)
        if any(one.failure or one.is_lost for one in ranks):
            raise _why(ranks)


def _spoken(ranks: Sequence[Rank], seconds: float | None) -> Iterator[Rank]:
    """Those of which something can be heard within so long."""
    poll = select.poll()
    for one in ranks:
        if not one.has_ended:
            poll.register(one.line, select.POLLIN)
    ready = {file for file, _ in poll.poll(None if seconds is None else seconds * 1000)}
    return (one for one in ranks if not one.has_ended and one.line.fileno() in ready)


def _heard(one: Rank) -> list[dict[str, Any]]:
    messages = one.line.hear()
    if messages is None:
        one.has_ended = True
        return []
    return messages


def _do(one: Rank, message: dict[str, Any], directory: CellDirectory, hearing: Hearing) -> None:
    """What a rank asks for; it waits meanwhile. After a failure it waits for its end."""
    leave = False
    match message["do"]:
        case "fail":
            one.failure = message
            return
        case "check":
            hearing.check()
        case "epoch":
            asked, notice = hearing.epoch(message["row"]), hearing.notice
            leave = asked is True or (notice is not None and notice.given)
        case "again":
            hearing.again(message["row"])
        case "checkpointed":
            directory.checkpointed()
        case "finish":
            one.is_done = True
            return
    with contextlib.suppress(OSError):  # it ended meanwhile, which is heard next
        one.line.say(done=message["do"], leave=leave)


def _why(ranks: Sequence[Rank]) -> Exception:
    """What went wrong first: the others lose their connections to that one."""
    for one in _spoken(ranks, LOOK_SECONDS):
        for message in _heard(one):
            if message["do"] == "fail":
                one.failure = message
    for one in ranks:
        if one.is_lost:
            return _lost(one, len(ranks))
    failed = [one for one in ranks if one.failure]
    return _raised(min(failed, key=lambda one: one.failure["at"]), len(ranks))


def _lost(one: Rank, ranks: int) -> Exception:
    one.end(END_SECONDS)
    status = one.process.returncode
    if status < 0:
        how = f"was ended by {signal.Signals(-status).name}"
        return WorkerLostError(f"the process of device {one.rank} of {ranks} {how}")
    return RankFailedError(f"the process of device {one.rank} of {ranks} ended (status {status})")


def _raised(one: Rank, ranks: int) -> Exception:
    """What a rank raised: as what it was, where that is an error of ours."""
    failure = one.failure
    kind = getattr(errors, failure["type"], None)
    if isinstance(kind, type) and issubclass(kind, UserError | RuntimeError):
        error: Exception = kind(failure["message"])
    else:
        error = RankFailedError(f"device {one.rank} of {ranks}: {failure['cause']}")
    error.add_note(f"device {one.rank} of {ranks}:\n{failure['trace']}")
    return error


def _tidy(directory: CellDirectory, ranks: Sequence[Rank]) -> None:
    """Remove what a rank that was ended had begun to write."""
    for one in ranks:
        for left in directory.path.glob(f".*.{one.process.pid}.tmp"):
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def _sigterm(notice: Notice | None) -> Iterator[None]:
    """SIGTERM gives the notice; without one it ends this process in order, as Lightning lets it end
    one that trains by itself.
    """

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    is_ours = threading.current_thread() is threading.main_thread()
    if notice is not None:
        with notice.listening():
            yield
    elif not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
    else:
        signal.signal(signal.SIGTERM, leave)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
