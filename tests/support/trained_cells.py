"""Cells that a test trains, and what they leave in the ledger."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import folder_of
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks

Outputs = tuple[dict[str, Tensor], dict[str, np.ndarray]]


def train(cell: Cell, hooks: RunHooks | None = None, **options: Any) -> dict[str, Any]:
    """Run a cell in this process: its result."""
    return run(cell, places.resolve(cell.config["places"]), hooks, **options)


def find_folder(cell: Cell) -> Path:
    """The folder of a cell in its ledger."""
    return Path(places.resolve(cell.config["places"]).ledger) / folder_of(cell.signature)


def read_rows(cell: Cell) -> list[dict[str, Any]]:
    """A row for each epoch, without its duration."""
    lines = (find_folder(cell) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def read_outputs(cell: Cell) -> Outputs:
    """Weights, and predictions: scores and labels."""
    weights = torch.load(find_folder(cell) / "weights.ckpt", weights_only=True)
    with np.load(find_folder(cell) / "predictions.npz", allow_pickle=False) as stored:
        return weights, dict(stored)


def assert_equal(broken: Cell, unbroken: Cell) -> None:
    """Two cells left the same, to the last bit."""
    assert read_rows(broken) == read_rows(unbroken)
    for found, expected in zip(read_outputs(broken), read_outputs(unbroken), strict=True):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
