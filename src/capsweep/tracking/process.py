"""The tracking process: it waits for W&B, so that the process that trains does not.

Commands come as lines of JSON on standard input, a fault or the end of a run goes back as one. It
ends, and ends its run, when the other end of its input is gone.
"""

import atexit
import json
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capsweep.ledger import causes
from capsweep.ledger.ledger import EVALUATIONS
from capsweep.tracking import tables
from capsweep.tracking.child import kill_tree, tidy
from capsweep.tracking.opening import Opening

ALONE_SECONDS = 30.0  # for what is left to be written, once nobody asks any more
LOOK_SECONDS = 1.0
KILLED = 255

Command = Mapping[str, Any]


class Speaker:
    """The run of one cell after the other. After a fault, nothing more is done for that cell."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self.tell = tell
        self.run: Any = None
        self.is_broken = False
        self.step = 0
        self.epoch: int | None = None

    def do(self, command: Command) -> None:
        """Do what is asked, and tell the fault, once."""
        if command["do"] == "open":
            self.is_broken = False
        if self.is_broken:
            return
        try:
            getattr(self, f"_{command['do']}")(command)
        except Exception as error:  # W&B's own faults have no common class
            self.is_broken, self.run = True, None
            self.tell({"fault": causes.of(error)})

    def _open(self, command: Command) -> None:
        from capsweep.tracking import wandb_run

        opening = Opening.from_plain(command["opening"])
        wandb_run.stay_in(opening.storage)
        self.run = wandb_run.open_run(opening, opening.seconds, opening.seconds)
        # A run that is gone on with takes nothing at a step that it has, and says nothing.
        self.step, self.epoch = max(opening.step, self.run.starting_step), opening.epoch

    def _log(self, command: Command) -> None:
        from capsweep.tracking import wandb_run

        wandb_run.log_row(self.run, command["row"])
        epoch = self.epoch = command["row"]["epoch"]
        self.step = max(self.step, epoch + 1)

    def _summarise(self, command: Command) -> None:
        self.run.summary.update(command["values"])

    def _files(self, command: Command) -> None:
        """Tables and pictures of a cell's folder."""
        from capsweep.tracking import wandb_run

        folder, images = Path(command["folder"]), command["images"]
        predictions, worst = _read(folder / "predictions.npz"), _read(folder / _WORST)
        found = tables.of(predictions, worst, images)
        pngs = sorted((folder / EVALUATIONS).glob("*.png")) if images else []
        pictures = {path.name: path.read_bytes() for path in pngs}
        wandb_run.log_files(self.run, found, pictures, self.step, self.epoch)

    def _finish(self, command: Command) -> None:
        from capsweep.tracking import wandb_run

        run, self.run = self.run, None
        url = wandb_run.url(run)
        run.finish(exit_code=command["exit_code"])
        self.tell({"fault": None, "server": wandb_run.server(run), "url": url})


_WORST = f"{EVALUATIONS}/{tables.WORST}.npz"


def main() -> None:
    """Do what is asked until nobody asks any more."""
    atexit.register(tidy)  # before W&B is imported: it tidies up first
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the input is the sign to end
    asked, answers = _private(sys.stdin.fileno()), _private(sys.stdout.fileno())
    commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked, os.getppid(), commands), daemon=True).start()

    def tell(answer: dict[str, Any]) -> None:
        try:
            os.write(answers, json.dumps(answer).encode() + b"\n")
        except BrokenPipeError:
            return  # nobody listens any more; the end of the input says so too

    speaker = Speaker(tell)
    while (command := commands.get()) is not None:
        speaker.do(command)
    if speaker.run is not None:
        speaker.do({"do": "finish", "exit_code": KILLED})


def _listen(asked: int, parent: int, commands: "queue.SimpleQueue[Command | None]") -> None:
    """Hand every line on; in a thread, so that the pipe is never full."""
    rest = b""
    while os.getppid() == parent:
        if not select.select([asked], [], [], LOOK_SECONDS)[0]:
            continue
        found = os.read(asked, 2**20)
        if not found:
            break
        *lines, rest = (rest + found).split(b"\n")
        for line in lines:
            commands.put(json.loads(line))
    last = threading.Timer(ALONE_SECONDS, _give_up)
    last.daemon = True
    last.start()
    commands.put(None)


def _give_up() -> None:
    tidy()
    kill_tree(os.getpid())


def _private(pipe: int) -> int:
    """The pipe under a number that no process of W&B's inherits; its old number leads nowhere."""
    own = os.dup(pipe)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, pipe)
    os.close(nowhere)
    return own


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    main()
