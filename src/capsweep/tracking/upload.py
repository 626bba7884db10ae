"""One cell to W&B: the run whose id is the signature is opened, completed and read back.

Sent twice, nothing is there twice: the server is asked first what it has. Rows have their epoch as
their step; a table or picture is sent where the server's was made of something else, or is missing.
"""

import math
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import wandb

from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.tracking import content as contents
from capsweep.tracking import opening, wandb_run
from capsweep.tracking.child import TrackingError
from capsweep.tracking.content import Content
from capsweep.tracking.tables import CONFUSION, Table

READ_BACK_SECONDS = 15.0  # at most; a server may take a while to show what it has taken in
LOOK_SECONDS = 0.5


def send(found: Content, ledger: Ledger, folder: Path, seconds: float) -> None:
    """Complete the cell's run at the server that W&B is configured for.

    `folder` takes W&B's own files, and may go afterwards. Who calls must bound the time too, since
    `seconds` bounds W&B's waiting alone.
    Raises TrackingError when the server does not show all of it, and whatever W&B raises.
    """
    tables = contents.tables_of(ledger, found.signature, found.images)
    opened = opening.of_content(_named(found), folder, offline=False)
    run = wandb_run.open_run(opened, seconds, seconds, is_copy=True)
    path, last, missing = f"{run.entity}/{run.project}/{run.id}", -1, _wanted(found, tables)
    if run.resumed:
        shown = _read(path, seconds)
        last, missing = shown.lastHistoryStep, _missing_files(shown, found, tables)
    for row in found.rows:
        if row["epoch"] > last:
            wandb_run.log_row(run, row)
    wandb_run.log_files(
        run,
        [table for table in tables if table.name in missing],
        {
            name: ledger.read(found.signature, f"{EVALUATIONS}/{name}") or b""
            for name in found.pictures
            if wandb_run.key_of(name) in missing
        },
        max(opened.step, last + 1),
        opened.epoch,
    )
    run.summary.update(dict(found.summary))
    run.finish(exit_code=0 if found.status in ("finished", "stopped") else 1)
    _read_back(path, found, tables, seconds)


def _named(found: Content) -> Content:
    """Cells from before labels were kept have no name; W&B would make one up."""
    name = found.labels.name or found.signature
    return replace(found, labels=replace(found.labels, name=name))


def check(seconds: float) -> None:
    """Ask the server who is logged in. Raises what W&B raises where it refuses, or is silent."""
    if not _api(seconds).default_entity:
        raise TrackingError("the server does not know this login")


def _read_back(path: str, found: Content, tables: list[Table], seconds: float) -> None:
    """W&B's client ends quietly when it could not send: only the server knows what it has."""
    deadline = time.monotonic() + min(seconds / 4, READ_BACK_SECONDS)
    while missing := _missing(_read(path, seconds), found, tables):
        if time.monotonic() > deadline:
            raise TrackingError(f"sent, but the server does not show {', '.join(missing)}")
        time.sleep(LOOK_SECONDS)


def _missing(shown: Any, found: Content, tables: list[Table]) -> list[str]:
    missing = []
    if found.rows and shown.lastHistoryStep < found.rows[-1]["epoch"]:
        missing.append(f"epochs after {shown.lastHistoryStep}")
    told = {key: shown.summary.get(key) for key in found.summary}
    missing += [key for key, value in found.summary.items() if not _same(told[key], value)]
    return missing + sorted(_missing_files(shown, found, tables))


def _missing_files(shown: Any, found: Content, tables: list[Table]) -> set[str]:
    """Keys of tables and pictures that the server does not show, the file included."""
    made_of = wandb_run.digests(shown.summary)
    wanted = _wanted(found, tables)
    paths = {}
    for key, digest in wanted.items():
        told = shown.summary.get(f"{key}_table" if key == CONFUSION else key)
        if made_of.get(key) == digest and told is not None:
            paths[key] = told.get("path")
    if not paths:
        return set(wanted)
    names = [path for path in paths.values() if path is not None]
    files = {file.name for file in shown.files(names=names, per_page=max(len(names), 1))}
    return {key for key in wanted if paths.get(key) not in files}


def _wanted(found: Content, tables: list[Table]) -> dict[str, str]:
    pictures = {wandb_run.key_of(name): digest for name, digest in found.pictures.items()}
    return {table.name: table.digest for table in tables} | pictures


def _read(path: str, seconds: float) -> Any:
    """The run as the server has it now."""
    api = _api(seconds)
    api.flush()
    return api.run(path)


@cache
def _api(seconds: float) -> wandb.Api:
    return wandb.Api(timeout=max(1, math.ceil(seconds)))


def _same(shown: Any, sent: Any) -> bool:
    if not isinstance(sent, float):
        return shown == sent
    if not math.isfinite(sent):
        return shown is not None  # W&B has words for these
    return isinstance(shown, int | float) and math.isclose(shown, sent, rel_tol=1e-9)
