"""One of several processes that train a cell: `python -m capsweep.training.ddp_worker SOCKET`.

It gets its task over the socket, asks the process that holds the cell to do there what only one
process may do, and ends, with all that it started, when that process is gone.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
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
from capsweep.training.run_hooks import NoStopFlag, RunHooks, StopFlag


class Asks(Protocol):
    """Whoever does for a worker what it may not do itself."""

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Have something done, and wait for the answer."""
        ...


class Coordinator:
    """The process that holds the cell, as a worker sees it."""

    def __init__(self, socket: int) -> None:
        os.set_inheritable(socket, False)
        self.connection = Connection(socket)
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    def send(self, **message: Any) -> None:
        """Send without waiting for an answer."""
        self.connection.send_bytes(json.dumps(message).encode())

    def wait_for_answer(self) -> dict[str, Any]:
        """The next message that it sends."""
        return self._answers.get()

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Have something done, and wait for the answer."""
        self.send(do=do, **values)
        return self.wait_for_answer()

    def _receive(self) -> None:
        try:
            while True:
                self._answers.put(json.loads(self.connection.recv_bytes()))
        except (EOFError, OSError):
            kill_tree(os.getpid())  # nobody would end it, nor what reads ahead for it


class _WorkerDirectory(CellDirectory):
    """The cell's folder; the coordinator alone looks after the checkpoint in it."""

    def __init__(self, path: Path, coordinator: Asks) -> None:
        super().__init__(path)
        self.coordinator = coordinator

    def checkpointed(self) -> None:
        self.coordinator.ask("checkpointed")


class _WorkerEnvironment(LightningEnvironment):
    """Tells Lightning that others start the processes, and which one this is."""

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what is ended
    coordinator = Coordinator(int(sys.argv[1]))
    task = coordinator.wait_for_answer()
    try:
        result = take_part(task, coordinator)
    except Exception as error:  # whatever it is, the coordinator writes it down
        failure = {
            "type": type(error).__name__,
            "message": str(error),
            "cause": causes.describe_cause(error),
        }
        coordinator.send(do="fail", at=time.monotonic(), trace=traceback.format_exc(), **failure)
        coordinator.wait_for_answer()  # the other workers' connections stay until this one is heard
    else:
        coordinator.send(do="finish", result=result)


def take_part(task: Mapping[str, Any], coordinator: Asks) -> dict[str, Any]:
    """Join the other workers, and train the cell of `task` with them."""
    cell, rank, count = Cell.from_json(task["cell"]), task["rank"], task["count"]
    code_identity.check_same(cell.config, task["code"])
    strategy = _join_group(cell, rank, count, task["meeting"])
    hooks = RunHooks(
        on_epoch=lambda row: coordinator.ask("epoch", row=row).get("leave", False),
        on_resume=lambda row: coordinator.ask("resume", row=row),
        check_lease=lambda: coordinator.ask("check"),
        # Slurm sends SIGTERM to all processes of a job.
        stop_flag=StopFlag() if task["has_stop_flag"] else NoStopFlag(),
    )
    directory = _WorkerDirectory(Path(task["folder"]), coordinator)
    here = places.resolve(task["places"])
    try:
        return fit.fit(cell, here, directory, hooks, task["gpus"], count, strategy)
    finally:
        if sys.exc_info()[0] is None:
            distributed.destroy_process_group()


def _join_group(cell: Cell, rank: int, count: int, meeting: str) -> dict[str, Any]:
    """Meet the others by a file, which no other program can take as it could a port; the arguments
    of Lightning's Trainer.
    """
    uses_gpus = devices.on_gpus(cell.config)
    device = torch.device("cuda", rank) if uses_gpus else None
    if device is not None:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if uses_gpus else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=count,
        device_id=device,
    )
    # Buffers are constants, or alike on all ranks (`SharedBatchNorm`): to send them around would
    # make ranks wait for each other in evaluations too.
    strategy = DDPStrategy(cluster_environment=_WorkerEnvironment(rank), broadcast_buffers=False)
    accelerator = "gpu" if uses_gpus else "cpu"
    return {"accelerator": accelerator, "devices": count, "strategy": strategy}


if __name__ == "__main__":
    main()
