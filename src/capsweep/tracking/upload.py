"""One cell to W&B: the run whose id is the signature is opened, completed and read back.

Sent twice, nothing is there twice. Rows have their epoch as their step, and a run that is opened
again takes no step that it has; a picture is sent where the server's is missing or another one.
"""

import math
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep.errors import TrackingError
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.tracking.content import Content

if TYPE_CHECKING:
    import wandb

READ_BACK_SECONDS = 15.0  # a server may take a while to show what it has taken in
RETRY_SECONDS = 0.5  # between the attempts of W&B's client, which ends when our patience does


def send(content: Content, ledger: Ledger, folder: Path, seconds: float) -> None:
    """Complete the cell's run at the server that W&B is configured for.

    `folder` takes W&B's own files, and may go afterwards. `seconds` bounds the opening and the
    reading back; who calls must bound the rest, since W&B's client waits as long as it likes.
    Raises TrackingError when the server does not show all of it, and W&B's own errors.
    """
    run = _open(content, folder, seconds)
    path = f"{run.entity}/{run.project}/{run.id}"
    missing = set(content.pictures)
    if run.resumed:
        missing -= _shown_pictures(_read(path, seconds), content)
    for row in content.rows:
        run.log(row, step=row["epoch"])
    if missing:
        run.log(_epoch(content) | _pictures(content, missing, ledger, folder))
    run.summary.update(dict(content.summary))
    run.finish(exit_code=0 if content.status in ("finished", "stopped") else 1)
    _read_back(path, content, min(seconds, READ_BACK_SECONDS))


def check(seconds: float) -> None:
    """Ask the server who is logged in. Raises W&B's errors where it refuses or does not answer."""
    if not _api(seconds).default_entity:
        raise TrackingError("the server does not know this login")


def _open(content: Content, folder: Path, seconds: float) -> "wandb.Run":
    import wandb

    quiet = wandb.Settings(
        init_timeout=seconds,
        silent=True,
        console="off",
        # What this machine is says nothing about the one that trained.
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        disable_code=True,
        disable_git=True,
        x_graphql_retry_wait_min_seconds=RETRY_SECONDS,
        x_file_stream_retry_wait_min_seconds=RETRY_SECONDS,
        x_file_transfer_retry_wait_min_seconds=RETRY_SECONDS,
    )
    run = wandb.init(
        project=content.project,
        entity=content.entity,
        dir=str(folder),
        id=content.signature,
        name=content.labels.name or content.signature,
        group=content.labels.group,
        job_type=content.labels.job_type,
        notes=content.labels.notes,
        tags=content.labels.tags,
        config=dict(content.config),
        resume="allow",
        mode="online",
        settings=quiet,
    )
    run.define_metric("epoch")
    run.define_metric("*", step_metric="epoch")
    return run


def _pictures(
    content: Content, names: Iterable[str], ledger: Ledger, folder: Path
) -> dict[str, Any]:
    import wandb

    images = {}
    for name in sorted(names):
        path = folder / name
        path.write_bytes(ledger.read(content.signature, f"{EVALUATIONS}/{name}") or b"")
        images[key_of(name)] = wandb.Image(str(path))
    return images


def key_of(picture: str) -> str:
    """What a picture of evals/ is called in W&B: its name without the ending."""
    return picture.rpartition(".")[0]


def _epoch(content: Content) -> dict[str, Any]:
    return {"epoch": content.rows[-1]["epoch"]} if content.rows else {}


def _read(path: str, seconds: float) -> Any:
    """The run as the server has it now."""
    api = _api(seconds)
    api.flush()
    return api.run(path)


@cache
def _api(seconds: float) -> "wandb.Api":
    import wandb

    return wandb.Api(timeout=max(1, math.ceil(seconds)))


def _shown_pictures(run: Any, content: Content) -> set[str]:
    """The pictures that the server shows, the file included, as they are in the ledger."""
    stated = {name: run.summary.get(key_of(name)) for name in content.pictures}
    paths = {
        name: value["path"]
        for name, value in stated.items()
        if hasattr(value, "get") and value.get("sha256") == content.pictures[name]
    }
    if not paths:
        return set()
    files = {file.name for file in run.files(names=list(paths.values()))}
    return {name for name, file in paths.items() if file in files}


def _read_back(path: str, content: Content, seconds: float) -> None:
    """W&B's client ends quietly when it could not send: only the server knows what it has."""
    deadline = time.monotonic() + seconds
    while missing := _missing(_read(path, seconds), content):
        if time.monotonic() > deadline:
            raise TrackingError(f"sent, but the server does not show {', '.join(missing)}")
        time.sleep(RETRY_SECONDS)


def _missing(run: Any, content: Content) -> list[str]:
    missing = []
    if content.rows and run.lastHistoryStep < content.rows[-1]["epoch"]:
        missing.append(f"epochs after {run.lastHistoryStep}")
    summary = {key: run.summary.get(key) for key in content.summary}
    missing += [key for key, value in content.summary.items() if not _same(summary[key], value)]
    missing += sorted(set(content.pictures) - _shown_pictures(run, content))
    return missing


def _same(shown: Any, sent: Any) -> bool:
    if not isinstance(sent, float):
        return shown == sent
    if not math.isfinite(sent):
        return shown is not None  # W&B has words for these
    return isinstance(shown, int | float) and math.isclose(shown, sent, rel_tol=1e-9)
