"""Several devices train one cell, by a process each; the process that holds the cell starts them.

The ranks train by Lightning's DDP and write the cell's outputs. Lease, rows and W&B stay with the
process that holds the cell; the first rank sends it what its hooks need. If a rank ends, all are
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
from capsweep.storage.scratch import own_prefix
from capsweep.tracking.tracker import kill_tree
from capsweep.training.run_hooks import RunHooks, StopFlag

END_SECONDS = 10.0  # for ranks that have done their work
LOOK_SECONDS = 0.5  # who else has failed, once one has
# All are on one machine, whatever its name leads to.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

HOOKS = ("record_epoch", "record_point", "on_checkpoint")

Ask = Callable[..., bool]  # ask(hook, *values): the holder calls a hook; whether training shall end


@dataclass(frozen=True)
class SharedCell:
    """What all ranks are told. code: that of the holder. meeting: the file by which they find each
    other, which no other program can take as it could a port.
    """

    cell: Cell
    code: str
    places: Places
    folder: Path
    gpus: float | None
    count: int
    meeting: Path


class Rank:
    """The process of one device. end: () while it runs; ("finished", result); ("failed", when,
    error); or ("lost",) when it ended without a word.
    """

    def __init__(self, number: int, shared: SharedCell) -> None:
        self.number = number
        self.connection, theirs = connection.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(
            target=_run_rank, args=(number, shared, theirs)
        )
        with theirs:
            self.process.start()
        self.end: tuple[Any, ...] = ()

    def serve(self, hooks: RunHooks) -> None:
        """Call the hook that it asks for, or note its end."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            message = ("lost",)
        if message[0] not in HOOKS:
            self.end = message
            return
        ends = getattr(hooks, message[0])(*message[1:]) is True
        with contextlib.suppress(OSError):  # if the process has ended meanwhile, that comes next
            self.connection.send(ends or hooks.is_stopping)

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
    folder = Path(tempfile.mkdtemp(prefix=own_prefix("capsweep-ranks")))
    code = code_identity.hash_numerics(cell.config)
    shared = SharedCell(cell, code, places, directory.path, gpus, count, folder / "meeting")
    ranks: list[Rank] = []
    patience = 0.0
    try:
        with (hooks.stop_flag or StopFlag(_end_in_order)).handling_sigterm():
            for number in range(count):
                ranks.append(Rank(number, shared))
            result = _serve_ranks(ranks, hooks)
            patience = END_SECONDS
            return result
    finally:
        for rank in ranks:
            rank.stop(patience)
            for temporary in directory.path.glob(f".*.{rank.process.pid}.tmp"):
                temporary.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _end_in_order(number: int, _: object) -> None:
    """On SIGTERM, as Lightning lets a process end that trains by itself."""
    sys.exit(128 + number)


def _serve_ranks(ranks: Sequence[Rank], hooks: RunHooks) -> dict[str, Any]:
    """Call the hooks that the first rank asks for, until it has the result."""
    while ranks[0].end[:1] != ("finished",):
        for rank in _find_ready(ranks, None):
            rank.serve(hooks)
        if any(rank.end[:1] in (("failed",), ("lost",)) for rank in ranks):
            raise _find_cause(ranks, hooks)
    return ranks[0].end[1]


def _find_ready(ranks: Sequence[Rank], seconds: float | None) -> list[Rank]:
    """Those of which a message or the end comes first, within so long."""
    running = [rank for rank in ranks if not rank.end]
    ready = connection.wait([rank.connection for rank in running], seconds)
    return [rank for rank in running if rank.connection in ready]


def _find_cause(ranks: Sequence[Rank], hooks: RunHooks) -> Exception:
    """What went wrong first: the others lose their connections to that one."""
    for rank in _find_ready(ranks, LOOK_SECONDS):
        rank.serve(hooks)
    for rank in ranks:
        if rank.end == ("lost",):
            rank.stop(END_SECONDS)
            status, device = rank.process.exitcode or 0, f"device {rank.number} of {len(ranks)}"
            if status >= 0:
                return RankFailedError(f"the process of {device} ended (status {status})")
            end = f"was ended by {signal.Signals(-status).name} (status {status})"
            return WorkerLostError(f"the process of {device} {end}")
    failures = [rank.end[1:] for rank in ranks if rank.end[:1] == ("failed",)]
    return min(failures, key=lambda failure: failure[0])[1]


def _run_rank(number: int, shared: SharedCell, holder: connection.Connection) -> None:
    """The process of one device, from its beginning to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the holder decides what is ended
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
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

    # SIGTERM is left to the holder, since Slurm sends it to all. Lightning's handler would call the
    # other ranks from inside, which then wait for ever.
    stop_flag = StopFlag(signal.SIG_IGN)
    hooks = RunHooks(
        partial(ask, "record_epoch"),
        stop_flag,
        partial(ask, "on_checkpoint"),
        partial(ask, "record_point"),
    )
    cell, places, directory = shared.cell, shared.places, CellDirectory(shared.folder)
    result = fit.fit(cell, places, directory, hooks, shared.gpus, shared.count, strategy)
    distributed.destroy_process_group()
    return result


def _join_group(number: int, shared: SharedCell) -> dict[str, Any]:
    """Meet the other ranks; the arguments of Lightning's Trainer."""
    import torch
    from torch import distributed

    from capsweep.runtime.lightning import DDPStrategy, LightningEnvironment
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
    # Buffers are constants: to send them would make ranks wait for each other in evaluations.
    # A linear head does not read the last activations, of which a routing may own parameters.
    strategy = DDPStrategy(
        cluster_environment=LightningEnvironment(),
        broadcast_buffers=False,
        find_unused_parameters=shared.cell.config["model"].get("head") == "linear",
    )
    accelerator = "gpu" if uses_gpus else "cpu"
    return {"accelerator": accelerator, "devices": shared.count, "strategy": strategy}
