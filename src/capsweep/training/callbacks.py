"""The Lightning callback that records the training of a cell, and functions for its checkpoints.

The callback writes a row of metrics.jsonl for each epoch, several rows of steps.jsonl for each
epoch, and checkpoints. A row of steps.jsonl is called a point. A point has the mean loss of the
steps since the previous point. The callback also ends training when an accuracy is reached.

The callback is a subclass of Lightning's `Checkpoint`. At the end of an epoch, Lightning first
calls other callbacks, then the module, and then subclasses of `Checkpoint`. So the module has
collected the metrics of the epoch before this callback records them.
"""

import math
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from capsweep.errors import AccuracyNotReachedError, DataError, LeftEarlyError
from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.ledger import METRICS, POINT_LOSS, POINTS, Ledger
from capsweep.ledger.stored_files import RESUME
from capsweep.runtime.lightning import Checkpoint, LightningModule, Trainer
from capsweep.runtime.terminal import count_of
from capsweep.storage.files import write_atomically
from capsweep.training import Row, RunHooks
from capsweep.training.module import CapsuleTask

ROUNDING = 1e-9  # tolerance for the rounding of `1 - error`; one example changes `error` far more
# Keys in provenance and result. Why the cell started at epoch 0 in spite of a checkpoint; and from
# which finished cell it continued.
RESTART_KEY, CONTINUED_KEY = "begun_anew", "continued_from"
CIRCUMSTANCES = ("code", "versions", "hardware", "implementations")
AUTO_STEPS, POINTS_OF_EPOCH, MOST_POINTS = 50, 10, 1000
RecordRow = Callable[[str, Row], None]  # its arguments are the name of a file and the row


class EpochRecorder(Checkpoint):
    """A callback that writes metrics.jsonl, steps.jsonl and resume.ckpt during training.

    At the end of an epoch, a checkpoint is written if the last checkpoint is older than
    `trainer.checkpoint_interval` seconds. A checkpoint contains the rows of all epochs so far, and
    the provenance of the runs that trained these epochs. A resumed run therefore continues
    metrics.jsonl and steps.jsonl, and repeats no row. If a hook or SIGTERM ends the run early, the
    callback writes a checkpoint and raises LeftEarlyError. After the last epoch, hooks and SIGTERM
    do not end the run, and the test follows.

    If `stop_accuracy` is set, training ends after the first epoch whose validation accuracy reaches
    `stop_accuracy`, so that networks are compared at equal accuracy. In section 5.2 of "Dynamic
    Routing Between Capsules", a CapsNet and a convolutional network are compared on affNIST after
    both have reached 99.2 % on expanded MNIST. For most data sets, we measure the accuracy on
    training images that are held out. For a few data sets, such as the viewpoints of smallNORB, we
    measure the accuracy on test images. Section 5.1 of "Matrix capsules with EM routing" also uses
    test images, as a footnote there says.

    Args:
        task: The task that is trained.
        directory: The folder of the cell.
        hooks: Hooks with which the caller follows the epochs and ends the run early.
        record_row: Writes a row to metrics.jsonl or steps.jsonl.
        digests: For each split, the SHA-256 of its data. Loading a checkpoint raises DataError if
            the epochs of the checkpoint were trained on other data.

    Attributes:
        accuracy: The validation accuracy that ends training; None: all epochs are trained.
        rows: The rows of metrics.jsonl, including the rows of earlier runs of the cell.
        points: The rows of steps.jsonl, including the rows of earlier runs of the cell.
        earlier_seconds: The time in seconds that the epochs of earlier runs took.
        started: The time at which the current epoch began, on the monotonic clock.
        kept: The time at which the last checkpoint was written, on the monotonic clock. Before the
            first checkpoint, the time at which this object was made.
    """

    def __init__(
        self,
        task: CapsuleTask,
        directory: CellDirectory,
        hooks: RunHooks,
        record_row: RecordRow,
        digests: Mapping[str, str],
    ) -> None:
        self.task, self.directory, self.hooks = task, directory, hooks
        self.record_row = record_row
        self.accuracy, self.digests = task.config["stop_accuracy"], dict(digests)
        self.rows: list[Row] = []
        self.points: list[Row] = []
        self.earlier_seconds = 0.0
        self.started, self.kept = 0.0, time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint stores: rows, points, provenance and digests of the data."""
        provenance = self.directory.read_provenance()
        recorded = {"rows": self.rows, "points": self.points, "provenance": provenance}
        return {**recorded, "digests": self.digests}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the rows and points of a checkpoint.

        Raises:
            DataError: If the data changed after the checkpoint was written.
        """
        if state_dict["digests"] != self.digests:
            raise DataError(
                f"the data changed after the first epochs of this cell: sha256 {self.digests} "
                f"now, {state_dict['digests']} in its resume.ckpt; restore the data, or remove the "
                "cell (capsweep ledger rm) and run it again"
            )
        self.rows, self.points = list(state_dict["rows"]), list(state_dict["points"])
        self.earlier_seconds = sum(row["seconds"] for row in self.rows)
        # If the earlier run was interrupted after its last epoch, this run trains no epoch, and the
        # metrics of the last epoch are taken from its row.
        last = self.rows[-1] if self.rows else {}
        self.task.epoch_metrics |= {key: value for key, value in last.items() if "/" in key}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install our SIGTERM handler, and end training if an earlier run reached `accuracy`."""
        trainer.should_stop |= bool(self.rows) and is_reached(self.accuracy, self.rows[-1])
        self.on_test_start(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install our SIGTERM handler again, because Lightning has just replaced our handler."""
        # Lightning's handler would end the cell in the middle of an epoch or of the test. The work
        # since the last checkpoint would be lost.
        if self.hooks.stop_flag is not None:
            self.hooks.stop_flag.install_handler()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the time at which the epoch begins."""
        self.started = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write a row of steps.jsonl, if one is due after this batch of the epoch.

        A row is due every `logger.every_n_steps` batches of an epoch and after its last batch. If
        this key is "auto", `choose_interval` computes the number of batches.

        Raises:
            NonFiniteLossError: If a loss since the previous row is not finite.
        """
        batches, done = int(trainer.num_training_batches), batch_idx + 1
        # Configurations of earlier versions do not have the key `every_n_steps`.
        every_n_steps = self.task.config["logger"].get("every_n_steps", "auto")
        every = choose_interval(every_n_steps, batches, self.task.steps)
        if done % every and done != batches:
            return
        step = trainer.global_step
        point: Row = {
            "step": step,
            "epoch": trainer.current_epoch + done / batches,
            POINT_LOSS: self.task.average_losses(step),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
        }
        self.points.append(point)
        self.record_row(POINTS, point)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the epoch's row, write a checkpoint if one is due, and end the run if requested.

        Raises:
            LeftEarlyError: If a hook or SIGTERM ends the run before its last epoch.
        """
        step = trainer.global_step
        margin = self.task.objective.margin_at(step, self.task.steps)
        row: Row = {
            "epoch": trainer.current_epoch,
            "step": step,
            **self.task.epoch_metrics,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            **({} if margin is None else {"margin": margin}),
            "seconds": time.monotonic() - self.started,
        }
        self.rows.append(row)
        self.record_row(METRICS, row)
        trainer.should_stop |= is_reached(self.accuracy, row)
        is_asked, done = self.hooks.on_epoch(row) is True, trainer.current_epoch + 1
        is_final = done == trainer.max_epochs
        leaves = (is_asked or self.hooks.is_stopping) and not is_final
        settings = self.task.config["trainer"]
        if leaves or time.monotonic() - self.kept >= settings["checkpoint_interval"]:
            self.keep_checkpoint(trainer)
        elif settings.get("kept_checkpoint") and (trainer.should_stop or is_final):
            trainer.save_checkpoint(self.directory.resume_checkpoint)
        if leaves:
            raise LeftEarlyError(f"ended after {count_of(done, 'epoch')}; its checkpoint is kept")

    def keep_checkpoint(self, trainer: Trainer) -> None:
        """Write resume.ckpt atomically; if the ledger is an object store, copy the file there."""
        trainer.save_checkpoint(self.directory.resume_checkpoint)
        self.directory.store_checkpoint()
        self.kept = time.monotonic()


def choose_interval(every_n_steps: int | str, batches: int, steps: int) -> int:
    """Return the number of optimiser steps between two rows of steps.jsonl.

    Args:
        every_n_steps: An int is returned unchanged. For "auto", the result is
            max(min(50, batches / 10), steps / 1000), rounded up.
        batches: The number of batches of an epoch.
        steps: The number of optimiser steps of the whole training.
    """
    if isinstance(every_n_steps, int):
        return every_n_steps
    return math.ceil(max(min(AUTO_STEPS, batches / POINTS_OF_EPOCH), steps / MOST_POINTS))


def check_resumable(
    directory: CellDirectory, provenance: Mapping[str, Any], ledger: Ledger, shorter: str = ""
) -> tuple[dict[str, Any], list[Row], list[Row]]:
    """Read the checkpoint of an earlier run; remove a checkpoint that this run cannot use.

    Args:
        directory: The folder of the cell.
        provenance: The provenance of this run.
        ledger: The ledger of the cell.
        shorter: The signature of a finished cell with fewer epochs. If the cell has no checkpoint,
            the checkpoint of the finished cell is copied. Empty: there is no such cell.

    Returns:
        Three values: further keys for the provenance, rows of metrics.jsonl, and rows of
        steps.jsonl.

        - If there is no checkpoint, all three values are empty.
        - If the checkpoint can be used, the provenance gets the key `earlier`: a list of the code,
          versions, hardware and implementations of earlier runs. A run with the same code,
          versions, hardware and implementations as this run is left out.
        - If the checkpoint is of a finished cell, or of a run that continued one, the provenance
          gets the key `continued_from`: signature, epochs and training seconds of that cell.
        - If the checkpoint was removed, the provenance gets the key `begun_anew`, which says why.
          There are no rows.

    Raises:
        OSError: If the checkpoint cannot be read or removed.
    """
    path = directory.resume_checkpoint
    try:
        if shorter and not path.exists():
            _copy_checkpoint(ledger, shorter, path)
        elif not path.exists():
            return {}, [], []
        stored = _read_recorder(path, provenance, shorter)
    except DataError as fault:
        path.unlink(missing_ok=True)
        line = f"{path} is not used, and the cell starts from its first epoch: {fault}"
        print(line, file=sys.stderr, flush=True)
        return {RESTART_KEY: line}, [], []
    older, rows = stored["provenance"], stored["rows"]
    continued = {key: older[key] for key in (CONTINUED_KEY,) if key in older}
    if older["signature"] != provenance["signature"]:
        seconds = sum(row["seconds"] for row in rows)
        continued = {CONTINUED_KEY: {"cell": shorter, "epochs": len(rows), "seconds": seconds}}
    today, last = ({name: run.get(name) for name in CIRCUMSTANCES} for run in (provenance, older))
    earlier = [run for run in (*older.get("earlier", []), last) if run != today]
    return {"earlier": earlier, **continued}, rows, stored["points"]


def _copy_checkpoint(ledger: Ledger, signature: str, path: Path) -> None:
    """Copy the last checkpoint of a finished cell to a path.

    Raises:
        DataError: If the checkpoint is damaged or was removed.
    """
    content = ledger.read(signature, RESUME)
    if content is None:
        raise DataError(f"{RESUME} of the finished cell {signature} was removed")
    write_atomically(path, lambda file: file.write(content))


def _read_recorder(path: Path, provenance: Mapping[str, Any], shorter: str) -> dict[str, Any]:
    """Read the state of the EpochRecorder from a checkpoint.

    If memory runs out, the exception is passed on.

    Raises:
        DataError: If the checkpoint is damaged, belongs to another cell than this one or `shorter`,
            or was written by other code than the code of this run. If the checkpoint belongs to
            `shorter`, also if anything else differs that can change rounding.
        OSError: If the file cannot be read.
    """
    content = path.read_bytes()
    try:
        damaged = zipfile.ZipFile(BytesIO(content)).testzip()  # torch does not check checksums
        stored = torch.load(BytesIO(content), weights_only=True, map_location="cpu")
        (state,) = (state for state in stored["callbacks"].values() if "rows" in state)
        older = state["provenance"]
        code, cell = older["code"]["numerics"], older["signature"]
        parts = [older, *older.get("earlier", [])] if cell == shorter else []
        today = _choose_facts(provenance)
        differing = {k for p in parts for k in causes.find_differences(today, _choose_facts(p))}
    except Exception as error:  # a file of another kind can raise any exception
        if causes.classify_cause(causes.describe_cause(error)) is CauseKind.OUT_OF_MEMORY:
            raise  # the checkpoint may be undamaged, so it is kept
        raise DataError(f"it is not a checkpoint of a cell ({type(error).__name__})") from error
    if damaged is not None:
        raise DataError(f"it is damaged ({damaged})")
    if cell not in (provenance["signature"], shorter):
        raise DataError(f"it belongs to cell {cell}")
    if code != provenance["code"]["numerics"]:
        raise DataError("its epochs were trained by code that has changed since then")
    if differing:
        raise DataError(f"cell {cell} was trained with other {', '.join(sorted(differing))}")
    return state


def _choose_facts(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the facts about a run that can change the rounding of its numbers."""
    hardware = provenance["hardware"]
    facts = {name: provenance[name] for name in ("versions", "implementations")}
    chosen = {"processor": hardware["processor"], "vectors": hardware["capability"]}
    return facts | chosen | {"GPU": hardware["gpus"][:1]}


def find_accuracy(row: Mapping[str, Any]) -> float:
    """Return the validation accuracy that the row of an epoch records."""
    return 1 - row["val/error"]


def is_reached(accuracy: float | None, row: Mapping[str, Any]) -> bool:
    """Return whether the row of an epoch has a validation accuracy of at least `accuracy`.

    If `accuracy` is None, the result is False. The row contains the error, and 1 - error is
    rounded. A tolerance of ROUNDING lets 66 right examples of 100 reach 0.66, although 1 - 0.34 is
    slightly less than 0.66 in float64.
    """
    return accuracy is not None and find_accuracy(row) >= accuracy - ROUNDING


def check_reached(accuracy: float | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise AccuracyNotReachedError if the last epoch did not reach `stop_accuracy`.

    A network that did not reach this accuracy cannot be compared with networks that did.

    Args:
        accuracy: `stop_accuracy` of the cell; None: nothing is checked.
        rows: The rows of all epochs.
    """
    if accuracy is not None and not is_reached(accuracy, rows[-1]):
        best = max(map(find_accuracy, rows))
        raise AccuracyNotReachedError(
            f"stop_accuracy={accuracy} was not reached in {count_of(len(rows), 'epoch')} "
            f"(best {best:.4f}); raise epochs or lower stop_accuracy"
        )
