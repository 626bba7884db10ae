"""SIGTERM during a test, on one device."""

import os
import signal
from pathlib import Path

import pytest

from capsweep.config import compose, places
from capsweep.data import module
from capsweep.training.module import CapsuleTask
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks, StopFlag


def test_a_cell_that_is_told_to_end_while_it_is_tested_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = "model=cnn_small model.hidden=8 epochs=1 limit_batches=2 dataset.validation=100"
    fixed = "trainer.accelerator=cpu trainer.checkpoint_interval=86400 logger=csv"
    cell = compose.cell([*f"{small} {fixed}".split(), f"places.storage={tmp_path}"])
    stop_flag, step = StopFlag(), CapsuleTask.test_step

    def told(self: CapsuleTask, batch, batch_idx: int) -> None:
        if batch_idx == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        step(self, batch, batch_idx)

    monkeypatch.setattr(module, "EVALUATION_BATCH", 100)  # two of them are tested
    monkeypatch.setattr(CapsuleTask, "test_step", told)
    before = signal.getsignal(signal.SIGTERM)
    with stop_flag.handling_sigterm():
        result = run(cell, places.resolve(cell.config["places"]), RunHooks(stop_flag=stop_flag))
    assert stop_flag.is_set
    assert result["status"] == "finished"
    assert signal.getsignal(signal.SIGTERM) is before
