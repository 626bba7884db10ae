"""The writing of one W&B run: its start, rows, confusion matrix, pictures and end.

Only processes that may wait for W&B import this module. `Requests` has a method for each request
to such a process. The id of a run is the cell's signature, so a cell that is sent twice is one run.
Rows are sent only if their step is after the last step of the run. The confusion matrix and each
picture are sent only if the summary of the run does not have their digest.
"""

import io
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import wandb
from PIL import Image

from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, POINT_LOSS, Ledger
from capsweep.storage.files import hash_bytes
from capsweep.storage.stores import Disk
from capsweep.tracking import content as contents
from capsweep.tracking import mode as modes
from capsweep.tracking.content import RunContent
from capsweep.tracking.tracker import TrackingError
from capsweep.tracking.upload import SweepView, build_workspace

FLUSH_SECONDS = 1.0  # with W&B's default of 15 s, a killed run could lose everything
CONFUSION, SCORES = "confusion", "predictions.npz"
# DIGESTS: key of the digests in a run's summary. WHOLE: key of the digest of the whole content.
DIGESTS, WHOLE = "digests", "whole"
KILLED = 255  # exit status of a run whose training process is gone
READ_BACK_SECONDS = 15.0  # longest wait until the server shows what it has received
LOOK_SECONDS = 0.5  # wait between two requests that ask what the server has


class Requests:
    """The requests that a `WandbProcess` carries out: each method is a request.

    `open`, `log`, `finish` and `end` are for a `Tracker`, which writes one run after another. The
    other requests are for commands. A request without an answer returns None.
    """

    def __init__(self) -> None:
        self.run: Any = None  # the open run of a `Tracker`

    def open(self, **values: Any) -> None:
        """Open a run with the arguments of `open_run`."""
        use_storage(values["storage"])
        self.run = open_run(**values)

    def log(self, row: Mapping[str, Any]) -> None:
        """Log a row in the open run."""
        log_row(self.run, row)

    def finish(
        self, seconds: float, exit_code: int, summary: Mapping[str, Any], folder: str | None
    ) -> dict[str, Any]:
        """Send summary, matrix and pictures, end the run, and return server and URL if online."""
        run, self.run = self.run, None
        run.summary.update(summary)
        if folder is not None:
            disk = Disk(Path(folder))
            names = disk.list_names(EVALUATIONS)
            log_files(run, disk.read, [name for name in names if name.endswith(".png")])
        url = run.url  # None: the run is offline
        run.finish(exit_code=exit_code)
        online = {} if url is None else {"server": run.settings.base_url, "url": url}
        return {name: modes.remove_login(place) for name, place in online.items()}

    def end(self) -> None:
        """End the open run, because the training process is gone."""
        if self.run is not None:
            self.run.finish(exit_code=KILLED)

    def start(self, seconds: float) -> dict[str, Any]:
        """Do nothing: the process has imported this module and W&B."""
        return {}

    def check(self, seconds: float) -> dict[str, Any]:
        """Check the login.

        Raises:
            TrackingError: If the server does not know the login.
        """
        if not wandb.Api(timeout=math.ceil(seconds)).default_entity:
            raise TrackingError("the server does not know this login")
        return {}

    def upload(
        self, seconds: float, signature: str, ledger: str, storage: str, server: str
    ) -> dict[str, Any]:
        """Send a cell to the server, and write the mark of the cell.

        Raises:
            TrackingError: If the server does not show all of the cell.
            DamageError: If a file of the cell is damaged.
        """
        os.environ["WANDB_MODE"] = "online"
        cells, marks = Ledger(ledger), Path(storage)
        columns = contents.read_columns(marks).get(signature, {})
        content = contents.read_content(cells, signature, columns)
        upload_cell(content, cells, math.ceil(seconds))
        contents.write_mark(marks, content, server)
        return {}

    def save(
        self, seconds: float, view: Mapping[str, Any], entity: str | None, project: str
    ) -> dict[str, Any]:
        """Save the workspace of a sweep, and return its URL."""
        place = entity or wandb.Api().default_entity or ""
        workspace = build_workspace(SweepView(**view), place, project)
        workspace.save()
        return {"url": workspace.url}


def open_run(
    run: Mapping[str, Any],
    storage: str,
    mode: Literal["online", "offline"],
    seconds: float,
    measured_process: int | None,
) -> wandb.Run:
    """Open the W&B run of a cell, or resume the run if it exists already.

    Exceptions of W&B are passed on.

    Args:
        run: The arguments that `content.make_run_arguments` returned.
        storage: The folder for W&B's files.
        mode: "online": W&B sends the run; "offline": W&B only stores the run below `storage`.
        seconds: The time limit in seconds for opening the run, and again for finishing the run.
        measured_process: The id of the process that trains the cell. W&B records how much of the
            processor and memory this process uses. None: W&B records nothing about this machine,
            because the cell was trained by an earlier process or on another machine.
    """
    # W&B would add facts of this machine, but another machine may have trained the cell.
    switches = [f"x_disable_{part}" for part in ("meta", "stats", "machine_info")]
    switches += ["disable_code", "disable_git"]
    machine: Any = dict.fromkeys(switches, True) if measured_process is None else {}
    if command := run["config"].get("command"):
        sys.argv = shlex.split(command)  # else W&B would show the command line of this process
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
            x_stats_pid=measured_process or os.getpid(),
            program=sys.argv[0],
            silent=True,
            console="off",
            sagemaker_disable=True,  # SageMaker would give the run another id
            x_save_requirements=measured_process is not None,
            **machine,
        ),
    )
    # W&B counts the steps of a resumed run from 0 again, so the epoch is the common axis of rows.
    opened.define_metric("epoch")
    opened.define_metric("*", step_metric="epoch")
    opened.define_metric("step")
    opened.define_metric(POINT_LOSS, step_metric="step")
    return opened


def log_row(run: wandb.Run, row: Mapping[str, Any]) -> None:
    """Log a row of metrics.jsonl or steps.jsonl if the run does not have the row's step yet."""
    if row["step"] < run.starting_step:
        return
    is_point = POINT_LOSS in row
    # In a row of steps.jsonl, the epoch is a fraction, which must not be on the axis of epochs.
    values = {name: row[name] for name in ("step", POINT_LOSS)} if is_point else dict(row)
    # W&B joins the row of an epoch with the row of the epoch's last step.
    run.log(values, step=row["step"], commit=not is_point)


def log_files(
    run: wandb.Run, read: Callable[[str], bytes | None], pictures: Iterable[str]
) -> dict[str, str]:
    """Log the confusion matrix and the pictures of a cell if they are new or have changed.

    Args:
        run: The open run.
        read: Returns the content of a file of the cell; None: the file is missing.
        pictures: The names of pictures in evals/.

    Returns:
        The digest of predictions.npz, which has the scores for the matrix, and the digest of each
        picture. The keys are the names that the matrix and the pictures have at W&B.
    """
    run_digests, digests = read_digests(run.summary), {}
    logged: dict[str, Any] = {}
    predictions = read(SCORES)
    if predictions is not None:
        digests[CONFUSION] = hash_bytes(predictions)
        scores_MN, labels = stored_files.read_predictions(predictions, SCORES)
        # An image with several classes has no single label, so there is no confusion matrix.
        if run_digests.get(CONFUSION) != digests[CONFUSION] and labels.ndim == 1:
            logged[CONFUSION] = wandb.plot.confusion_matrix(
                y_true=labels.tolist(),
                preds=scores_MN.argmax(axis=1).tolist(),
                class_names=run.config.get(contents.CLASS_NAMES)
                or list(map(str, range(scores_MN.shape[1]))),
                title="",
            )
    for name in pictures:
        png, key = read(f"{EVALUATIONS}/{name}") or b"", f"pictures/{Path(name).stem}"
        digests[key] = hash_bytes(png)
        if run_digests.get(key) != digests[key]:
            logged[key] = wandb.Image(Image.open(io.BytesIO(png)))
    if logged:
        # Matrix and pictures are logged at the last epoch, if the run has an epoch.
        logged |= {} if (epoch := run.summary.get("epoch")) is None else {"epoch": epoch}
        # If a resumed run already has the step of a row, W&B silently drops the row.
        step = max(run.starting_step, run.step)
        run.log(logged, step=step, commit=True)
        run.summary.update({DIGESTS: run_digests | digests})
    return digests


def read_digests(summary: Any) -> dict[str, str]:
    """Read the digests of the matrix and the pictures from the summary of a run."""
    digests = summary.get(DIGESTS)
    return {} if digests is None else {key: digests[key] for key in list(digests.keys())}


def use_storage(storage: str) -> None:
    """Put W&B's folders below the storage, and switch off W&B's error reports.

    W&B's default is the home folder, which may be full or read-only. Environment variables that are
    already set keep their values. Call this function before the first run.

    Raises:
        OSError: If the storage cannot be written. Without this check, W&B would silently use a
            temporary folder.
    """
    Path(storage).mkdir(parents=True, exist_ok=True)
    if not os.access(storage, os.R_OK | os.W_OK):
        raise PermissionError(f"{storage} cannot be written")
    for name in ("data", "cache"):
        os.environ.setdefault(f"WANDB_{name.upper()}_DIR", str(Path(storage, "wandb", name)))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def upload_cell(content: RunContent, ledger: Ledger, seconds: int) -> None:
    """Send the whole content of a cell to the configured server, and check that it has arrived.

    The caller must kill this process after some time: `seconds` limits some waits of W&B's client,
    but the client has no total time limit. Exceptions of W&B are passed on.

    Raises:
        TrackingError: If the server does not show the whole content.
    """
    folder = tempfile.gettempdir()  # a folder of this process only
    use_storage(folder)
    run = open_run(content.run, folder, "online", seconds, measured_process=None)
    for row in content.rows:
        log_row(run, row)
    read = partial(ledger.read, content.signature)
    digests = log_files(run, read, content.pictures) | {WHOLE: content.digest}
    run.summary.update({**content.summary, DIGESTS: digests})
    run.finish(exit_code=0 if content.status in ("finished", "stopped") else 1)
    last = max((row["step"] for row in content.rows if POINT_LOSS not in row), default=-1)
    _read_back(f"{run.entity}/{run.project}/{run.id}", digests, last, seconds)


def _read_back(path: str, digests: Mapping[str, str], last: int, seconds: int) -> None:
    """Wait until the server shows the last step and all digests of the run at `path`.

    W&B's client ends without an error even if it could not send the run. Only the server can
    confirm that it has the run.

    Raises:
        TrackingError: If the server does not show all after min(READ_BACK_SECONDS, seconds / 4).
    """
    api = wandb.Api(timeout=seconds)
    deadline = time.monotonic() + min(seconds / 4, READ_BACK_SECONDS)
    while True:
        api.flush()
        run = api.run(path)
        if run.lastHistoryStep >= last and read_digests(run.summary) == digests:
            return
        if time.monotonic() > deadline:
            raise TrackingError(f"sent, but the server has {run.lastHistoryStep} of {last} steps")
        time.sleep(LOOK_SECONDS)
