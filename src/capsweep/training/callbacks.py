"""What happens at the end of an epoch: the row is written, told to listeners, and a checkpoint
kept.

Both are Lightning `Checkpoint`s because those, alone among callbacks, are called after the module
has collected the epoch's metrics.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capsweep.config import code_identity
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.lightning import Checkpoint, LightningModule, Trainer
from capsweep.model.losses import SpreadLoss
from capsweep.training import checkpoint
from capsweep.training.module import CapsuleTask
from capsweep.training.notice import Notice

Row = dict[str, Any]


@dataclass(frozen=True)
class Hearing:
    """Who hears of a training. check: before an epoch is written, raises ClaimLostError when
    another process has taken the cell over. epoch: every row; by answering True it asks the cell to
    leave. again: those of an earlier run. notice: SIGTERM asks it to leave, too.
    """

    check: Callable[[], object] = lambda: None
    epoch: Callable[[Row], object] = lambda row: None
    again: Callable[[Row], object] = lambda row: None
    notice: Notice | None = None


class EpochRecorder(Checkpoint):
    """One row per epoch: first to metrics.jsonl, then to who hears it; of several devices by the
    first, while all keep it.

    The rows travel in the checkpoint, so a resumed run continues the same file without doubles;
    with them, what trained them. They are told once more, since they may have been missed when the
    run was cut short.
    earlier_seconds: how long the epochs of earlier runs took.
    """

    def __init__(
        self,
        task: CapsuleTask,
        directory: CellDirectory,
        hearing: Hearing | None = None,
    ) -> None:
        self.task, self.directory, self.hearing = task, directory, hearing or Hearing()
        self.rows: list[Row] = []
        self.earlier_seconds = 0.0
        self.asked_to_leave = False
        self.started = 0.0

    def state_dict(self) -> dict[str, Any]:
        code_identity.check_imported()
        return {"rows": self.rows, "provenance": self.directory.provenance()}

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
            self.hearing.again(row)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.hearing.check()
        row: Row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            **self.task.epoch_metrics,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            **self._margin(trainer.global_step),
            "seconds": time.monotonic() - self.started,
        }
        self.rows.append(row)
        if trainer.is_global_zero:
            self.directory.append_metrics(row)
            self.asked_to_leave = self.hearing.epoch(row) is True

    def _margin(self, step: int) -> dict[str, float]:
        """The margin that the loss has reached, where it grows with training."""
        scheduled = self.task.objective.scheduled
        if not isinstance(scheduled, SpreadLoss):
            return {}
        return {"margin": scheduled.margin_at(step, self.task.steps)}


class ResumeCheckpoint(Checkpoint):
    """Keeps the newest full state for a run that is cut short, at most every `interval` seconds.

    All devices take part, when the first finds that it is time; that alone writes. Where that is
    asked to leave, by who hears the recorder's rows or by SIGTERM, the state of that epoch is kept
    and training ends: `left`. After the last epoch a cell is rather tested.
    """

    def __init__(
        self, directory: CellDirectory, interval: float, recorder: EpochRecorder | None = None
    ) -> None:
        self.directory, self.interval, self.recorder = directory, interval, recorder
        self.path = directory.resume_checkpoint
        self.last = time.monotonic()
        self.left = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hear()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hear()

    def _hear(self) -> None:
        # After Lightning has put its own handler there, which would end the cell in mid-epoch, or
        # in its test, when the last checkpoint may be old.
        if self._notice is not None:
            self._notice.hear()

    @property
    def _notice(self) -> Notice | None:
        return None if self.recorder is None else self.recorder.hearing.notice

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        noticed = self._notice is not None and self._notice.given
        asked = noticed or (self.recorder is not None and self.recorder.asked_to_leave)
        leaves = asked and trainer.current_epoch + 1 < (trainer.max_epochs or 0)
        is_due = leaves or time.monotonic() - self.last >= self.interval
        is_due, self.left = trainer.strategy.broadcast((is_due, leaves))
        trainer.should_stop = trainer.should_stop or self.left
        if not is_due:
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            trainer.save_checkpoint(temporary)
            if not trainer.is_global_zero:
                return
            checkpoint.seal(temporary)
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)  # a full disk needs the room
        self.directory.checkpointed()
        self.last = time.monotonic()
