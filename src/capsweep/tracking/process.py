"""The tracking process: it waits for W&B, so that the process that trains does not.

Commands arrive as lines of JSON on standard input; a fault, or the end of a run, is answered by
one. The process finishes its run and ends when its parent is gone.
"""

import atexit
import json
import os
import queue
import select
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capsweep.ledger import causes
from capsweep.ledger.ledger import EVALUATIONS
from capsweep.tracking import tables
from capsweep.tracking.child import kill_tree, private_pipe, remove_folder
from capsweep.tracking.content import EXAMPLES, SCORES, RunSpec

ALONE_SECONDS = 30.0  # to finish a run once the parent is gone
LOOK_SECONDS = 1.0
KILLED = 255

Command = Mapping[str, Any]


class RunWriter:
    """Writes the runs of one cell after the other. After a fault it ignores that cell's rest."""

    def __init__(self, answer: Callable[[dict[str, Any]], None]) -> None:
        self.answer = answer
        self.run: Any = None
        self.is_broken = False
        self.step = 0
        self.epoch: int | None = None

    def do(self, command: Command) -> None:
        """Carry out a command; answer its fault, once for each cell."""
        if command["do"] == "open":
            self.is_broken = False
        if self.is_broken:
            return
        try:
            getattr(self, f"_{command['do']}")(command)
        except Exception as error:  # W&B's own faults have no common class
            self.is_broken, self.run = True, None
            self.answer({"fault": causes.describe_cause(error)})

    def _open(self, command: Command) -> None:
        from capsweep.tracking import wandb_run

        spec = RunSpec.from_plain(command["spec"])
        wandb_run.use_storage(spec.storage)
        self.run = wandb_run.open_run(spec, spec.seconds, spec.seconds)
        # A resumed run drops a row at a step that it has, without a word.
        self.step, self.epoch = max(spec.step, self.run.starting_step), spec.epoch

    def _log(self, command: Command) -> None:
        from capsweep.tracking import wandb_run

        wandb_run.log_row(self.run, command["row"])
        epoch = self.epoch = command["row"]["epoch"]
        self.step = max(self.step, epoch + 1)

    def _summarise(self, command: Command) -> None:
        self.run.summary.update(command["values"])

    def _files(self, command: Command) -> None:
        from capsweep.tracking import wandb_run

        folder, images = Path(command["folder"]), command["images"]
        predictions, examples = (_read(folder / name) for name in (SCORES, EXAMPLES))
        pngs = sorted((folder / EVALUATIONS).glob("*.png")) if images else []
        pictures = {path.name: path.read_bytes() for path in pngs}
        made = tables.make_tables(predictions, examples, images)
        wandb_run.log_files(self.run, made, pictures, self.step, self.epoch)

    def _finish(self, command: Command) -> None:
        from capsweep.tracking import wandb_run

        run, self.run = self.run, None
        url = wandb_run.run_url(run)
        run.finish(exit_code=command["exit_code"])
        self.answer({"fault": None, "server": wandb_run.server_url(run), "url": url})


def main() -> None:
    """Carry out commands until the parent is gone."""
    atexit.register(remove_folder)  # before W&B is imported, so that it runs after W&B's own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only the end of the input ends this process
    requests, answers = private_pipe(0), private_pipe(1)
    commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    reader = (requests, os.getppid(), commands)
    threading.Thread(target=_read_commands, args=reader, daemon=True).start()

    def answer(content: dict[str, Any]) -> None:
        try:
            os.write(answers, json.dumps(content).encode() + b"\n")
        except BrokenPipeError:
            return  # the parent is gone; the end of the input says so too

    writer = RunWriter(answer)
    while (command := commands.get()) is not None:
        writer.do(command)
    if writer.run is not None:
        writer.do({"do": "finish", "exit_code": KILLED})


def _read_commands(
    requests: int, parent: int, commands: "queue.SimpleQueue[Command | None]"
) -> None:
    """Queue every command; in a thread, so that the pipe is never full."""
    rest = b""
    while os.getppid() == parent:
        if not select.select([requests], [], [], LOOK_SECONDS)[0]:
            continue
        received = os.read(requests, 2**20)
        if not received:
            break
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            commands.put(json.loads(line))
    last = threading.Timer(ALONE_SECONDS, _give_up)
    last.daemon = True
    last.start()
    commands.put(None)


def _give_up() -> None:
    remove_folder()
    kill_tree(os.getpid())


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    main()
