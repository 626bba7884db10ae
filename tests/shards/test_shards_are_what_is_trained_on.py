"""Example k of a shard is example k that `dataset=multimnist` composes on the training device."""

import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from shard_folders import Make

from capsweep import cli
from capsweep.config import compose
from capsweep.data.batches import Batch, to_unit
from capsweep.training import build

HELD_OUT = 37
OVERRIDES = ["dataset.source=digits", f"dataset.validation={HELD_OUT}", "dataset.batches.seed=5"]


def stored(folder: Path, split: str, field: str) -> np.ndarray:
    """A field of all examples of a split."""
    parts = []
    for path in sorted(folder.glob(f"{split}-*.h5")):
        with h5py.File(path) as file:
            parts.append(np.asarray(file[field]))
    return np.concatenate(parts)


def assert_equal(batch: Batch, folder: Path, split: str, part: slice) -> None:
    """Images and labels, byte for byte."""
    images_NCHW = to_unit(torch.from_numpy(stored(folder, split, "images")[part]))
    assert torch.equal(batch.images_BCHW, images_NCHW)
    assert np.array_equal(batch.labels.numpy(), stored(folder, split, "labels")[part])


def test_every_epoch_and_all_that_is_evaluated(make: Make, folder: Path) -> None:
    pairs = 3
    assert make(f"PAIRS={pairs}", *OVERRIDES[1:]) == 0
    composed = ["dataset=multimnist", *OVERRIDES, "dataset.batches.test_examples=900"]
    splits = build.load_splits(compose.cell(composed).config, "", torch.device("cpu"))
    train, all_of_it = splits["train"], slice(None)
    for epoch in range(pairs):
        batch = train.prepare_epoch(seed=11, epoch=epoch)(torch.arange(len(train)))
        assert_equal(batch, folder, "train", slice(epoch * len(train), (epoch + 1) * len(train)))
    validated, tested = (splits[k].evaluation_batch(all_of_it) for k in ("validation", "test"))
    assert_equal(validated, folder, "validation", all_of_it)
    assert_equal(tested, folder, "test", slice(900))
    assert len(stored(folder, "validation", "images")) == HELD_OUT


def test_the_command_that_is_printed_trains_on_it(
    make: Make, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make("dataset.batches.margin=6") == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("train on it:")]
    program, *words = shlex.split(line.removeprefix("train on it: "))
    assert program == "capsweep"
    small = ["model=cnn_tiny", "epochs=1", "limit_batches=1", "logger=csv", "batch_size=8"]
    here = [f"places.storage={storage}", "trainer.accelerator=cpu"]
    assert cli.main([*words, *small, "dataset.batches.epoch_examples=64", *here]) == 0
