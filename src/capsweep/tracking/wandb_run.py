"""One W&B run: opened by its signature, then rows, tables, pictures, and the end.

Only processes that may wait for W&B import this; one of kind "run" carries out the requests of a
`Tracker` by `handle`.
"""

import io
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import wandb
from PIL import Image

from capsweep.ledger.ledger import EVALUATIONS
from capsweep.storage.files import hash_bytes
from capsweep.tracking import mode as modes
from capsweep.tracking import tables
from capsweep.tracking.content import EXAMPLES, PICTURES, SCORES, picture_key
from capsweep.tracking.tables import CONFUSION, Table

FLUSH_SECONDS = 1.0  # W&B's own 15 s would lose a killed run whole
CONFUSION_CHART = "wandb/confusion_matrix/v1"
DIGESTS = "digests"  # key of the summary: of what each table and picture was made
KILLED = 255


class RunWriter:
    """Writes the runs of one cell after the other."""

    def __init__(self) -> None:
        self.run: Any = None
        self.epoch: int | None = None

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Carry out a request; only `finish` has an answer."""
        values = {key: value for key, value in request.items() if key != "do"}
        if request["do"] == "open":
            use_storage(request["storage"])
            self.run, self.epoch = open_run(**values), None
        elif request["do"] == "log":
            self.epoch = request["row"]["epoch"]
            log_row(self.run, request["row"])
        elif request["do"] == "finish":
            return self._finish(**values)
        elif self.run is not None:  # the parent is gone
            self.run.finish(exit_code=KILLED)
        return None

    def _finish(
        self,
        exit_code: int,
        summary: Mapping[str, Any],
        folder: str | None,
        images: bool,
        seconds: float,
    ) -> dict[str, Any]:
        run, self.run = self.run, None
        run.summary.update(summary)
        if folder is not None:
            files = sorted(Path(folder, EVALUATIONS).glob("*")) if images else []
            pictures = [file.name for file in files if file.suffix in PICTURES]
            log_files(run, partial(_read_file, folder), pictures, images, self.epoch)
        url = run.url
        run.finish(exit_code=exit_code)
        server = modes.without_login(run.settings.base_url)
        return {"server": server, "url": modes.without_login(url) if url else None}


def _read_file(folder: str, name: str) -> bytes | None:
    path = Path(folder, name)
    return path.read_bytes() if path.exists() else None


handle = RunWriter().handle


def open_run(
    run: Mapping[str, Any],
    storage: str,
    mode: Literal["online", "offline"],
    seconds: float,
    of_process: int | None,
) -> wandb.Run:
    """The one run of a cell, new or resumed. Waits at most these seconds for the server, at the
    start and at the end.

    run: of `content.run_arguments`. of_process: whose use of processor and memory W&B draws; None:
    another process trained the cell, on this or another machine. Raises whatever W&B raises.
    """
    is_copy = of_process is None
    opened = wandb.init(
        **run,
        dir=storage,
        mode=mode,
        resume="allow",
        settings=wandb.Settings(
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            init_timeout=seconds,
            login_timeout=seconds,
            finish_timeout=seconds,
            finish_timeout_raises=True,
            x_stats_pid=of_process or os.getpid(),
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
    opened.define_metric("epoch")
    opened.define_metric("*", step_metric="epoch")
    return opened


def log_row(run: wandb.Run, row: Mapping[str, Any]) -> None:
    """One epoch. An epoch that the run has already is not drawn twice."""
    run.log(dict(row), step=row["epoch"], commit=True)


def log_files(
    run: wandb.Run,
    read: Callable[[str], bytes | None],
    pictures: Iterable[str],
    images: bool,
    epoch: int | None,
) -> dict[str, str]:
    """Log the cell's tables and pictures that the run does not have as they are now; the digests of
    all, by W&B's keys.

    read: gives a file of the cell. pictures: names below evals/. images: whether tables have
    pictures. epoch: the last one, after which they stand.
    """
    known, digests = read_digests(run.summary), {}
    logged: dict[str, Any] = {}
    for table in tables.make_tables(read(SCORES), read(EXAMPLES), images):
        digests[table.name] = table.digest
        if known.get(table.name) != table.digest:
            logged |= _wandb_table(table)
    for name in pictures:
        png, key = read(f"{EVALUATIONS}/{name}") or b"", picture_key(name)
        digests[key] = hash_bytes(png)
        if known.get(key) != digests[key]:
            logged[key] = wandb.Image(Image.open(io.BytesIO(png)))
    if logged:
        logged |= {} if epoch is None else {"epoch": epoch}
        # A resumed run drops a row at a step that it has, without a word.
        step = max(run.starting_step, 0 if epoch is None else epoch + 1)
        run.log(logged, step=step, commit=True)
        run.summary.update({DIGESTS: known | digests})
    return digests


def read_digests(summary: Any) -> dict[str, str]:
    """Digests of the tables and pictures that a run has, by W&B's keys, from its summary."""
    digests = summary.get(DIGESTS)
    return {} if digests is None else {key: digests[key] for key in list(digests.keys())}


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
    rows = wandb.Table(columns=list(table.columns))
    for row in table.rows:
        rows.add_data(*map(_wandb_value, row))
    if table.name != CONFUSION:
        return {table.name: rows}
    fields = {name: name for name in table.columns}
    return {table.name: wandb.plot_table(CONFUSION_CHART, rows, fields, {"title": ""})}


def _wandb_value(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    channels = value.transpose(1, 2, 0)  # from uint8 [C, H, W]
    return wandb.Image(channels if channels.shape[2] == 3 else channels[:, :, 0])
