"""Several devices train one cell, by a process each; the process that holds the cell starts them.

The ranks train by Lightning's DDP and write the cell's files. Lease, ledger and W&B stay with the
process that holds the cell; the first rank asks it for what needs them. If a rank ends, all are
ended; if the holder does, they end themselves. Lightning's own launchers would run the holder's
command again, which in a worker of Ray's is Ray's.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

from capsweep import errors
from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import RankFailedError, WorkerLostError
from capsweep.ledger import causes
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.tracking.process import kill_tree
from capsweep.training.run_hooks import RankStopFlag, RunHooks, StopFlag, handling_sigterm

END_SECONDS = 10.0  # for ranks that have done their work
LOOK_SECONDS = 0.5  # who else has failed, once one has
# All are on one machine, whatever its name leads to.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

HOOKS = ("on_epoch", "on_resume", "on_checkpoint", "check_lease")

Ask = Callable[..., bool]  # ask(hook, *values): the holder calls a hook; whether training shall end


@dataclass(frozen=True)
class SharedCell:
    """What all ranks are told. code: what the holder hashes the cell's code to; meeting: the file
    by which they find each other, which no other program can take as it could a port.
    """

    cell: Cell
    places: Places
    folder: Path
    gpus: float | None
    count: int
    code: str
    meeting: Path
    has_stop_flag: bool


class Rank:
    """The process of one device. end: None while it runs; finished, with its result; failed, with
    the time and its error; or lost, when it ended without a word.
    """

    def __init__(self, number: int, shared: SharedCell) -> None:
        self.number = number
        self.connection, theirs = connection.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(
            target=_run_rank, args=(number, shared, theirs)
        )
        with theirs:
            self.process.start()
        self.end: str | None = None
        self.values: tuple[Any, ...] = ()

    def receive(self) -> tuple[str, Any]:
        """Its next request, or its end."""
        try:
            request, *values = self.connection.recv()
        except (EOFError, OSError):
            request, values = "lost", []
        if request not in HOOKS:
            self.end, self.values = request, tuple(values)
        return request, values

    def answer(self, value: Any) -> None:
        """Answer a request. If the process has ended meanwhile, that is noticed next."""
        with contextlib.suppress(OSError):
            self.connection.send(value)

    def stop(self, seconds: float) -> None:
        """Let it end by itself for so long; then end it, and all below it."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            assert self.process.pid is not None
            kill_tree(self.process.pid)
            self.process.join()
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
    folder = Path(tempfile.mkdtemp(prefix="capsweep-ranks-"))
    code, meeting = code_identity.numerics(cell.config), folder / "meeting"
    has_stop_flag = hooks.stop_flag is not None
    shared = SharedCell(
        cell, places, directory.path, gpus, count, code, meeting, has_stop_flag=has_stop_flag
    )
    ranks: list[Rank] = []
    patience = 0.0
    try:
        with _handle_sigterm(hooks.stop_flag):
            for number in range(count):
                ranks.append(Rank(number, shared))
            result = _serve(ranks, hooks)
            patience = END_SECONDS
            return result
    finally:
        for rank in ranks:
            rank.stop(patience)
            for temporary in directory.path.glob(f".*.{rank.process.pid}.tmp"):
                temporary.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _handle_sigterm(stop_flag: StopFlag | None) -> contextlib.AbstractContextManager[object]:
    """SIGTERM sets the flag; without one it ends this process in order, as Lightning lets it end
    one that trains by itself.
    """
    if stop_flag is not None:
        return stop_flag.handling_sigterm()
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return contextlib.nullcontext()
    return handling_sigterm(lambda number, _: sys.exit(128 + number))


def _serve(ranks: Sequence[Rank], hooks: RunHooks) -> dict[str, Any]:
    """Call the hooks that the first rank asks for, until it has the result."""
    while True:
        for rank in _find_ready(ranks, None):
            request, values = rank.receive()
            if request in HOOKS:
                rank.answer(getattr(hooks, request)(*values) is True or hooks.is_stopping)
        if ranks[0].end == "finished":
            return ranks[0].values[0]
        if any(rank.end in ("failed", "lost") for rank in ranks):
            raise _find_cause(ranks)


def _find_ready(ranks: Sequence[Rank], seconds: float | None) -> list[Rank]:
    """Those of which a message or the end comes first, within so long."""
    running = [rank for rank in ranks if rank.end is None]
    ready = connection.wait([rank.connection for rank in running], seconds)
    return [rank for rank in running if rank.connection in ready]


def _find_cause(ranks: Sequence[Rank]) -> Exception:
    """What went wrong first: the others lose their connections to that one."""
    for rank in _find_ready(ranks, LOOK_SECONDS):
        rank.receive()
    for rank in ranks:
        if rank.end == "lost":
            return _explain_loss(rank, len(ranks))
    _, error = min((r.values for r in ranks if r.end == "failed"), key=lambda values: values[0])
    return error


def _explain_loss(rank: Rank, count: int) -> Exception:
    rank.stop(END_SECONDS)
    status, process = rank.process.exitcode, f"the process of device {rank.number} of {count}"
    if status is not None and status < 0:
        return WorkerLostError(f"{process} was ended by {signal.Signals(-status).name}")
    return RankFailedError(f"{process} ended (status {status})")


def _run_rank(number: int, shared: SharedCell, holder: connection.Connection) -> None:
    """The process of one device, from its beginning to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the holder decides what is ended
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def ask(request: str, *values: Any) -> bool:
        holder.send((request, *values))
        return holder.recv()

    try:
        result = take_part(number, shared, ask)
    except Exception as error:  # whatever it is, the holder writes it down
        ours = type(error).__module__ == errors.__name__
        device = f"device {number} of {shared.count}"
        failure = error if ours else RankFailedError(f"{device}: {causes.describe_cause(error)}")
        failure.add_note(f"{device}:\n{traceback.format_exc()}")
        # No answer comes: other ranks are connected to this one until the holder has heard it.
        ask("failed", time.monotonic(), failure)
    else:
        holder.send(("finished", result))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    kill_tree(os.getpid())  # nobody would end it, nor what reads ahead for it


def take_part(number: int, shared: SharedCell, ask: Ask) -> dict[str, Any]:
    """Join the other ranks, and train the cell with them; ask: has the holder call a hook."""
    code_identity.check_same(shared.cell.config, shared.code)
    strategy = _join_group(number, shared)
    from torch import distributed

    from capsweep.training import fit  # not sooner: the process begins by ignoring Ctrl-C

    hooks = RunHooks(
        **{name: partial(ask, name) for name in HOOKS},
        stop_flag=RankStopFlag(shared.has_stop_flag),
    )
    result = fit.fit(
        shared.cell,
        shared.places,
        CellDirectory(shared.folder),
        hooks,
        shared.gpus,
        shared.count,
        strategy,
    )
    distributed.destroy_process_group()
    return result


def _join_group(number: int, shared: SharedCell) -> dict[str, Any]:
    """Meet the other ranks; the arguments of Lightning's Trainer."""
    import torch
    from torch import distributed

    from capsweep.lightning import DDPStrategy, LightningEnvironment
    from capsweep.training import devices

    # Lightning reads them; whatever a scheduler calls this node, all ranks of a cell are on it.
    os.environ |= {"LOCAL_RANK": str(number), "NODE_RANK": "0"}
    if sys.platform == "linux":
        os.environ |= LOOPBACK | os.environ
    uses_gpus = devices.on_gpus(shared.cell.config)
    device = torch.device("cuda", number) if uses_gpus else None
    if device is not None:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if uses_gpus else "gloo",
        init_method=f"file://{shared.meeting}",
        rank=number,
        world_size=shared.count,
        device_id=device,
    )
    # Buffers are constants, or alike on all ranks (`SharedBatchNorm`): to send them around would
    # make ranks wait for each other in evaluations too.
    strategy = DDPStrategy(cluster_environment=LightningEnvironment(), broadcast_buffers=False)
    accelerator = "gpu" if uses_gpus else "cpu"
    return {"accelerator": accelerator, "devices": shared.count, "strategy": strategy}
