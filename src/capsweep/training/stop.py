"""Training that ends at a given accuracy: networks are compared where they are equally good.

"Dynamic Routing Between Capsules", section 5.2, stops both networks at 99.2 % on expanded MNIST
before it tests them on affNIST. We look at held-out training digits, never at test digits; but
where a data set is validated on test images, as smallNORB's viewpoints are, at those, as "Matrix
capsules with EM routing", section 5.1, does. Its footnote says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from capsweep.errors import AccuracyNotReachedError
from capsweep.lightning import Checkpoint, LightningModule, Trainer
from capsweep.training.callbacks import EpochRecorder

ROUNDING = 1e-9  # of 1 - error; far less than one example is of any data set


class StopAtAccuracy(Checkpoint):
    """Ends training after the first epoch whose validation accuracy reaches `accuracy`.

    A Lightning `Checkpoint`, and after the recorder, whose rows it reads: a resumed run that had
    got there already trains no further.
    """

    def __init__(self, accuracy: float, recorder: EpochRecorder) -> None:
        self.accuracy, self.recorder = accuracy, recorder

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look(trainer)

    def _look(self, trainer: Trainer) -> None:
        if self.recorder.rows and is_reached(self.accuracy, self.recorder.rows[-1]):
            trainer.should_stop = True


def accuracy_of(row: Mapping[str, Any]) -> float:
    """Of the validation examples after an epoch."""
    return 1 - row["val/error"]


def is_reached(accuracy: float, row: Mapping[str, Any]) -> bool:
    """Whether an epoch has `accuracy`; 66 right of 100 have 0.66, though 1 - 0.34 is below it."""
    return accuracy_of(row) >= accuracy - ROUNDING


def check_reached(accuracy: float, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise AccuracyNotReachedError unless the last epoch reached it: a test number of a network
    that did not is not comparable to one of a network that did.
    """
    best = max(map(accuracy_of, rows))
    if not is_reached(accuracy, rows[-1]):
        raise AccuracyNotReachedError(
            f"stop_accuracy={accuracy} was not reached in {len(rows)} epochs (best {best:.4f}); "
            "raise epochs or lower stop_accuracy"
        )
