"""The Lightning callback that records a cell, and the checks of the checkpoint of an earlier run.

The callback writes a row per epoch, points inside epochs, and checkpoints; it ends training once an
accuracy is reached. A point is a row of steps.jsonl: the mean loss of the steps since the last one.

The callback is a Lightning `Checkpoint`, because Lightning calls these, and no other callbacks, at
the end of an epoch after the module has collected its metrics.
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
from capsweep.ledger.ledger import METRICS, POINT_LOSS, POINTS
from capsweep.runtime.lightning import Checkpoint, LightningModule, Trainer
from capsweep.runtime.terminal import count_of
from capsweep.training import Row, RunHooks
from capsweep.training.module import CapsuleTask

ROUNDING = 1e-9  # tolerance for rounding in `1 - error`; one example changes an error by far more
RESTART_KEY = "begun_anew"  # in provenance and result: why a cell started from its first epoch
CIRCUMSTANCES = ("code", "versions", "hardware", "implementations")
AUTO_STEPS, POINTS_OF_EPOCH, MOST_POINTS = 50, 10, 1000
RecordRow = Callable[[str, Row], None]  # called with the name of the row's file, and the row


class EpochRecorder(Checkpoint):
    """A callback that writes metrics.jsonl, steps.jsonl and resume.ckpt during training.

    A checkpoint is written at the end of an epoch, at most every `trainer.checkpoint_interval`
    seconds. It contains the rows and the provenance of the runs that trained them, so a resumed run
    continues the same files without repeated rows. When a hook or SIGTERM ends the run early, the
    callback writes a checkpoint and raises LeftEarlyError; after the last epoch it does neither,
    and the cell is tested.

    Training ends after the first epoch whose validation accuracy reaches `stop_accuracy`, so that
    networks are compared where they are equally good. "Dynamic Routing Between Capsules", section
    5.2, stops both networks at 99.2 % on expanded MNIST before it tests them on affNIST. We measure
    the accuracy on held-out training digits, not on test digits. Only data sets that are validated
    on test images, such as smallNORB's viewpoints, use those; section 5.1 of "Matrix capsules with
    EM routing" does the same, and says so in a footnote.

    Args:
        task: The task that is trained.
        directory: The folder of the cell.
        hooks: The hooks of the run's caller.
        record_row: Writes a row to metrics.jsonl or steps.jsonl.
        digests: Sha256 of the data by split; loading a checkpoint that was trained on other data
            raises DataError.

    Attributes:
        accuracy: The validation accuracy that ends training; None: training runs to its last epoch.
        rows: One row per epoch, those of earlier runs included.
        points: The rows of steps.jsonl, those of earlier runs included.
        earlier_seconds: How long the epochs of earlier runs took.
        started: When the current epoch began, on the monotonic clock.
        kept: When the last checkpoint was written, on the monotonic clock.
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
        """Return rows, points, provenance and data digests, for the checkpoint."""
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
        # A run that was interrupted after its last epoch does not measure that epoch again.
        last = self.rows[-1] if self.rows else {}
        self.task.epoch_metrics |= {key: value for key, value in last.items() if "/" in key}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install our SIGTERM handler, and end training if an earlier run reached the accuracy."""
        trainer.should_stop |= bool(self.rows) and is_reached(self.accuracy, self.rows[-1])
        self.on_test_start(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install our SIGTERM handler again, since Lightning has just replaced it."""
        # Lightning's handler would end the cell inside an epoch or inside its test, when the last
        # checkpoint may be old.
        if self.hooks.stop_flag is not None:
            self.hooks.stop_flag.install_handler()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note when the epoch began."""
        self.started = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record a point every `logger.every_n_steps` steps, and one at the end of the epoch."""
        batches, done = int(trainer.num_training_batches), batch_idx + 1
        # Cells of earlier versions have no such key.
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
        """Record the row of the epoch, write a checkpoint when it is due, and end the run early.

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
        leaves = (is_asked or self.hooks.is_stopping) and done < (trainer.max_epochs or 0)
        interval = self.task.config["trainer"]["checkpoint_interval"]
        if leaves or time.monotonic() - self.kept >= interval:
            self.keep_checkpoint(trainer)
        if leaves:
            raise LeftEarlyError(f"ended after {count_of(done, 'epoch')}; its checkpoint is kept")

    def keep_checkpoint(self, trainer: Trainer) -> None:
        """Write resume.ckpt atomically, and copy it to the ledger if that is an object store."""
        trainer.save_checkpoint(self.directory.resume_checkpoint)
        self.directory.store_checkpoint()
        self.kept = time.monotonic()


def choose_interval(every_n_steps: int | str, batches: int, steps: int) -> int:
    """Return the number of steps between two points.

    Args:
        every_n_steps: The number itself, or "auto", which means 50; less if an epoch would have
            fewer than ten points, more if training would have more than a thousand.
        batches: The number of batches of an epoch.
        steps: The number of steps of the whole training.
    """
    if isinstance(every_n_steps, int):
        return every_n_steps
    return math.ceil(max(min(AUTO_STEPS, batches / POINTS_OF_EPOCH), steps / MOST_POINTS))


def check_resumable(
    directory: CellDirectory, provenance: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Row], list[Row]]:
    """Read the checkpoint of an interrupted run, or remove it if this run cannot use it.

    Args:
        directory: The folder of the cell.
        provenance: The provenance of this run.

    Returns:
        Three values: keys for the provenance, the rows of the checkpoint's epochs, and its points.
        The key `earlier` lists the versions, hardware and code of earlier runs that differ from
        this one. The key `begun_anew` says why a checkpoint was removed.
    """
    path = directory.resume_checkpoint
    if not path.exists():
        return {}, [], []
    try:
        stored = _read_recorder(path, provenance)
    except DataError as fault:
        path.unlink()
        line = f"{path} was removed, and the cell starts from its first epoch: {fault}"
        print(line, file=sys.stderr, flush=True)
        return {RESTART_KEY: line}, [], []
    older = stored["provenance"]
    today, last = ({name: run.get(name) for name in CIRCUMSTANCES} for run in (provenance, older))
    earlier = [run for run in (*older.get("earlier", []), last) if run != today]
    return {"earlier": earlier}, stored["rows"], stored["points"]


def _read_recorder(path: Path, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Read the state of the recorder from a checkpoint.

    Raises:
        DataError: If this run cannot continue from the checkpoint.
        OSError: If the file cannot be read now.
    """
    content = path.read_bytes()
    try:
        damaged = zipfile.ZipFile(BytesIO(content)).testzip()  # torch checks no checksums
        stored = torch.load(BytesIO(content), weights_only=True, map_location="cpu")
        (state,) = (state for state in stored["callbacks"].values() if "rows" in state)
        code, cell = state["provenance"]["code"]["numerics"], state["provenance"]["signature"]
    except Exception as error:  # a file that is no checkpoint can raise anything
        if causes.classify_cause(causes.describe_cause(error)) is CauseKind.OUT_OF_MEMORY:
            raise  # the checkpoint may be sound, so it is kept
        raise DataError(f"it is not a checkpoint of a cell ({type(error).__name__})") from error
    if damaged is not None:
        raise DataError(f"it is damaged ({damaged})")
    if cell != provenance["signature"]:
        raise DataError(f"it belongs to cell {cell}")
    if code != provenance["code"]["numerics"]:
        raise DataError("its epochs were trained by other code than today's")
    return state


def find_accuracy(row: Mapping[str, Any]) -> float:
    """Return the validation accuracy of an epoch's row."""
    return 1 - row["val/error"]


def is_reached(accuracy: float | None, row: Mapping[str, Any]) -> bool:
    """Return whether the row of an epoch has a validation accuracy of at least `accuracy`.

    With 66 of 100 right, 0.66 counts as reached, although 1 - 0.34 is slightly less in float64.
    """
    return accuracy is not None and find_accuracy(row) >= accuracy - ROUNDING


def check_reached(accuracy: float | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise AccuracyNotReachedError unless the last epoch reached `stop_accuracy`.

    The test error of a network below that accuracy is not comparable to those of networks above it.

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
