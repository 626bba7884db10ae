"""One W&B run: opened by its signature, then rows, confusion matrix, pictures, and the end.

Only processes that may wait for W&B import this: `handle_run` carries out the requests of a
`Tracker`, `handle_upload` those of a sync. A cell that is sent twice is there once: a run that is
opened again says what it has. Rows have their step of training as W&B's; a matrix or picture is
sent if the run's was made of something else.
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
from capsweep.tracking import content as contents
from capsweep.tracking import mode as modes
from capsweep.tracking.content import RunContent
from capsweep.tracking.tracker import TrackingError

FLUSH_SECONDS = 1.0  # W&B's own 15 s would lose a killed run whole
CONFUSION, SCORES = "confusion", "predictions.npz"
# Key of the summary: of what the matrix and each picture were made, and of all that a sync sent.
DIGESTS, WHOLE = "digests", "whole"
KILLED = 255
READ_BACK_SECONDS = 15.0  # at most; a server may take a while to show what it has taken in
LOOK_SECONDS = 0.5


class RunWriter:
    """Writes the runs of one cell after the other."""

    def __init__(self) -> None:
        self.run: Any = None

    def handle_request(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Carry out a request; only `finish` has an answer."""
        match request:
            case {"do": "open", **values}:
                use_storage(values["storage"])
                self.run = open_run(**values)
            case {"do": "log", "row": row}:
                log_row(self.run, row)
            case {"do": "finish"}:
                return self._finish_run(request)
            case _ if self.run is not None:  # the parent is gone
                self.run.finish(exit_code=KILLED)
        return None

    def _finish_run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        run, self.run = self.run, None
        run.summary.update(request["summary"])
        if (folder := request["folder"]) is not None:

            def read_file(name: str) -> bytes | None:
                path = Path(folder, name)
                return path.read_bytes() if path.exists() else None

            pictures = [file.name for file in sorted(Path(folder, EVALUATIONS).glob("*.png"))]
            log_files(run, read_file, pictures)
        url = run.url
        run.finish(exit_code=request["exit_code"])
        server = modes.without_login(run.settings.base_url)
        return {"server": server, "url": modes.without_login(url) if url else None}


handle_run = RunWriter().handle_request


def open_run(
    run: Mapping[str, Any],
    storage: str,
    mode: Literal["online", "offline"],
    seconds: float,
    of_process: int | None,
) -> wandb.Run:
    """The one run of a cell, new or resumed. Waits at most these seconds for the server, at the
    start and at the end.

    run: of `content.run_arguments`. of_process: the process whose use of processor and memory W&B
    draws; None: another one trained the cell, on this or another machine. Raises whatever W&B does.
    """
    # What W&B adds of the machine: one that only uploads is not the one that trained.
    switches = [f"x_disable_{part}" for part in ("meta", "stats", "machine_info")]
    switches += ["disable_code", "disable_git"]
    machine: Any = dict.fromkeys(switches, True) if of_process is None else {}
    if command := run["config"].get("command"):
        sys.argv = shlex.split(command)  # else W&B shows the words of this process
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
            program=sys.argv[0],
            silent=True,
            console="off",
            sagemaker_disable=True,  # it would give the run another id
            x_save_requirements=of_process is not None,
            **machine,
        ),
    )
    # A resumed run starts its own step count at 0 again; the epoch is what rows share.
    opened.define_metric("epoch")
    opened.define_metric("*", step_metric="epoch")
    opened.define_metric("step")
    opened.define_metric(POINT_LOSS, step_metric="step")
    return opened


def log_row(run: wandb.Run, row: Mapping[str, Any]) -> None:
    """Log the row of an epoch, or a point inside it, at its step, unless the run has it."""
    if row["step"] < run.starting_step:
        return
    is_point = POINT_LOSS in row
    # The epoch of a point is a fraction: metrics of epochs would get it as their place.
    values = {name: row[name] for name in ("step", POINT_LOSS)} if is_point else dict(row)
    # At an epoch's end, its row joins a point.
    run.log(values, step=row["step"], commit=not is_point)


def log_files(
    run: wandb.Run, read: Callable[[str], bytes | None], pictures: Iterable[str]
) -> dict[str, str]:
    """Log the cell's confusion matrix and pictures that the run does not have as they are now; the
    digests of all, by W&B's keys.

    read: gives a file of the cell. pictures: names below evals/.
    """
    run_digests, digests = read_digests(run.summary), {}
    logged: dict[str, Any] = {}
    predictions = read(SCORES)
    if predictions is not None:
        digests[CONFUSION] = hash_bytes(predictions)
        scores_MN, labels = stored_files.read_predictions(predictions, SCORES)
        # Of several classes in an image, a prediction does not say for which it stands.
        if run_digests.get(CONFUSION) != digests[CONFUSION] and labels.ndim == 1:
            logged[CONFUSION] = wandb.plot.confusion_matrix(
                y_true=labels.tolist(),
                preds=scores_MN.argmax(axis=1).tolist(),
                class_names=list(map(str, range(scores_MN.shape[1]))),
                title="",
            )
    for name in pictures:
        png, key = read(f"{EVALUATIONS}/{name}") or b"", f"pictures/{Path(name).stem}"
        digests[key] = hash_bytes(png)
        if run_digests.get(key) != digests[key]:
            logged[key] = wandb.Image(Image.open(io.BytesIO(png)))
    if logged:
        # They stand after the last epoch; in a cell without one, nowhere.
        logged |= {} if (epoch := run.summary.get("epoch")) is None else {"epoch": epoch}
        # A resumed run drops a row at a step that it has, without a word.
        step = max(run.starting_step, run.step)
        run.log(logged, step=step, commit=True)
        run.summary.update({DIGESTS: run_digests | digests})
    return digests


def read_digests(summary: Any) -> dict[str, str]:
    """Digests of the matrix and pictures that a run has, by W&B's keys, from its summary."""
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


def handle_upload(request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request: `start` (W&B is imported then), `check` the login, or `upload`."""
    os.environ["WANDB_MODE"] = "online"
    seconds = math.ceil(request["seconds"])
    if request["do"] == "check" and not wandb.Api(timeout=seconds).default_entity:
        raise TrackingError("the server does not know this login")
    if request["do"] == "upload":
        ledger = Ledger(request["ledger"])
        content = contents.read_content(ledger, request["signature"])
        upload_cell(content, ledger, seconds)
        contents.write_mark(Path(request["storage"]), content, request["server"])
    return {}


def upload_cell(content: RunContent, ledger: Ledger, seconds: int) -> None:
    """Complete the cell's run at the server that W&B is configured for.

    The caller must bound the time too, by ending this process: `seconds` bounds W&B's waiting
    alone, and its client has no deadline.
    Raises TrackingError when the server does not show all of it, and whatever W&B raises.
    """
    folder = tempfile.gettempdir()  # of this process alone
    use_storage(folder)
    run = open_run(content.run, folder, "online", seconds, of_process=None)
    for row in content.rows:
        log_row(run, row)
    read = partial(ledger.read, content.signature)
    digests = log_files(run, read, content.pictures) | {WHOLE: content.digest}
    run.summary.update({**content.summary, DIGESTS: digests})
    run.finish(exit_code=0 if content.status in ("finished", "stopped") else 1)
    last = max((row["step"] for row in content.rows if POINT_LOSS not in row), default=-1)
    _read_back(f"{run.entity}/{run.project}/{run.id}", digests, last, seconds)


def _read_back(path: str, digests: Mapping[str, str], last: int, seconds: int) -> None:
    """W&B's client ends quietly when it could not send: only the server knows what it has."""
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
