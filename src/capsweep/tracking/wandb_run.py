"""One W&B run: opened by its signature, then rows, tables, pictures, and the end.

Only processes that may wait for W&B import this: the tracking process and a sync's.
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
from capsweep.tracking.content import RunSpec
from capsweep.tracking.tables import CONFUSION, Table

FLUSH_SECONDS = 1.0  # W&B's own 15 s would lose a killed run whole
CONFUSION_CHART = "wandb/confusion_matrix/v1"
DIGESTS = "digests"  # key of the summary: of what each table and picture was made


def open_run(
    spec: RunSpec, init_seconds: float, finish_seconds: float, is_copy: bool = False
) -> wandb.Run:
    """The one run of a cell, new or resumed. Waits at most these seconds for the server, at the
    start and at the end.

    is_copy: another process trained the cell, on this or another machine.
    Raises whatever W&B raises.
    """
    labels = spec.labels
    run = wandb.init(
        project=spec.project,
        entity=spec.entity,
        dir=spec.storage,
        id=spec.signature,
        name=labels.name,
        group=labels.group,
        job_type=labels.job_type,
        notes=labels.notes,
        tags=labels.tags,
        config=dict(spec.config),
        resume="allow",
        mode="offline" if spec.offline else "online",
        settings=wandb.Settings(
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            init_timeout=init_seconds,
            login_timeout=init_seconds,
            finish_timeout=finish_seconds,
            finish_timeout_raises=True,
            x_stats_pid=spec.of_process,
            silent=True,
            console="off",
            # The machine that uploads is not the one that trained.
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
        logged |= _wandb_table(table)
        made_of[table.name] = table.digest
    logged |= {picture_key(name): _wandb_image(png) for name, png in pictures.items()}
    if logged:
        logged |= {} if epoch is None else {"epoch": epoch}
        run.log(logged, step=step, commit=True)
        made_of |= {picture_key(name): hash_bytes(png) for name, png in pictures.items()}
        run.summary.update({DIGESTS: read_digests(run.summary) | made_of})


def read_digests(summary: Any) -> dict[str, str]:
    """Digests of the tables and pictures that a run has, by W&B's keys, from its summary."""
    digests = summary.get(DIGESTS)
    return {} if digests is None else {key: digests[key] for key in list(digests.keys())}


def server_url(run: wandb.Run) -> str:
    """The URL of the server that has the run."""
    return mode.without_login(run.settings.base_url)


def run_url(run: wandb.Run) -> str | None:
    """Where people look at the run; None for one that is offline."""
    return mode.without_login(run.url) if run.url else None


def use_storage(storage: str) -> None:
    """Before the first run: W&B keeps its data and cache in the storage, not in a home that may be
    full or read-only, and reports its own errors to nobody, unless the environment says otherwise.

    Raises OSError for a storage that cannot be written: W&B would take a temporary folder instead.
    """
    Path(storage).mkdir(parents=True, exist_ok=True)
    if not os.access(storage, os.R_OK | os.W_OK):
        raise PermissionError(f"{storage} cannot be written")
    for name in ("data", "cache"):
        os.environ.setdefault(f"WANDB_{name.upper()}_DIR", str(Path(storage, "wandb", name)))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _wandb_table(table: Table) -> dict[str, Any]:
    made = wandb.Table(columns=list(table.columns))
    for row in table.rows:
        made.add_data(*map(_wandb_value, row))
    if table.name != CONFUSION:
        return {table.name: made}
    fields = {name: name for name in table.columns}
    return {table.name: wandb.plot_table(CONFUSION_CHART, made, fields, {"title": ""})}


def picture_key(name: str) -> str:
    """What a picture of evals/ is called in W&B."""
    return f"pictures/{Path(name).stem}"


def _wandb_image(png: bytes) -> wandb.Image:
    from PIL import Image

    return wandb.Image(Image.open(io.BytesIO(png)))


def _wandb_value(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    channels = value.transpose(1, 2, 0)  # from uint8 [C, H, W]
    return wandb.Image(channels if channels.shape[2] == 3 else channels[:, :, 0])
