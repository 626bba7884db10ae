"""One W&B run, spoken to: opened by its signature, rows, tables, pictures, end.

Only processes that may wait for W&B import this: the tracker's own, and a sync.
"""

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import wandb

from capsweep.storage.files import hash_bytes
from capsweep.tracking import mode
from capsweep.tracking.opening import Opening
from capsweep.tracking.tables import CONFUSION, Table

FLUSH_SECONDS = 1.0  # W&B's own 15 s would lose a killed run whole
CONFUSION_CHART = "wandb/confusion_matrix/v1"
DIGESTS = "digests"  # key of the summary: of what each table and picture was made


def open_run(
    opening: Opening, init_seconds: float, finish_seconds: float, is_copy: bool = False
) -> wandb.Run:
    """The one run of a cell, new or gone on with. Waits for a server at most so long at both ends.

    is_copy: of what another process, on this or another machine, has trained.
    Raises whatever W&B raises.
    """
    labels = opening.labels
    run = wandb.init(
        project=opening.project,
        entity=opening.entity,
        dir=opening.storage,
        id=opening.signature,
        name=labels.name,
        group=labels.group,
        job_type=labels.job_type,
        notes=labels.notes,
        tags=labels.tags,
        config=dict(opening.config),
        resume="allow",
        mode="offline" if opening.offline else "online",
        settings=wandb.Settings(
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            init_timeout=init_seconds,
            login_timeout=init_seconds,
            finish_timeout=finish_seconds,
            finish_timeout_raises=True,
            x_stats_pid=opening.of_process,
            silent=True,
            console="off",
            # What the machine that sends does, and is, says nothing of the one that trained.
            x_disable_meta=is_copy,
            x_disable_stats=is_copy,
            x_disable_machine_info=is_copy,
            x_save_requirements=not is_copy,
            disable_code=is_copy,
            disable_git=is_copy,
        ),
    )
    # A resumed run starts its own step count at 0 again; the epoch is what rows share.
    run.define_metric("epoch")
    run.define_metric("*", step_metric="epoch")
    return run


def log_row(run: wandb.Run, row: Mapping[str, Any]) -> None:
    """One epoch. An epoch that the run has already is not drawn twice."""
    run.log(dict(row), step=row["epoch"], commit=True)


def log_files(
    run: wandb.Run,
    tables: Iterable[Table],
    pictures: Mapping[str, bytes],
    step: int,
    epoch: int | None = None,
) -> None:
    """Tables, their pictures within, and PNG files by their names.

    step: after the epochs. epoch: the last; W&B knows it itself where it was logged just before.
    """
    logged: dict[str, Any] = {}
    made_of: dict[str, str] = {}
    for table in tables:
        logged |= _table(table)
        made_of[table.name] = table.digest
    logged |= {key_of(name): _picture(png) for name, png in pictures.items()}
    if logged:
        logged |= {} if epoch is None else {"epoch": epoch}
        run.log(logged, step=step, commit=True)
        made_of |= {key_of(name): hash_bytes(png) for name, png in pictures.items()}
        run.summary.update({DIGESTS: digests(run.summary) | made_of})


def digests(summary: Any) -> dict[str, str]:
    """Of what each table and picture was made that a run's summary tells of, by W&B's keys."""
    told = summary.get(DIGESTS)
    return {} if told is None else {key: told[key] for key in list(told.keys())}


def server(run: wandb.Run) -> str:
    """The URL of the server that has the run."""
    return mode.public(run.settings.base_url)


def url(run: wandb.Run) -> str | None:
    """Where people look at the run; None for one that is offline."""
    return mode.public(run.url) if run.url else None


def stay_in(storage: str) -> None:
    """Before the first run: what W&B keeps beside runs is in the storage too, not in a home that
    may be full or read-only, and where nobody asked for it, others are not told of its errors.

    Raises OSError where the storage cannot be written: W&B would take a temporary folder instead.
    """
    Path(storage).mkdir(parents=True, exist_ok=True)
    if not os.access(storage, os.R_OK | os.W_OK):
        raise PermissionError(f"{storage} cannot be written")
    for name in ("data", "cache"):
        os.environ.setdefault(f"WANDB_{name.upper()}_DIR", str(Path(storage, "wandb", name)))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _table(table: Table) -> dict[str, Any]:
    made = wandb.Table(columns=list(table.columns))
    for row in table.rows:
        made.add_data(*map(_shown, row))
    if table.name != CONFUSION:
        return {table.name: made}
    fields = {name: name for name in table.columns}
    return {table.name: wandb.plot_table(CONFUSION_CHART, made, fields, {"title": ""})}


def key_of(name: str) -> str:
    """What a picture of evals/ is called in W&B."""
    return f"pictures/{Path(name).stem}"


def _picture(png: bytes) -> wandb.Image:
    from PIL import Image

    return wandb.Image(Image.open(io.BytesIO(png)))


def _shown(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    channels = value.transpose(1, 2, 0)  # uint8 [C, H, W], as a network is shown it
    return wandb.Image(channels if channels.shape[2] == 3 else channels[:, :, 0])
