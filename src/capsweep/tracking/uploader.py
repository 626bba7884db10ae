"""The process that uploads one cell after the other, and the handle by which it is driven.

It is a process because W&B's client cannot be given a deadline: a cell that takes too long is
ended by ending its process, with W&B's own. It imports W&B once.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from capsweep.ledger import causes
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content, marks
from capsweep.tracking.child import Child, TrackingError, kill_tree, tidy

START_SECONDS = 30.0  # the first import of W&B from a cold disk


class Uploader:
    """Drives one process; after a fault it is another one. inherits: see Child."""

    def __init__(self, inherits: Collection[int] = ()) -> None:
        self._inherits = inherits
        self._child: Child | None = None
        self._is_over = False

    def __enter__(self) -> "Uploader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._drop()

    def ask(self, do: str, seconds: float, **what: Any) -> str | None:
        """Why what was asked could not be done within the time; None when it was."""
        if self._is_over:
            return "interrupted"
        began = None
        try:
            child = self._started()
            child.send(do, seconds=seconds, **what)
            began = time.monotonic()
            child.answer(began + seconds)
        except (TrackingError, OSError) as error:
            self._drop()
            if began is not None and time.monotonic() - began >= seconds:
                return f"it took longer than {seconds:g} s"
            return str(error)
        return None

    def _started(self) -> Child:
        if self._child is None:
            self._child = Child("capsweep.tracking.uploader", self._inherits)
            self._child.answer(time.monotonic() + START_SECONDS)
        return self._child

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def main() -> None:
    """Answer requests from standard input, one by one, until nobody asks any more."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what W&B prints is no answer
    asked: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    os.environ["WANDB_MODE"] = "online"
    from capsweep.tracking import upload

    fault = None
    while True:
        os.write(answers, json.dumps({"fault": fault}).encode() + b"\n")
        request = asked.get()
        try:
            if request["do"] == "check":
                upload.check(request["seconds"])
            else:
                _send(request)
            fault = None
        except Exception as error:  # W&B's own faults have no common class
            fault = causes.of(error)


def _send(request: dict[str, Any]) -> None:
    from capsweep.tracking import upload, wandb_run

    wandb_run.stay_in(request["folder"])
    ledger = Ledger(request["ledger"])
    found = content.of(ledger, request["signature"])
    with tempfile.TemporaryDirectory(dir=request["folder"]) as place:
        upload.send(found, ledger, Path(place), request["seconds"])
    marks.write(Path(request["storage"]), found, request["server"])


def _listen(asked: "SimpleQueue[dict[str, Any]]") -> None:
    """Hand requests on; end at once, with W&B's process, when nobody is left to ask: the next sync
    must not meet one that still sends."""
    for line in sys.stdin:
        asked.put(json.loads(line))
    tidy()
    kill_tree(os.getpid())


if __name__ == "__main__":
    main()
