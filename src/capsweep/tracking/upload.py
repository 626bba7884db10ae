"""The process that uploads cells: each run is opened, completed and read back from the server.

Sent twice, nothing is there twice: a run that is opened again says what it has. Rows have their
epoch as their step; a table or picture is sent if the run's was made of something else.
It is a process of its own because W&B's client has no deadline: a cell that takes too long is ended
by ending its process.
"""

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import wandb

from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content as contents
from capsweep.tracking import wandb_run
from capsweep.tracking.child import TrackingError
from capsweep.tracking.content import Content

READ_BACK_SECONDS = 15.0  # at most; a server may take a while to show what it has taken in
LOOK_SECONDS = 0.5


def handle(request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request: `start` (W&B is imported then), `check` the login, or `upload`."""
    os.environ["WANDB_MODE"] = "online"
    if request["do"] == "check" and not _open_api(request["seconds"]).default_entity:
        raise TrackingError("the server does not know this login")
    if request["do"] == "upload":
        ledger = Ledger(request["ledger"])
        content = contents.read_content(ledger, request["signature"])
        upload_cell(content, ledger, request["seconds"])
        contents.write_mark(Path(request["storage"]), content, request["server"])
    return {}


def upload_cell(content: Content, ledger: Ledger, seconds: float) -> None:
    """Complete the cell's run at the server that W&B is configured for.

    The caller must bound the time too: `seconds` bounds W&B's waiting alone.
    Raises TrackingError when the server does not show all of it, and whatever W&B raises.
    """
    folder = tempfile.gettempdir()  # of this process alone
    wandb_run.use_storage(folder)
    place = {"project": content.project, "entity": content.entity}
    known = place | content.labels.plain()
    arguments = contents.run_arguments(content.signature, known, content.config)
    run = wandb_run.open_run(arguments, folder, "online", seconds, of_process=None)
    for row in content.rows:
        if row["epoch"] >= run.starting_step:
            wandb_run.log_row(run, row)
    epoch = content.rows[-1]["epoch"] if content.rows else None
    read = partial(ledger.read, content.signature)
    digests = wandb_run.log_files(run, read, content.pictures, content.images, epoch)
    run.summary.update(dict(content.summary))
    run.finish(exit_code=0 if content.status in ("finished", "stopped") else 1)
    _read_back(f"{run.entity}/{run.project}/{run.id}", content, digests, seconds)


def _read_back(path: str, content: Content, digests: Mapping[str, str], seconds: float) -> None:
    """W&B's client ends quietly when it could not send: only the server knows what it has."""
    deadline = time.monotonic() + min(seconds / 4, READ_BACK_SECONDS)
    while missing := list(_find_missing(path, content, digests, seconds)):
        if time.monotonic() > deadline:
            raise TrackingError(f"sent, but the server does not show {', '.join(missing)}")
        time.sleep(LOOK_SECONDS)


def _find_missing(
    path: str, content: Content, digests: Mapping[str, str], seconds: float
) -> Iterator[str]:
    """What the server's run does not have: epochs, numbers, tables and pictures."""
    api = _open_api(seconds)
    api.flush()
    run = api.run(path)
    if content.rows and run.lastHistoryStep < content.rows[-1]["epoch"]:
        yield f"epochs after {run.lastHistoryStep}"
    yield from (key for key in content.summary if run.summary.get(key) is None)
    known = wandb_run.read_digests(run.summary)
    yield from (key for key, digest in digests.items() if known.get(key) != digest)


@cache
def _open_api(seconds: float) -> wandb.Api:
    return wandb.Api(timeout=max(1, math.ceil(seconds)))
