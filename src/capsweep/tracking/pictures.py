"""Pictures that `capsweep eval` makes of a finished cell, added to its W&B run."""

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from capsweep.errors import ConfigError
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.storage.files import hash_bytes
from capsweep.tracking import content, marks, mode, tracker
from capsweep.tracking import opening as openings
from capsweep.tracking.content import Content
from capsweep.tracking.tracker import Tracker


def add(ledger: Ledger, signature: str, storage: Path, files: Mapping[str, bytes]) -> None:
    """Add PNG `files`, by their names below evals/, to the run of a cell that was tracked.

    Nothing where it was run without W&B or with logger.images=false. Whatever W&B does, it takes
    5 s at most and is said in one line; the pictures are in the ledger all the same.
    """
    found = content.of(ledger, signature)
    pictures = {name: png for name, png in files.items() if name.endswith(content.PICTURES)}
    if found.mode == "none" or not found.images or not pictures:
        return
    started = time.monotonic()
    try:
        online = found.mode == "online" and _is_online(str(storage))
    except ConfigError as error:
        print(f"W&B: {error}", file=sys.stderr)
        return
    opening = openings.of_content(found, storage, offline=not online)
    told = Tracker(opening, tracker.ROOM, spent=time.monotonic() - started)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / EVALUATIONS).mkdir()
        for name, png in pictures.items():
            (Path(folder) / EVALUATIONS / name).write_bytes(png)
        told.files(Path(folder))
        told.close(exit_code=0)
    if told.server is not None:
        _mark(storage, found, pictures, told.server)


@cache
def _is_online(storage: str) -> bool:
    """Whether W&B can be had now: a cell that was trained online may be asked of later offline."""
    logger = {"name": "wandb", "mode": "auto"}
    return mode.settle({"logger": logger, "places": {"storage": storage}})[0] == "online"


def _mark(storage: Path, found: Content, added: Mapping[str, bytes], server: str) -> None:
    """Where W&B had all but these pictures, it has all now."""
    others = {name: digest for name, digest in found.pictures.items() if name not in added}
    new = {name: hash_bytes(png) for name, png in added.items()}
    if marks.is_synced(storage, replace(found, pictures=others), server):
        marks.write(storage, replace(found, pictures=others | new), server)
