"""What happens at the end of an epoch: the row is written, told to listeners, and a checkpoint
kept.

Both are Lightning `Checkpoint`s because those, alone among callbacks, are called after the module
has collected the epoch's metrics.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint

from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.claim import Held
from capsweep.model.losses import SpreadLoss
from capsweep.training.module import CapsuleTask

Row = dict[str, Any]


class EpochRecorder(Checkpoint):
    """One row per epoch: first to metrics.jsonl, then to the listeners.

    The rows travel in the checkpoint, so a resumed run continues the same file without doubles;
    `tell_again` hears them once more, since it may have missed them when the run was cut short.
    Raises ClaimLostError when another process has taken the cell over.
    """

    def __init__(
        self,
        task: CapsuleTask,
        directory: CellDirectory,
        listeners: Sequence[Callable[[Row], object]] = (),
        held: Held | None = None,
        tell_again: Callable[[Row], object] = lambda row: None,
    ) -> None:
        self.task, self.directory, self.listeners = task, directory, listeners
        self.held, self.tell_again = held, tell_again
        self.rows: list[Row] = []
        self.started = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.rows = list(state_dict["rows"])
        # A run cut short after its last epoch measures nothing of it again.
        last = self.rows[-1] if self.rows else {}
        self.task.epoch_metrics |= {key: value for key, value in last.items() if "/" in key}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.directory.write_metrics(self.rows)
        for row in self.rows:
            self.tell_again(row)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.held is not None:
            self.held.check()
        row: Row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            **self.task.epoch_metrics,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            **self._margin(trainer.global_step),
            "seconds": time.monotonic() - self.started,
        }
        self.rows.append(row)
        self.directory.append_metrics(row)
        for tell in self.listeners:
            tell(row)

    def _margin(self, step: int) -> dict[str, float]:
        """The margin that the loss has reached, where it grows with training."""
        scheduled = self.task.objective.scheduled
        if not isinstance(scheduled, SpreadLoss):
            return {}
        return {"margin": scheduled.margin(step, self.task.steps)}


class ResumeCheckpoint(Checkpoint):
    """Keeps the newest full state for a run that is cut short, at most every `interval` seconds."""

    def __init__(self, directory: CellDirectory, interval: float) -> None:
        self.directory, self.interval = directory, interval
        self.path = directory.resume_checkpoint
        self.last = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if time.monotonic() - self.last < self.interval:
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            trainer.save_checkpoint(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)  # a full disk needs the room
        self.directory.checkpointed()
        self.last = time.monotonic()
