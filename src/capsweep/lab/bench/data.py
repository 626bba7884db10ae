"""Batches and shards: how fast examples are composed, written and read.

Pixels are noise of MNIST's size, since no speed here depends on them. Rates are medians; what is
compared takes turns.

Shape letters: N examples, C H W image.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch

from capsweep.data.batches import TrainLoader
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.pairs import ComposedPairs, PairSource
from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measured, time_call
from capsweep.lab.bench.comparison import time_in_turns
from capsweep.shards.batches import ShardLoader
from capsweep.shards.layout import MULTIMNIST, Maker, compose_pairs, make_pair_source, write_shard
from capsweep.shards.making import build_manifest
from capsweep.shards.manifest import DataSetContent, Fields, Origin, ShardPart
from capsweep.shards.reader import StoredRanges
from capsweep.storage.scratch import own_prefix
from capsweep.training.devices import using_threads

NUM_IMAGES = 60_000
SIDE = 28  # pixels of an image
PAIRS = {"margin": 4, "shift": 4}  # pixels, of MultiMNIST
SHARD_EXAMPLES = 50_000
BATCHES = (128, 1000)
CORE_BAR = 300_000  # examples a second
DEVICE_BAR = 2_000_000  # examples a second of a GPU: 3 % of a step at 60,000 images a second
QUICK = {
    "data": {"examples": 2000, "epochs": 1},
    "shards": {"budget": 0.1, "examples": 2000},
}


def make_noise(count: int) -> LabelledImages:
    """Return so many images, ten classes."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, 1, SIDE, SIDE)
    images_NCHW = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return LabelledImages(images_NCHW, torch.arange(count) % 10)


def measure_data(examples: int = NUM_IMAGES, epochs: int = 5) -> BenchReport:
    """Return how fast MultiMNIST is composed as a loader does it: on one core, or on a GPU."""
    if bench.is_gpu():
        digits = make_noise(examples).to(bench.get_device())
        split = ComposedPairs(digits, "train", seed=0, pairs=1, test_examples=1, **PAIRS)
        calls = {size: _take_all(split.make_loader(size, seed=0)) for size in BATCHES}
        where, bar = "on the device, batches of", DEVICE_BAR
    else:
        source = PairSource(make_noise(examples), "train", 0, **PAIRS)
        calls = {size: partial(_compose_epoch, source, examples, size) for size in BATCHES}
        where, bar = "on one core, at once", CORE_BAR
    timed = {f" {size}": partial(time_call, call) for size, call in calls.items()}
    with using_threads(1):
        seconds = time_in_turns(timed, 0.0, epochs)
    return BenchReport(_list_rates(f"MultiMNIST composed {where}", seconds, examples, bar))


def _compose_epoch(source: PairSource, examples: int, at_once: int) -> None:
    """Compose uint8 images, both digits alone, their labels and places; an epoch's numbers are
    drawn at once, as in training.
    """
    numbers = source.draw_pairs(torch.arange(examples))
    for part in torch.randperm(examples).split(at_once):
        source.compose_drawn(numbers.select(part))


def _list_rates(
    what: str, seconds: dict[str, list[float]], examples: int, bar: float
) -> list[Measured]:
    return [
        Measured(f"{what}{name}", examples / median(each), "examples/s", bar, at_least=True)
        for name, each in seconds.items()
    ]


@dataclass(frozen=True)
class NoisePairs:
    """A job that makes pairs of noise digits."""

    content: DataSetContent
    source: PairSource

    def list_fields(self) -> Fields:
        """Return those of MultiMNIST."""
        arrays = compose_pairs(self.source, torch.arange(1))
        return {name: (str(array.dtype), array.shape[1:]) for name, array in arrays.items()}

    def build_maker(self, split: str) -> Maker:
        """Return what composes ranges of the sequence."""
        return lambda start, stop: compose_pairs(self.source, torch.arange(start, stop))


def measure_shards(budget: float = 60.0, examples: int = SHARD_EXAMPLES) -> BenchReport:
    """Return how fast one process on one core writes and reads a shard.

    budget: seconds of the rounds; examples: of the shard.
    """
    splits = Splits(train=make_noise(NUM_IMAGES), test=make_noise(100))
    settings = {"seed": 0, "validation": 0, **PAIRS}
    origin = Origin("noise", "0" * 64)
    content = DataSetContent(MULTIMNIST, 1, settings, origin, {"train": examples})
    job = NoisePairs(content, make_pair_source(splits, "train", settings))
    prefix = own_prefix("capsweep-bench")
    with using_threads(1), tempfile.TemporaryDirectory(prefix=prefix) as name:
        folder = Path(name) / "shards"
        folder.mkdir()
        cache = {"XDG_CACHE_HOME": f"{name}/cache"}  # the user's is left alone
        with patch.dict(os.environ, cache):
            make, part = job.build_maker("train"), ShardPart("train-00000.h5", "train", 0, examples)
            shard = write_shard(folder, job, part, make)
            manifest = build_manifest(job, [shard])
            stored = StoredRanges(folder, manifest, "train")
            again = replace(part, name="again.h5")
            written = partial(time_call, lambda: write_shard(folder, job, again, make))
            calls = {"": written} | {f", {n} at once": _time_epoch(stored, n) for n in BATCHES}
            seconds = time_in_turns(calls, budget)
    read = "read: shuffled float32 batches of verified shards"
    rates = _list_rates("written", {"": seconds.pop("")}, examples, 150_000)
    return BenchReport([*rates, *_list_rates(read, seconds, examples, 500_000)])


def _time_epoch(stored: StoredRanges, batch_size: int) -> Callable[[], float]:
    """Return what times a pass over all examples, each time in another order."""
    loader = ShardLoader(stored, torch.device("cpu"), batch_size, len(stored), seed=0)
    return partial(time_call, _take_all(loader))


def _take_all(loader: ShardLoader | TrainLoader) -> Callable[[], None]:
    """Return the call that takes all batches of an epoch, the next one each time."""

    def take_all() -> None:
        for _ in loader:
            pass
        loader.sampler.set_epoch(loader.sampler.epoch + 1)

    return take_all
