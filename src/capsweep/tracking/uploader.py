"""The process that uploads one cell after the other, and the handle by which it is driven.

It is a process because W&B's client cannot be given a deadline: a cell that takes too long is
ended by ending its process, with W&B's own. Requests and answers are lines of JSON.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content, marks, upload

START_SECONDS = 30.0  # the first import of W&B on a cold disk


class Uploader:
    """Drives one process. `ask` waits for its answer until a deadline, then ends the process."""

    def __init__(self, keep_open: tuple[int, ...] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="capsweep-wandb-")
        self._said = Path(self._folder.name) / "said.txt"
        private = {f"WANDB_{kind}_DIR": self._folder.name for kind in ("CACHE", "DATA")}
        private |= {"WANDB_DIR": self._folder.name, "WANDB_SILENT": "true", "WANDB_MODE": "online"}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, **private},
                start_new_session=True,  # so that W&B's process can be ended with it
                pass_fds=keep_open,
            )
        self._ready = False
        self._ending = threading.Lock()
        self._ended = False

    def __enter__(self) -> "Uploader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return not self._ended

    def ask(self, request: dict[str, Any], seconds: float) -> str | None:
        """The fault of what was asked; None when it was done."""
        if not self._ready:
            if (fault := self._wait(START_SECONDS)) is not None:
                return fault
            self._ready = True
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except OSError:
            return self._died()
        return self._wait(seconds)

    def end(self) -> None:
        """End the process and W&B's, now; what it was sending is sent again another time."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # it holds a line that nobody will read
                    pipe.close()
        self._folder.cleanup()

    def _wait(self, seconds: float) -> str | None:
        stdout = self._process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], seconds)
        if not readable:
            self.end()
            return f"took longer than {seconds:g} s"
        line = stdout.readline()
        return json.loads(line)["fault"] if line else self._died()

    def _died(self) -> str:
        last = self._said.read_text(errors="replace").strip().rpartition("\n")[2]
        self.end()
        return f"the uploading process ended ({last or self._process.returncode})"


def main(folder: Path) -> None:
    """Answer requests from standard input until it ends; then end, with W&B's process."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints may not answer
    import wandb

    faults = (wandb.Error, OSError, ValueError, RuntimeError)
    requests: list[str] = []
    waiting = threading.Condition()
    threading.Thread(target=_read, args=(requests, waiting), daemon=True).start()
    answers.write('{"fault": null}\n')
    while True:
        with waiting:
            waiting.wait_for(lambda: requests)
            request = json.loads(requests.pop(0))
        try:
            _do(request, folder)
            fault = None
        except faults as error:
            traceback.print_exc()
            fault = " ".join(f"{type(error).__name__}: {error}".split())
            wandb.teardown(exit_code=1)  # what it holds of this run would be in the next one's way
        answers.write(json.dumps({"fault": fault}) + "\n")


def _read(requests: list[str], waiting: threading.Condition) -> None:
    for line in sys.stdin:
        with waiting:
            requests.append(line)
            waiting.notify()
    os.killpg(0, signal.SIGKILL)  # nobody is left to answer to, and two must not send one cell


def _do(request: dict[str, Any], folder: Path) -> None:
    if request["do"] == "check":
        upload.check(request["seconds"])
        return
    ledger = Ledger(request["ledger"])
    found = content.of(ledger, request["signature"])
    with tempfile.TemporaryDirectory(dir=folder) as place:
        upload.send(found, ledger, Path(place), request["seconds"])
    marks.write(Path(request["storage"]), found, request["server"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
