"""A cell that was trained for a test, and what its ledger says of it."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.evaluation.checkpoint import CellLoader, TrainedCell
from capsweep.ledger.ledger import Ledger, load_predictions
from capsweep.training.run import run

TINY_MATRIX = (
    "model=matrix_capsnet",
    "model.conv.channels=4",
    "model.primary.types=2",
    "model.capsules.types=[2,2]",
    "epochs=1",
    "limit_batches=1",
    "batch_size=4",
    "trainer.accelerator=cpu",
    "logger=csv",
)


def finish(cell: Cell) -> CellLoader:
    """Run it; what loads it again."""
    here = places.resolve(cell.config["places"])
    run(cell, here)
    return CellLoader(Ledger(here.ledger), here.data, torch.device("cpu"))


def forget_digests(result: Path, metrics: Mapping[str, float] | None = None) -> None:
    """Make a result one of before there were digests, perhaps with other metrics."""
    plain = json.loads(result.read_text())
    del plain["sha256"]
    plain["metrics"] |= metrics or {}
    result.write_text(json.dumps(plain))


def trained(cell: Cell) -> tuple[TrainedCell, tuple[np.ndarray, np.ndarray]]:
    """Run it and load it again: the network, and the scores and labels that the test stored."""
    loader = finish(cell)
    return loader.load(cell.signature), load_predictions(loader.ledger, cell.signature)
