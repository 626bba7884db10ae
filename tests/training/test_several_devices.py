"""Several devices train what one does: the same weights, rows and predictions, up to rounding.

In float64, by which rounding is small; those of `test_devices_end.py` train in float32.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shard_folders
import torch
from double_precision import in_double

from capsweep.config import code_identity, compose, places
from capsweep.config.cell import Cell
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.shards.reader import declare_data_set
from capsweep.training import ddp, fit
from capsweep.training.run_hooks import RunHooks

pytestmark = pytest.mark.slow

# One of several processes, for one cell after the other.
RANK = """
import json, pickle, sys
from pathlib import Path
from double_precision import in_double
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.training import ddp
from capsweep.training.run_hooks import RunHooks
for shared in pickle.loads(Path(sys.argv[1]).read_bytes()):
    hooks = RunHooks(directory=CellDirectory(shared.folder))
    with in_double():
        ask = lambda request, *values: getattr(hooks, request)(*values)
        result = ddp.take_part(int(sys.argv[2]), shared, ask)
    if sys.argv[2] == "0":
        (shared.folder / "fitted.json").write_text(json.dumps(result))
"""
SMALL = "epochs=2 batch_size=10 trainer.accelerator=cpu logger=csv dataset.shift=2"
VECTOR = "model.conv.channels=8 model.primary.types=2 model.decoder.hidden=[16]"
LINEAR = "model.conv.channels=8 model.primary.types=2 model.head=linear loss=cross_entropy"
MATRIX = (
    "model=matrix_capsnet model.conv.channels=4 model.primary.types=2 model.capsules.types=[2,2] "
    "routing.num_iters=2 limit_batches=3"
)
PAIRS = (
    f"{VECTOR} dataset=multimnist dataset/source=digits dataset.batches.test_examples=60 "
    "limit_batches=3"
)
STREAMED = (
    f"{VECTOR} dataset=multimnist_shards dataset.batches.epoch_examples=47 "
    "dataset.batches.test_examples=50"
)
CELLS = {
    # Of 1,437 digits: 37 are trained on, so that a last batch is 7 of 10.
    "capsnet": f"{VECTOR} dataset.validation=1400",
    # A last training batch of 1, and a last one of 1 that is validated on.
    "a single example": f"{VECTOR} dataset.validation=1001 limit_batches=3 seed=1",
    "one left": f"{VECTOR} dataset.validation=1406 loss.reconstruction.weight=0",
    "cnn with dropout": "model=cnn_small model.dropout=0.5 dataset.validation=1406",
    "em": f"{MATRIX} optim.clip_norm=1.0 optim.decayed=weights optim.schedule.warmup=7",
    "em by its authors": f"{MATRIX} recipe=em_authors dataset.validation=1406",
    # The last activations are not in its loss, so that some parameters get no gradient.
    "linear head": f"{LINEAR} routing=variational_bayes dataset.validation=1406",
    "random couplings": f"{LINEAR} routing=random dataset.validation=1400",
    "pairs": PAIRS.replace("dataset.shift=2", ""),
    "bf16": f"{VECTOR} precision=bf16-mixed optim.optimizer.eps=0.01 dataset.validation=1400",
    "composed shards": f"{STREAMED} batch_size=20",
    "stored shards": f"{STREAMED} loss.reconstruction.weight=0",
}
# Where shares of three differ most: two of them have no example of a batch of one.
THREE = ("a single example", "em", "composed shards")


def cell_of(name: str, storage: Path, shards: Mapping[str, Sequence[str]]) -> Cell:
    """One of CELLS."""
    asked = [*CELLS[name].split(), *shards.get(name, ()), f"places.storage={storage}"]
    chosen = {text.split("=", 1)[0] for text in asked}
    moves = "dataset" not in chosen
    small = [text for text in SMALL.split() if moves or not text.startswith("dataset.")]
    return compose.cell([*(t for t in small if t.split("=", 1)[0] not in chosen), *asked])


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cell]:
    """All cells, with what they are trained on."""
    storage = tmp_path_factory.mktemp("cells")
    shards = {}
    for name, with_sources in (("composed shards", False), ("stored shards", True)):
        folder = storage / name.replace(" ", "-")
        whole = shard_folders.make(folder, shard_folders.job(with_sources=with_sources))
        shards[name] = [*declare_data_set(whole.content), f"dataset.shards.folders=[{folder}]"]
    return {name: cell_of(name, storage, shards) for name in CELLS}


@pytest.fixture(scope="module")
def alone(cells: Mapping[str, Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one device makes of them, a folder each."""
    storage = tmp_path_factory.mktemp("alone")
    for name, cell in cells.items():
        (storage / name).mkdir()
        here = places.resolve(cell.config["places"])
        with in_double():
            directory = CellDirectory(storage / name)
            result = fit.fit(cell, here, directory, RunHooks(directory=directory), None)
        (storage / name / "fitted.json").write_text(json.dumps(result))
    return storage


@pytest.fixture(scope="module")
def shared(
    cells: Mapping[str, Cell], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[int, Path]:
    """What two devices make of them, and three of some."""
    some = {2: cells, 3: {name: cells[name] for name in THREE}}
    return {n: made_by(n, some[n], tmp_path_factory.mktemp(f"on{n}")) for n in some}


def made_by(count: int, cells: Mapping[str, Cell], storage: Path) -> Path:
    """The cells, one after the other, by so many processes, a folder each."""
    shared_cells = [
        ddp.SharedCell(
            cell=cell,
            code=code_identity.hash_numerics(cell.config),
            places=places.resolve(cell.config["places"]),
            folder=storage / name,
            gpus=None,
            count=count,
            meeting=storage / f"{name}.meeting",
        )
        for name, cell in cells.items()
    ]
    for shared in shared_cells:
        shared.folder.mkdir()
    (storage / "cells.pickle").write_bytes(pickle.dumps(shared_cells))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(storage / "cells.pickle"), str(rank)],
            env={
                **os.environ,
                "GLOO_SOCKET_IFNAME": "lo",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        for rank in range(count)
    ]
    try:
        assert [rank.wait(250) for rank in ranks] == [0] * count
    finally:
        for rank in ranks:
            rank.kill()
    return storage


def read_fitted(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result, a row for each epoch without its duration, and the points inside them."""
    files = [(folder / name).read_text() for name in ("metrics.jsonl", "steps.jsonl")]
    rows = [json.loads(line) for text in files for line in text.splitlines()]
    return json.loads((folder / "fitted.json").read_text()), [
        {name: value for name, value in row.items() if name != "seconds"} for row in rows
    ]


@pytest.mark.parametrize(
    ("count", "name"), [*((2, name) for name in CELLS), *((3, name) for name in THREE)]
)
def test_several_devices_make_what_one_makes(
    alone: Path, shared: Mapping[int, Path], count: int, name: str
) -> None:
    """Rows, points, metrics, steps, first activations, weights and predictions."""
    within = 2e-2 if name == "bf16" else 1e-6
    one, rows = read_fitted(alone / name)
    many, shared_rows = read_fitted(shared[count] / name)
    assert len(shared_rows) == len(rows) >= 4
    for row, shared_row in zip(rows, shared_rows, strict=True):
        assert shared_row == pytest.approx(row, rel=within, abs=within * 1e-3)
    assert many["metrics"] == pytest.approx(one["metrics"], rel=within, abs=within * 1e-3)
    assert many["steps"] == one["steps"]
    assert many["first_activations"].keys() == one["first_activations"].keys()
    for layer, found in one["first_activations"].items():
        assert many["first_activations"][layer] == pytest.approx(found, rel=within, abs=1e-6)
    weights, shared_weights = (
        torch.load(folder / name / "weights.ckpt", weights_only=True)
        for folder in (alone, shared[count])
    )
    assert shared_weights.keys() == weights.keys()
    for key, weight in weights.items():
        torch.testing.assert_close(shared_weights[key], weight, rtol=within, atol=within / 2)
    ours, theirs = (np.load(folder / name / "predictions.npz") for folder in (alone, shared[count]))
    assert np.array_equal(theirs["labels"], ours["labels"])
    np.testing.assert_allclose(theirs["scores"], ours["scores"], rtol=0, atol=within)
