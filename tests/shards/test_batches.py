"""Batches of shards and the order of their examples: each once, from any position, however read;
example k of a shard is example k that `dataset=multimnist` composes on the training device.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import h5py
import numpy as np
import pytest
import shard_folders
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from shard_folders import Folder, run_make

from capsweep import cli
from capsweep.config import compose
from capsweep.data.batches import Batch, EpochSampler, to_unit
from capsweep.errors import DataError
from capsweep.shards.batches import PassOrder, ShardLoader, StretchImages
from capsweep.shards.manifest import Fields
from capsweep.shards.reader import StoredRanges
from capsweep.training import build

CPU = torch.device("cpu")
SIZES = st.integers(1, 70)


class Numbered:
    """N examples whose label is their place."""

    device = CPU

    def __init__(self, count: int) -> None:
        self.count = count
        self.fields: Fields = {"images": ("uint8", (1, 1, 1)), "labels": ("int64", (1,))}

    def __len__(self) -> int:
        return self.count

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        count = len(arrays["labels"])
        arrays["images"][:] = 255
        arrays["labels"][:, 0] = np.arange(start, start + count)


def make_loader(count: int, batch_size: int, epoch_examples: int) -> ShardLoader:
    return ShardLoader(cast(StoredRanges, Numbered(count)), batch_size, epoch_examples, 0, 0)


def run_epoch(one: ShardLoader, number: int) -> list[int]:
    """The labels of an epoch, whose batches are full but for the last."""
    one.sampler.set_epoch(number)
    batches = [batch.labels[:, 0].tolist() for batch in one]
    assert len(batches) == len(one)
    assert all(len(batch) == one.batch_size for batch in batches[:-1])
    return [label for batch in batches for label in batch]


@at_most_examples(40)
@given(st.integers(1, 40), st.integers(1, 100), st.integers(1, 9))
def test_an_epoch_goes_on_in_the_pass_where_the_last_one_ended(
    count: int, epoch_examples: int, batch_size: int
) -> None:
    one = make_loader(count, batch_size, epoch_examples)
    seen = [label for number in range(4) for label in run_epoch(one, number)]
    assert len(seen) == 4 * epoch_examples
    for start in range(0, len(seen) - count + 1, count):
        assert sorted(seen[start : start + count]) == list(range(count))


def test_reading_moves_no_random_numbers_of_the_network() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    run_epoch(make_loader(50, 10, 50), 0)
    assert torch.equal(torch.rand(3), expected)


def batches_of(examples: StoredRanges, workers: int = 0) -> list[Batch]:
    """Those of two epochs."""
    counts = {"epoch_examples": 1500, "test_examples": 700, "workers": workers}
    one = StretchImages(examples, "train", **counts).make_loader(128, seed=3)
    assert isinstance(one.sampler, EpochSampler)
    found = []
    for number in range(2):
        one.sampler.set_epoch(number)
        found += list(one)
    return found


def test_batches_depend_neither_on_shards_nor_on_workers(pixels: Folder, tmp_path: Path) -> None:
    source = shard_folders.source("train")
    stored = StoredRanges(*pixels, "train", source=source)
    batches = batches_of(stored)
    assert batches[0].images_BCHW.dtype == torch.float32
    assert batches[0].images_BCHW.max() == 1
    assert batches[0].labels.dtype == torch.int64
    assert batches[0].targets_BLCHW.shape == (128, 2, 1, 36, 36)
    others = shard_folders.make(tmp_path / "others", shards=7)
    seven = StoredRanges(tmp_path / "others", others, "train", source=source)
    for other in (batches_of(stored, workers=2), batches_of(seven)):
        assert len(batches) == len(other) == 24
        for ours, theirs in zip(batches, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours[:3], theirs[:3], strict=True))


def test_a_workers_fault_is_told_as_it_is(spoiled: Folder) -> None:
    folder, whole = spoiled
    (folder / "train-00001.h5").unlink()
    message = r"^/.*train-00001.h5: No such file or directory; .*copy the file again$"
    with pytest.raises(DataError, match=message):
        batches_of(StoredRanges(folder, whole, "train"), workers=1)


def list_examples(order: PassOrder, position: int, count: int) -> list[int]:
    """The numbers of so many examples from a position on."""
    places: list[int] = []
    for group, part in order.iterate_groups(position, count):
        members = [k for start, stop in group.stretches for k in range(start, stop)]
        assert len(members) == len(group)
        places += [members[place] for place in group.draw_permutation()[part].tolist()]
    return places


@given(st.integers(1, 300), SIZES, SIZES, st.data())
def test_any_position_gives_the_tail_of_the_whole(
    count: int, block: int, buffer: int, data: st.DataObject
) -> None:
    whole = list_examples(PassOrder(count, 5, block, buffer), 0, 3 * count)
    assert len(whole) == 3 * count
    for start in range(0, 3 * count, count):  # each pass has every example once
        assert sorted(whole[start : start + count]) == list(range(count))
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    fresh = PassOrder(count, 5, block, buffer)
    assert list_examples(fresh, start, stop - start) == whole[start:stop]


@given(st.integers(1, 300), SIZES, SIZES)
def test_a_group_is_at_most_the_buffer_and_reads_whole_blocks(
    count: int, block: int, buffer: int
) -> None:
    order = PassOrder(count, 0, block=block, buffer=buffer)
    groups = [group for group, _ in order.iterate_groups(0, count)]
    assert all(0 < len(group) <= buffer for group in groups)
    stretches = [stretch for group in groups for stretch in group.stretches]
    assert all(start // block == (stop - 1) // block for start, stop in stretches)
    assert len(stretches) <= -(-count // block) + len(groups)


def test_what_is_read_is_the_same_on_every_machine() -> None:
    """A change here makes other runs of the same cells."""
    assert list_examples(PassOrder(20, 0, block=4, buffer=8), 0, 12) == GOLDEN


GOLDEN = [11, 8, 10, 15, 13, 12, 9, 14, 0, 4, 7, 2]


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


def test_every_epoch_and_all_that_is_evaluated(folder: Path) -> None:
    pairs = 3
    assert run_make(folder, f"PAIRS={pairs}", *OVERRIDES[1:]) == 0
    composed = ["dataset=multimnist", *OVERRIDES, "dataset.batches.test_examples=900"]
    splits = build.load_splits(compose.cell(composed).config, "", CPU)
    train, all_of_it = splits["train"], slice(None)
    for epoch in range(pairs):
        batch = train.prepare_epoch(seed=11, epoch=epoch)(torch.arange(len(train)))
        assert_equal(batch, folder, "train", slice(epoch * len(train), (epoch + 1) * len(train)))
    validated, tested = (splits[k].evaluation_batch(all_of_it) for k in ("validation", "test"))
    assert_equal(validated, folder, "validation", all_of_it)
    assert_equal(tested, folder, "test", slice(900))
    assert len(stored(folder, "validation", "images")) == HELD_OUT


def test_the_command_that_is_printed_trains_on_it(
    folder: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_make(folder, "dataset.batches.margin=6") == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("train on it:")]
    program, *words = shlex.split(line.removeprefix("train on it: "))
    assert program == "capsweep"
    small = ["model=cnn_tiny", "epochs=1", "limit_batches=1", "logger=csv", "batch_size=8"]
    here = [f"places.storage={storage}", "trainer.accelerator=cpu"]
    assert cli.main([*words, *small, "dataset.batches.epoch_examples=64", *here]) == 0
