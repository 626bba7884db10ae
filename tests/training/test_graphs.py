"""Captured steps. On a processor "capture" just calls: static tensors, order and counters are the
same code there, and cells must be those of ordinary steps to the last bit.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_cells import assert_equal, find_folder, read_outputs, read_rows, train

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.model.losses import margin_loss
from capsweep.training.callbacks import FirstActivations
from capsweep.training.fit import make_task
from capsweep.training.graphs import CHECKED, StepGraphs, TrainingStep
from capsweep.training.module import CapsuleTask
from capsweep.training.objective import SplitMetrics
from capsweep.training.run_hooks import RunHooks

Run = Callable[[], None]
SMALL = ("logger=csv", "trainer.checkpoint_interval=0", "epochs=3", "batch_size=400")
CAPSNET = ("model.conv.channels=4", "model.primary.types=2", "model.decoder.hidden=[8]")
MATRIX = ("model=matrix_capsnet_tiny", "loss=spread", "batch_size=4", "limit_batches=4")
CELLS = {
    "margin loss, decoder, a smaller last batch": CAPSNET,
    "no decoder": (*CAPSNET, "loss.reconstruction.weight=0"),
    "dropout": ("model=cnn_small", "model.dropout=0.5"),
    "bfloat16, clipped": (*CAPSNET, "precision=bf16-mixed", "optim.clip_norm=0.1"),
    "EM routing, a margin that grows, a warm-up, decay of weights": (
        *(*MATRIX, "routing=em", "routing.num_iters=2", "optim.decayed=weights"),
        *("optim.schedule.warmup=5", "optim.clip_norm=1.0", "optim.optimizer.weight_decay=0.01"),
    ),
    "pairs of digits": (
        *("experiment=overlap", "model.conv.channels=4", "model.primary.types=2", "epochs=3"),
        *("batch_size=100", "limit_batches=4"),
    ),
    "an optimiser that is not fused": (*CAPSNET, "trainer.fused_optimizer=false"),
    "couplings drawn in each step": (*CAPSNET, "routing=random"),
}


def make_cell(storage: Path, *overrides: str) -> Cell:
    """A small cell."""
    chosen = {text.split("=", 1)[0] for text in overrides}
    small = [text for text in SMALL if text.split("=", 1)[0] not in chosen]
    return compose.cell([*overrides, *small, f"places.storage={storage}"])


def call(run: Run) -> Run:
    """A capture on a processor."""
    return run


def capture_by(
    monkeypatch: pytest.MonkeyPatch, capture: Callable[[Run], Run] = call
) -> list[StepGraphs]:
    """Let cells train by steps that are captured so; what trained them, one after the other."""
    made = []

    def make_graphs(task: CapsuleTask, optimizer: torch.optim.Optimizer) -> StepGraphs:
        graphs = ordinary(task, optimizer)
        made.append(StepGraphs(graphs.step, graphs.metrics, None, capture))
        return made[-1]

    ordinary = CapsuleTask.make_graphs
    monkeypatch.setattr(CapsuleTask, "make_graphs", make_graphs)
    return made


@pytest.mark.parametrize("overrides", CELLS.values(), ids=CELLS)
def test_a_cell_of_captured_steps_is_that_of_ordinary_ones(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary, captured = (
        make_cell(tmp_path / name, *overrides, "trainer.accelerator=cpu") for name in "oc"
    )
    train(ordinary)
    graphs = capture_by(monkeypatch)
    train(captured)
    assert_equal(captured, ordinary)
    assert graphs[0].reason is None
    provenance = json.loads((find_folder(captured) / "provenance.json").read_text())
    assert provenance["graphs"].startswith("captured, batches of ")
