"""Cells that a test trains, what they leave in the ledger, and networks with first weights."""

import json
import signal
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import commands
import numpy as np
import torch
from torch import Tensor

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.data.batches import DeviceSplit
from capsweep.lab.evaluation.checkpoint import CellLoader, TrainedCell
from capsweep.lab.evaluation.traces import RoutedCell, find_routed
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.training import RunHooks, build
from capsweep.training.run import Job, run

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
# Runs a cell, and ends its own process with SIGKILL at an epoch: before its checkpoint is written
# ("row"), or right after.
KILLED = """
import os, signal, sys
from capsweep.training.callbacks import EpochRecorder
from capsweep.training.run import Job, run
job, when, last = Job.from_json(sys.argv[1]), sys.argv[2], int(sys.argv[3])
keep = EpochRecorder.keep_checkpoint
def keep_and_kill(self, trainer):
    if when == "checkpoint":
        keep(self, trainer)
    if trainer.current_epoch == last:
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "row":
        keep(self, trainer)
EpochRecorder.keep_checkpoint = keep_and_kill
run(job)
"""
NOT_TESTED = np.zeros((0, 10)), np.zeros(0)  # predictions
Outputs = tuple[dict[str, Tensor], dict[str, np.ndarray]]


def train(cell: Cell, hooks: RunHooks | None = None, **options: Any) -> dict[str, Any]:
    """Run a cell in this process: its result."""
    return run(Job(cell, **options), hooks)


def kill_at(cell: Cell, when: str, epoch: int, **options: Any) -> None:
    """Run a cell in a process that ends itself at an epoch, see `KILLED`."""
    process = commands.run(["-c", KILLED, Job(cell, **options).to_json(), when, str(epoch)])
    assert process.returncode == -signal.SIGKILL


def find_folder(cell: Cell) -> Path:
    """The folder of a cell in its ledger."""
    return Path(places.resolve(cell.config["places"]).ledger) / folder_of(cell.signature)


def read_rows(cell: Cell, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """A row for each epoch, or each point of steps.jsonl, without its duration."""
    lines = (find_folder(cell) / name).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def read_provenance(cell: Cell) -> dict[str, Any]:
    """The provenance of a cell in its ledger."""
    return json.loads((find_folder(cell) / "provenance.json").read_text())


def read_outputs(cell: Cell) -> Outputs:
    """Weights, and predictions: scores and labels."""
    weights = torch.load(find_folder(cell) / "weights.ckpt", weights_only=True)
    with np.load(find_folder(cell) / "predictions.npz", allow_pickle=False) as stored:
        return weights, dict(stored)


def assert_equal(broken: Cell, unbroken: Cell) -> None:
    """Two cells left the same, to the last bit."""
    for name in ("metrics.jsonl", "steps.jsonl"):
        assert read_rows(broken, name) == read_rows(unbroken, name)
    for found, expected in zip(read_outputs(broken), read_outputs(unbroken), strict=True):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def finish(cell: Cell, device: str = "cpu") -> CellLoader:
    """Run it, if it is not finished; what loads it again, on a device."""
    here = places.resolve(cell.config["places"])
    train(cell)
    return CellLoader(Ledger(here.ledger), here.data, torch.device(device))


def trained(cell: Cell) -> TrainedCell:
    """Run it and load it again."""
    return finish(cell).load(cell.signature)


@cache
def load_digits() -> DeviceSplit:
    """The test images of the embedded data set."""
    return build.load_splits(compose.cell([]).config, "", torch.device("cpu"))["test"]


def make_routed(
    overrides: Sequence[str], examples: int = 3, iterations: int | None = None
) -> RoutedCell:
    """Such a network, as a cell whose routing is traced."""
    config = compose.cell(overrides).config
    torch.manual_seed(0)
    network, digits = build.build_network(config).eval().requires_grad_(False), load_digits()
    cell = TrainedCell("cell", config, network, digits, NOT_TESTED, digits, (1, 28, 28))
    return find_routed(cell, examples, iterations)
