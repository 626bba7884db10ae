"""The Lightning callback of a cell: rows and checkpoints of epochs, points inside them, the end at
an accuracy; and the checks of a checkpoint that a run continues from.

It is a Lightning `Checkpoint` because these, alone among callbacks, are called at the end of an
epoch after the module has collected its metrics.
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

ROUNDING = 1e-9  # of 1 - error; far less than one example is of any data set
RESTART_KEY = "begun_anew"  # key of what says that, in provenance and result
CIRCUMSTANCES = ("code", "versions", "hardware", "implementations")
AUTO_STEPS, POINTS_OF_EPOCH, MOST_POINTS = 50, 10, 1000
RecordRow = Callable[[str, Row], None]  # with the name of its file


class EpochRecorder(Checkpoint):
    """Records a row per epoch and points inside it, and keeps the newest full state for a run that
    is cut short, in resume.ckpt, at most every `interval` seconds.

    Rows travel in the checkpoint, with the provenance of what trained them, so a resumed run
    continues the same files without doubles. When a hook or SIGTERM ends the run early, the state
    of that epoch is kept and LeftEarlyError is raised; after the last one a cell is rather tested.

    every_n_steps: between two points of an epoch; the last is at its end. See `choose_interval`.

    accuracy: training ends after the first epoch whose validation accuracy reaches it, so that
    networks are compared where they are equally good; None: it does not. "Dynamic Routing Between
    Capsules", section 5.2, stops both networks at 99.2 % on expanded MNIST before it tests them on
    affNIST. We look at held-out training digits, never at test digits; but where a data set is
    validated on test images, as smallNORB's viewpoints are, at those, as "Matrix capsules with EM
    routing", section 5.1, does. Its footnote says so.

    digests: of the data; a checkpoint whose epochs were trained on others is refused by DataError.

    earlier_seconds: how long the epochs of earlier runs took.
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
        provenance = self.directory.read_provenance()
        recorded = {"rows": self.rows, "points": self.points, "provenance": provenance}
        return {**recorded, "digests": self.digests}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if state_dict["digests"] != self.digests:
            raise DataError(
                f"the data were altered since the first epochs of this cell: sha256 {self.digests} "
                f"now, {state_dict['digests']} in its resume.ckpt; restore the data, or remove the "
                "cell (capsweep ledger rm) and run it again"
            )
        self.rows, self.points = list(state_dict["rows"]), list(state_dict["points"])
        self.earlier_seconds = sum(row["seconds"] for row in self.rows)
        # A run cut short after its last epoch measures nothing of it again.
        last = self.rows[-1] if self.rows else {}
        self.task.epoch_metrics |= {key: value for key, value in last.items() if "/" in key}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # An earlier run may have got there already, and was cut short before its test.
        trainer.should_stop |= bool(self.rows) and is_reached(self.accuracy, self.rows[-1])
        self.on_test_start(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # After Lightning has put its own handler there, which would end the cell in mid-epoch, or
        # in its test, when the last checkpoint may be old.
        if self.hooks.stop_flag is not None:
            self.hooks.stop_flag.install_handler()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        batches, done = int(trainer.num_training_batches), batch_idx + 1
        every_n_steps = self.task.config["logger"].get("every_n_steps", "auto")  # in new cells
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
        # The margin that the loss has reached, where it grows with training.
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
            raise LeftEarlyError(f"it left after {count_of(done, 'epoch')}; its checkpoint is kept")

    def keep_checkpoint(self, trainer: Trainer) -> None:
        """Renew resume.ckpt, whole or not at all: see `AtomicCheckpoints`."""
        trainer.save_checkpoint(self.directory.resume_checkpoint)
        self.directory.store_checkpoint()
        self.kept = time.monotonic()


def choose_interval(every_n_steps: int | str, batches: int, steps: int) -> int:
    """Steps between two points. auto: 50, fewer where an epoch's `batches` would have less than ten
    points, more where all `steps` of training would have more than a thousand.
    """
    if isinstance(every_n_steps, int):
        return every_n_steps
    return math.ceil(max(min(AUTO_STEPS, batches / POINTS_OF_EPOCH), steps / MOST_POINTS))


def check_resumable(
    directory: CellDirectory, provenance: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Row], list[Row]]:
    """Return what the checkpoint of a cell adds to its provenance, the rows of its epochs, and the
    points inside them.

    `earlier`: other versions and hardware, and other code with the same numerics, that trained
    epochs of it. A checkpoint that cannot be used is removed, with a line: `begun_anew`.
    """
    path = directory.resume_checkpoint
    if not path.exists():
        return {}, [], []
    try:
        stored = _read_recorder(path, provenance)
    except DataError as fault:
        path.unlink()
        line = f"{path} is dropped, and the cell begins anew: {fault}"
        print(line, file=sys.stderr, flush=True)
        return {RESTART_KEY: line}, [], []
    made = stored["provenance"]
    today, last = ({name: run.get(name) for name in CIRCUMSTANCES} for run in (provenance, made))
    earlier = [run for run in (*made.get("earlier", []), last) if run != today]
    return {"earlier": earlier}, stored["rows"], stored["points"]


def _read_recorder(path: Path, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the recorder put into a checkpoint. Raises DataError where this run cannot go on
    with it, OSError where the disk does not give it now.
    """
    content = path.read_bytes()
    try:
        damaged = zipfile.ZipFile(BytesIO(content)).testzip()  # torch looks at no checksum
        stored = torch.load(BytesIO(content), weights_only=True, map_location="cpu")
        (state,) = (state for state in stored["callbacks"].values() if "rows" in state)
        code, cell = state["provenance"]["code"]["numerics"], state["provenance"]["signature"]
    except Exception as error:  # anything, for a file that is none
        if causes.classify_cause(causes.describe_cause(error)) is CauseKind.OUT_OF_MEMORY:
            raise  # of this moment: the checkpoint is kept
        raise DataError(f"it is no checkpoint of a cell ({type(error).__name__})") from error
    if damaged is not None:
        raise DataError(f"it is damaged ({damaged})")
    if cell != provenance["signature"]:
        raise DataError(f"it is of cell {cell}")
    if code != provenance["code"]["numerics"]:
        raise DataError("other code than today's trained its epochs")
    return state


def find_accuracy(row: Mapping[str, Any]) -> float:
    """Of the validation examples after an epoch."""
    return 1 - row["val/error"]


def is_reached(accuracy: float | None, row: Mapping[str, Any]) -> bool:
    """Whether an epoch has `accuracy`; 66 right of 100 have 0.66, though 1 - 0.34 is below it."""
    return accuracy is not None and find_accuracy(row) >= accuracy - ROUNDING


def check_reached(accuracy: float | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise AccuracyNotReachedError unless the last epoch reached it: a test number of a network
    that did not is not comparable to one of a network that did.
    """
    if accuracy is not None and not is_reached(accuracy, rows[-1]):
        best = max(map(find_accuracy, rows))
        raise AccuracyNotReachedError(
            f"stop_accuracy={accuracy} was not reached in {count_of(len(rows), 'epoch')} "
            f"(best {best:.4f}); raise epochs or lower stop_accuracy"
        )
