"""A loss that is not finite stops the cell and is found at its first step."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.errors import NonFiniteLossError
from capsweep.ledger import causes
from capsweep.ledger.ledger import folder_of
from capsweep.training.module import CapsuleTask, FiniteLossWatch
from capsweep.training.objective import Losses
from capsweep.training.run import run


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_first_bad_step_is_named(bad: float) -> None:
    watch = FiniteLossWatch(first_step=100)
    for loss in (1.0, 0.5, bad, 0.5, bad):
        watch.update(torch.tensor(loss))
    with pytest.raises(NonFiniteLossError, match=r"step 102 \(epoch 7\)"):
        watch.check(epoch=7)


def test_a_later_check_counts_from_the_first_step() -> None:
    watch = FiniteLossWatch(first_step=5)
    for loss in (1.0, 0.5):
        watch.update(torch.tensor(loss))
    watch.check(epoch=0)
    watch.check(epoch=0)  # nothing new
    watch.update(torch.tensor(float("nan")))
    with pytest.raises(NonFiniteLossError, match="step 7 "):
        watch.check(epoch=0)


def test_a_metric_that_is_no_number_is_named_with_its_epoch() -> None:
    task = CapsuleTask(torch.nn.Identity(), None, None, {}, seed=0)
    scores_BN, labels_B = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    losses = Losses(torch.tensor(float("nan")), None, scores_BN)
    task.val_metrics.update(losses, Batch(torch.zeros(3, 1, 2, 2), labels_B))
    with pytest.raises(NonFiniteLossError, match=r"^val/loss was nan in epoch 0; ") as caught:
        task.on_validation_epoch_end()
    assert causes.kind_of_cause(causes.describe_cause(caught.value)) == causes.CauseKind.NOT_FINITE


def test_finite_losses_pass() -> None:
    watch = FiniteLossWatch(first_step=0)
    watch.update(torch.tensor(1e30))
    watch.check(epoch=0)


def test_a_diverging_cell_fails_with_its_cause_and_no_result(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("model=cnn_small", "optim.optimizer.lr=1e30")
    here = places.resolve(cell.config["places"])
    with pytest.raises(NonFiniteLossError, match="step"):
        run(cell, here)
    written = Path(here.ledger) / folder_of(cell.signature)
    assert (written / "error.txt").read_text().startswith("NonFiniteLossError: the loss was not")
    assert not (written / "result.json").exists()
