"""The process that speaks to W&B, and waits for it, so that the process that trains does not.

`python -m capsweep.tracking.process KIND FOLDER` carries out requests one by one: lines of JSON on
standard input. An answer or a fault is a line on standard output. FOLDER has its temporary files.
When the parent is gone, a run is finished, and anything else is ended at once.
"""

import atexit
import contextlib
import importlib
import json
import os
import queue
import select
import shutil
import signal
import sys
import threading
from typing import Any, TypeAlias

from capsweep.ledger import causes
from capsweep.tracking.child import kill_tree

# KIND: the module whose `handle` carries out requests, and the seconds that it has for `end` once
# the parent is gone.
HANDLERS = {
    "run": ("capsweep.tracking.wandb_run", 30.0),
    "upload": ("capsweep.tracking.upload", 0.0),
    "workspace": ("capsweep.tracking.dashboard", 0.0),
}
LOOK_SECONDS = 1.0

Requests: TypeAlias = "queue.SimpleQueue[dict[str, Any]]"


def main() -> None:
    """Carry out requests until the parent is gone."""
    module, alone_seconds = HANDLERS[sys.argv[1]]
    atexit.register(_remove_folder)  # before W&B is imported, so that it runs after W&B's own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only the end of the input ends this process
    pipe, answers = _take_pipe(0), _take_pipe(1)
    requests: Requests = queue.SimpleQueue()
    reader = (pipe, os.getppid(), requests, alone_seconds)
    threading.Thread(target=_read_requests, args=reader, daemon=True).start()
    do = ""
    while do != "end":
        request = requests.get()
        do = request["do"]
        try:
            answer = importlib.import_module(module).handle(request)
        except Exception as error:  # W&B's own faults have no common class
            answer = {"fault": causes.describe_cause(error)}
        if answer is not None:
            with contextlib.suppress(BrokenPipeError):  # the parent is gone
                os.write(answers, json.dumps(answer).encode() + b"\n")


def _read_requests(pipe: int, parent: int, requests: Requests, alone_seconds: float) -> None:
    """Queue every request; in a thread, so that the pipe is never full."""
    rest = b""
    while os.getppid() == parent:
        if not select.select([pipe], [], [], LOOK_SECONDS)[0]:
            continue
        received = os.read(pipe, 2**20)
        if not received:
            break
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            requests.put(json.loads(line))
    requests.put({"do": "end"})
    threading.Event().wait(alone_seconds)
    _remove_folder()
    kill_tree(os.getpid())


def _take_pipe(number: int) -> int:
    """Standard input or output under a number that no process of W&B's inherits. The old number
    leads nowhere, as standard error does: what W&B prints is no answer."""
    own = os.dup(number)
    os.dup2(2, number)
    return own


def _remove_folder() -> None:
    """Remove the temporary folder, which a killed parent cannot do."""
    shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
