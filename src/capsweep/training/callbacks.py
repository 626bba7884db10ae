"""What happens at the end of an epoch: its row is written and reported, or training ends.

Both are Lightning `Checkpoint`s because those, alone among callbacks, are called after the module
has collected the epoch's metrics.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from capsweep.errors import AccuracyNotReachedError
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.lightning import Checkpoint, LightningModule, Trainer
from capsweep.training.module import CapsuleTask
from capsweep.training.run_hooks import Row, RunHooks

ROUNDING = 1e-9  # of 1 - error; far less than one example is of any data set


class EpochRecorder(Checkpoint):
    """One row per epoch: first to metrics.jsonl, then to the hooks. Every device keeps the rows;
    the first one writes and reports them.

    The rows travel in the checkpoint, with the provenance of what trained them, so a resumed run
    continues the same file without doubles.
    earlier_seconds: how long the epochs of earlier runs took. ends_early: a hook asked for that.
    """

    def __init__(self, task: CapsuleTask, directory: CellDirectory, hooks: RunHooks) -> None:
        self.task, self.directory, self.hooks = task, directory, hooks
        self.rows: list[Row] = []
        self.earlier_seconds = 0.0
        self.ends_early = False
        self.started = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "provenance": self.directory.read_provenance()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.rows = list(state_dict["rows"])
        self.earlier_seconds = sum(row["seconds"] for row in self.rows)
        # A run cut short after its last epoch measures nothing of it again.
        last = self.rows[-1] if self.rows else {}
        self.task.epoch_metrics |= {key: value for key, value in last.items() if "/" in key}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self.directory.write_metrics(self.rows)
        for row in self.rows:
            self.hooks.on_resume(row)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.hooks.check_lease()
        row: Row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            **self.task.epoch_metrics,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            **self._find_margin(trainer.global_step),
            "seconds": time.monotonic() - self.started,
        }
        self.rows.append(row)
        if trainer.is_global_zero:
            self.directory.append_metrics(row)
            self.ends_early = self.hooks.on_epoch(row) is True

    def _find_margin(self, step: int) -> dict[str, float]:
        """The margin that the loss has reached, where it grows with training."""
        margin_at: Any = getattr(self.task.objective.classification, "margin_at", None)
        return {} if margin_at is None else {"margin": margin_at(step, self.task.steps)}


class StopAtAccuracy(Checkpoint):
    """Ends training after the first epoch whose validation accuracy reaches `accuracy`: networks
    are compared where they are equally good.

    "Dynamic Routing Between Capsules", section 5.2, stops both networks at 99.2 % on expanded MNIST
    before it tests them on affNIST. We look at held-out training digits, never at test digits; but
    where a data set is validated on test images, as smallNORB's viewpoints are, at those, as
    "Matrix capsules with EM routing", section 5.1, does. Its footnote says so.

    A Lightning `Checkpoint`, and after the recorder, whose rows it reads: a resumed run that had
    got there already trains no further.
    """

    def __init__(self, accuracy: float, recorder: EpochRecorder) -> None:
        self.accuracy, self.recorder = accuracy, recorder

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.recorder.rows and is_reached(self.accuracy, self.recorder.rows[-1]):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_start(trainer, pl_module)


def find_accuracy(row: Mapping[str, Any]) -> float:
    """Of the validation examples after an epoch."""
    return 1 - row["val/error"]


def is_reached(accuracy: float, row: Mapping[str, Any]) -> bool:
    """Whether an epoch has `accuracy`; 66 right of 100 have 0.66, though 1 - 0.34 is below it."""
    return find_accuracy(row) >= accuracy - ROUNDING


def check_reached(accuracy: float, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise AccuracyNotReachedError unless the last epoch reached it: a test number of a network
    that did not is not comparable to one of a network that did.
    """
    best = max(map(find_accuracy, rows))
    if not is_reached(accuracy, rows[-1]):
        raise AccuracyNotReachedError(
            f"stop_accuracy={accuracy} was not reached in {len(rows)} epochs (best {best:.4f}); "
            "raise epochs or lower stop_accuracy"
        )
