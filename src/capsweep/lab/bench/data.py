"""Batches and shards: how fast examples are composed, written and read.

Pixels are noise of MNIST's size, since no speed here depends on them. Rates are medians; what is
compared takes turns.

Shape letters: B batch, N examples, C H W image, L labels of an image.
"""

import io
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

import h5py
import numpy as np
import torch

from capsweep.data.batches import Field, TrainLoader
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.pairs import ComposedPairs, PairSource
from capsweep.lab.bench import machine
from capsweep.lab.bench.comparison import ParityError, time_in_turns
from capsweep.lab.bench.machine import time_call
from capsweep.lab.bench.results import BenchReport, Measured
from capsweep.shards.batches import ShardLoader
from capsweep.shards.layout import (
    MULTIMNIST,
    Maker,
    compose_pairs,
    fill_shard,
    make_pair_source,
    write_shard,
)
from capsweep.shards.manifest import DataSetContent, Manifest, Origin, ShardPart
from capsweep.shards.reader import IMAGES, StoredRanges
from capsweep.storage.scratch import own_prefix
from capsweep.training.devices import using_threads

NUM_IMAGES = 60_000
SIDE = 28  # pixels of an image
PAIRS = {"margin": 4, "shift": 4}  # pixels, of MultiMNIST
SHARD_EXAMPLES, GATE_EXAMPLES = 50_000, 1024
READ_SIZES = (128, 1000)  # of batches
DEVICE_BAR = 2_000_000  # examples a second of a GPU: 3 % of a step at 60,000 images a second
QUICK = {
    "data": {"examples": 2000, "epochs": 1},
    "shards": {"budget": 0.1, "examples": 2000},
}


def make_noise(count: int) -> LabelledImages:
    """So many images, ten classes."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, 1, SIDE, SIDE)
    images_NCHW = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return LabelledImages(images_NCHW, torch.arange(count) % 10)


def measure_data(examples: int = NUM_IMAGES, epochs: int = 5) -> BenchReport:
    """MultiMNIST, composed as a loader does: on a processor, and on the device that trains."""
    with using_threads(1):
        rates = [_measure_composition(size, examples, epochs) for size in READ_SIZES]
    return BenchReport([*rates, *_measure_batches(examples, epochs)])


def _measure_composition(at_once: int, examples: int, epochs: int) -> Measured:
    """uint8 images, both digits alone, their labels and places; an epoch's numbers are drawn at
    once, as in training.
    """
    source = PairSource(make_noise(examples), "train", 0, **PAIRS)
    order_N = torch.randperm(examples, generator=torch.Generator().manual_seed(0))

    def compose_epoch() -> None:
        numbers = source.draw_pairs(torch.arange(examples))
        for part in order_N.split(at_once):
            source.compose_drawn(numbers.select(part))

    rate = examples / median(time_call(compose_epoch) for _ in range(epochs))
    what = f"MultiMNIST composed on one core, {at_once} at once"
    return Measured(what, rate, "examples/s", 300_000, True, machine.reason_to_skip())


def _measure_batches(examples: int, epochs: int) -> list[Measured]:
    """Batches as training takes them, float32 images and both digits alone."""
    digits = make_noise(examples).to(machine.get_device())
    split = ComposedPairs(digits, "train", seed=0, pairs=1, test_examples=1, **PAIRS)
    names = {f"MultiMNIST batches of {size}, composed on the device": size for size in READ_SIZES}
    calls = {name: _take_all(split.make_loader(size, seed=0)) for name, size in names.items()}
    seconds = time_in_turns(calls, 0.0, epochs)
    bars, skipped = (DEVICE_BAR, None), None if machine.is_gpu() else "no GPU"
    return [
        Measured(name, examples / median(seconds[name]), "examples/s", bar, True, skipped)
        for name, bar in zip(names, bars, strict=True)
    ]


@dataclass(frozen=True)
class NoisePairs:
    """A job that makes pairs of noise digits."""

    content: DataSetContent
    source: PairSource

    def list_fields(self) -> Sequence[Field]:
        """Those of MultiMNIST."""
        arrays = compose_pairs(self.source, torch.arange(1), with_digits=False)
        return [Field(name, str(array.dtype), array.shape[1:]) for name, array in arrays.items()]

    def build_maker(self, split: str) -> Maker:
        """Composes ranges of the sequence."""
        return lambda start, stop: compose_pairs(self.source, torch.arange(start, stop), False)


def make_job(examples: int, digits: int = NUM_IMAGES) -> NoisePairs:
    """So many training pairs of so many digits."""
    splits = Splits(train=make_noise(digits), test=make_noise(100))
    settings = {"seed": 0, "validation": 0, **PAIRS}
    origin = Origin("noise", "0" * 64)
    content = DataSetContent(MULTIMNIST, 1, settings, origin, {"train": examples})
    return NoisePairs(content, make_pair_source(splits, "train", settings))


def measure_shards(budget: float = 60.0, examples: int = SHARD_EXAMPLES) -> BenchReport:
    """All of it in one process on one core. budget: seconds of the rounds; examples: of a shard.

    Raises ParityError, before it measures, where a shard does not hold what is composed.
    """
    prefix = own_prefix("capsweep-bench")
    with using_threads(1), tempfile.TemporaryDirectory(prefix=prefix) as folder:
        check_shards()
        cache = {"XDG_CACHE_HOME": f"{folder}/cache"}  # the user's is left alone
        with patch.dict(os.environ, cache):
            calls = _list_calls(Path(folder) / "shards", make_job(examples), examples)
            seconds = time_in_turns({name: call for name, (call, _) in calls.items()}, budget)
    return BenchReport(
        [
            Measured(name, examples / median(seconds[name]), "examples/s", bar, at_least=True)
            for name, (_, bar) in calls.items()
        ]
    )


def check_shards() -> None:
    """Raise ParityError unless a shard holds the pairs that are composed on the fly, byte for
    byte.
    """
    job = make_job(GATE_EXAMPLES, digits=GATE_EXAMPLES)
    part = ShardPart("one.h5", "train", 0, GATE_EXAMPLES)
    content = io.BytesIO(fill_shard(job, part, job.build_maker("train")))
    with h5py.File(content, "r") as file:
        stored = {name: torch.from_numpy(np.asarray(item)) for name, item in file.items()}
    composed = job.source.compose_pairs(torch.arange(GATE_EXAMPLES))
    for name, tensor in (("images", composed.images_BCHW), ("labels", composed.labels_BL)):
        if not torch.equal(stored[name].long(), tensor.long()):
            raise ParityError(f"{name} of a shard are not those composed on the fly")


def _list_calls(
    folder: Path, job: NoisePairs, examples: int
) -> dict[str, tuple[Callable[[], object], float]]:
    """What is timed and its bar, by name; each goes over all examples of a shard once."""
    folder.mkdir()
    make, part = job.build_maker("train"), ShardPart("train-00000.h5", "train", 0, examples)
    shard = write_shard(folder, job, part, make)
    fields = {field.name: (field.dtype, field.shape) for field in job.list_fields()}
    manifest = Manifest(job.content, "pixels", fields, (shard,))
    stored = StoredRanges(folder, manifest, "train", IMAGES)
    again = replace(part, name="again.h5")

    read = "read: shuffled float32 batches of verified shards"
    return {
        "written": (lambda: write_shard(folder, job, again, make), 150_000),
        **{f"{read}, {n} at once": (_read_epoch(stored, n), 500_000) for n in READ_SIZES},
    }


def _read_epoch(stored: StoredRanges, batch_size: int) -> Callable[[], None]:
    """A pass over all examples, each time in another order."""
    return _take_all(ShardLoader(stored, torch.device("cpu"), batch_size, len(stored), seed=0))


def _take_all(loader: ShardLoader | TrainLoader) -> Callable[[], None]:
    """The call that takes all batches of an epoch, the next one each time."""

    def take_all() -> None:
        for _ in loader:
            pass
        loader.sampler.set_epoch(loader.sampler.epoch + 1)

    return take_all
