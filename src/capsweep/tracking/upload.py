"""The process that uploads cells: each run is opened, completed and read back from the server.

Sent twice, nothing is there twice: the server is asked first what it has. Rows have their epoch as
their step; a table or picture is sent if the server's was made of something else, or is missing.
It is a process of its own because W&B's client has no deadline: a cell that takes too long is ended
by ending its process.
"""

import json
import math
import os
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import wandb

from capsweep.ledger import causes
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.tracking import content as contents
from capsweep.tracking import wandb_run
from capsweep.tracking.child import TrackingError, kill_tree, private_pipe, remove_folder
from capsweep.tracking.content import Content
from capsweep.tracking.tables import CONFUSION, Table

READ_BACK_SECONDS = 15.0  # at most; a server may take a while to show what it has taken in
LOOK_SECONDS = 0.5


def upload_cell(content: Content, ledger: Ledger, folder: Path, seconds: float) -> None:
    """Complete the cell's run at the server that W&B is configured for.

    `folder` takes W&B's own files, and may go afterwards. The caller must bound the time too:
    `seconds` bounds W&B's waiting alone.
    Raises TrackingError when the server does not show all of it, and whatever W&B raises.
    """
    tables = contents.read_tables(ledger, content.signature, content.images)
    spec = contents.spec_of_content(_with_name(content), folder, offline=False)
    run = wandb_run.open_run(spec, seconds, seconds, is_copy=True)
    path, last = f"{run.entity}/{run.project}/{run.id}", -1
    missing = set(_wanted_digests(content, tables))
    if run.resumed:
        shown = _read_run(path, seconds)
        last, missing = shown.lastHistoryStep, _missing_files(shown, content, tables)
    for row in content.rows:
        if row["epoch"] > last:
            wandb_run.log_row(run, row)
    wandb_run.log_files(
        run,
        [table for table in tables if table.name in missing],
        {
            name: ledger.read(content.signature, f"{EVALUATIONS}/{name}") or b""
            for name in content.pictures
            if wandb_run.picture_key(name) in missing
        },
        max(spec.step, last + 1),
        spec.epoch,
    )
    run.summary.update(dict(content.summary))
    run.finish(exit_code=0 if content.status in ("finished", "stopped") else 1)
    _read_back(path, content, tables, seconds)


def _with_name(content: Content) -> Content:
    """W&B would make up a name for cells from before labels were kept."""
    name = content.labels.name or content.signature
    return replace(content, labels=replace(content.labels, name=name))


def _read_back(path: str, content: Content, tables: list[Table], seconds: float) -> None:
    """W&B's client ends quietly when it could not send: only the server knows what it has."""
    deadline = time.monotonic() + min(seconds / 4, READ_BACK_SECONDS)
    while missing := _missing_parts(_read_run(path, seconds), content, tables):
        if time.monotonic() > deadline:
            raise TrackingError(f"sent, but the server does not show {', '.join(missing)}")
        time.sleep(LOOK_SECONDS)


def _missing_parts(shown: Any, content: Content, tables: list[Table]) -> list[str]:
    missing = []
    if content.rows and shown.lastHistoryStep < content.rows[-1]["epoch"]:
        missing.append(f"epochs after {shown.lastHistoryStep}")
    sent = content.summary.items()
    missing += [key for key, value in sent if not _is_equal(shown.summary.get(key), value)]
    return missing + sorted(_missing_files(shown, content, tables))


def _missing_files(shown: Any, content: Content, tables: list[Table]) -> set[str]:
    """Keys of tables and pictures that the server does not show, the file included."""
    made_of = wandb_run.read_digests(shown.summary)
    wanted = _wanted_digests(content, tables)
    paths = {}
    for key, digest in wanted.items():
        value = shown.summary.get(f"{key}_table" if key == CONFUSION else key)
        if made_of.get(key) == digest and value is not None:
            paths[key] = value.get("path")
    if not paths:
        return set(wanted)
    names = [path for path in paths.values() if path is not None]
    files = {file.name for file in shown.files(names=names, per_page=max(len(names), 1))}
    return {key for key in wanted if paths.get(key) not in files}


def _wanted_digests(content: Content, tables: list[Table]) -> dict[str, str]:
    """Of all tables and pictures of a cell, by W&B's keys."""
    pictures = {wandb_run.picture_key(name): digest for name, digest in content.pictures.items()}
    return {table.name: table.digest for table in tables} | pictures


def _read_run(path: str, seconds: float) -> Any:
    """The run as the server has it now."""
    api = _open_api(seconds)
    api.flush()
    return api.run(path)


@cache
def _open_api(seconds: float) -> wandb.Api:
    return wandb.Api(timeout=max(1, math.ceil(seconds)))


def _is_equal(shown: Any, sent: Any) -> bool:
    if not isinstance(sent, float):
        return shown == sent
    if not math.isfinite(sent):
        return shown is not None  # W&B has words for these
    return isinstance(shown, int | float) and math.isclose(shown, sent, rel_tol=1e-9)


def main() -> None:
    """Answer requests from standard input, one by one, until the parent is gone."""
    answers = private_pipe(1)
    requests: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    os.environ["WANDB_MODE"] = "online"
    fault = None
    while True:
        os.write(answers, json.dumps({"fault": fault}).encode() + b"\n")
        request = requests.get()
        try:
            if request["do"] == "check":
                _check_login(request["seconds"])
            else:
                _handle_cell(request)
            fault = None
        except Exception as error:  # W&B's own faults have no common class
            fault = causes.describe_cause(error)


def _check_login(seconds: float) -> None:
    """Ask the server who is logged in. Raises what W&B raises if it refuses, or is silent."""
    if not _open_api(seconds).default_entity:
        raise TrackingError("the server does not know this login")


def _handle_cell(request: dict[str, Any]) -> None:
    """Upload one cell, and mark it."""
    wandb_run.use_storage(request["folder"])
    ledger = Ledger(request["ledger"])
    content = contents.read_content(ledger, request["signature"])
    with tempfile.TemporaryDirectory(dir=request["folder"]) as folder:
        upload_cell(content, ledger, Path(folder), request["seconds"])
    contents.write_mark(Path(request["storage"]), content, request["server"])


def _read_requests(requests: "SimpleQueue[dict[str, Any]]") -> None:
    """Queue requests; without a parent end at once, with W&B's process: the next sync must not
    meet one that still sends."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    remove_folder()
    kill_tree(os.getpid())


if __name__ == "__main__":
    main()
