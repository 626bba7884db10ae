"""One of several processes that train a cell together: `python -m capsweep.training.rank SOCKET`.

It is told over the socket what to do, tells what the process that holds the cell must do for it,
and ends, with all that it started, when that one is gone.
"""

import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import distributed

from capsweep.config import code_identity, places
from capsweep.config.cell import Cell
from capsweep.ledger import causes
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.lightning import DDPStrategy, LightningEnvironment
from capsweep.tracking.child import kill_tree
from capsweep.training import devices, fit
from capsweep.training.callbacks import Hearing
from capsweep.training.fit import Shared
from capsweep.training.line import Line
from capsweep.training.notice import Ends, Notice


class Asked(Protocol):
    """Whoever does for a rank what it may not do itself."""

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Have something done, and wait until it is; what was said of it."""
        ...


class Holder:
    """The process that holds the cell, as a rank sees it."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def answer(self) -> dict[str, Any]:
        """The next thing that it says."""
        return self._answers.get()

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Have something done, and wait until it is; what was said of it."""
        self.line.say(do=do, **what)
        return self.answer()

    def _listen(self) -> None:
        while (found := self.line.hear()) is not None:
            for message in found:
                self._answers.put(message)
        kill_tree(os.getpid())  # nobody would end it, nor what reads ahead for it


class _Folder(CellDirectory):
    """The cell's folder; what becomes of a checkpoint in it is the holder's business."""

    def __init__(self, path: Path, holder: Asked) -> None:
        super().__init__(path)
        self.holder = holder

    def checkpointed(self) -> None:
        self.holder.ask("checkpointed")


class _OneOfMany(LightningEnvironment):
    """What Lightning asks of a cluster: that others start the processes, and which this is."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def local_rank(self) -> int:
        return self.rank

    def node_rank(self) -> int:
        return 0  # whatever a scheduler calls this node: all ranks of a cell are on it


def main() -> None:
    """Take part in one cell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the holder decides what is ended
    holder = Holder(Line(socket.socket(fileno=int(sys.argv[1]))))
    told = holder.answer()
    try:
        result = take_part(told, holder)
    except Exception as error:  # whatever it is, the holder writes it down
        said = {"type": type(error).__name__, "message": str(error), "cause": causes.of(error)}
        holder.line.say(do="fail", at=time.monotonic(), trace=traceback.format_exc(), **said)
        holder.answer()  # nobody closes a connection before it was heard why
    else:
        holder.line.say(do="finish", result=result)


def take_part(told: Mapping[str, Any], holder: Asked) -> dict[str, Any]:
    """Join the others, and train with them what was told."""
    cell, rank, ranks = Cell.from_json(told["cell"]), told["rank"], told["ranks"]
    code_identity.check_same(cell.config, told["code"])
    shared = _join(cell, rank, ranks, told["meeting"])
    notice = Notice() if told["notice"] else Ends()  # Slurm sends SIGTERM to all processes
    hearing = Hearing(
        check=lambda: holder.ask("check"),
        epoch=lambda row: holder.ask("epoch", row=row).get("leave", False),
        again=lambda row: holder.ask("again", row=row),
        notice=notice,
    )
    folder = _Folder(Path(told["folder"]), holder)
    try:
        return fit.fit(cell, places.resolve(told["places"]), folder, hearing, told["gpus"], shared)
    finally:
        if sys.exc_info()[0] is None:
            distributed.destroy_process_group()


def _join(cell: Cell, rank: int, ranks: int, meeting: str) -> Shared:
    """Meet the others by a file, which no other program can take as it could a port."""
    uses_gpus = devices.on_gpus(cell.config)
    device = torch.device("cuda", rank) if uses_gpus else None
    if device is not None:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if uses_gpus else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        device_id=device,
    )
    # Buffers are constants, or alike on all ranks (`across.SharedBatchNorm`): to send them around
    # would make ranks wait for each other in evaluations too.
    strategy = DDPStrategy(cluster_environment=_OneOfMany(rank), broadcast_buffers=False)
    accelerator = "gpu" if uses_gpus else "cpu"
    trainer = {"accelerator": accelerator, "devices": ranks, "strategy": strategy}
    return Shared(rank, ranks, trainer)


if __name__ == "__main__":
    main()
