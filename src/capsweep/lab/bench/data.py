"""The speed of data: how many examples per second are composed, written to shards and read.

Images have the size of MNIST. They show noise or the small digits of `dataset.source=digits`,
because the speed does not depend on the pixels. Each rate comes from the median time of several
calls. Calls that are compared take turns.

Shape letters: N examples, C channels, H height, W width.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch

from capsweep.cli.data import prepare_job
from capsweep.data.images import LabelledImages
from capsweep.data.pairs import PairSource
from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measurement, time_call
from capsweep.lab.bench.comparison import time_in_turns
from capsweep.shards.batches import ShardLoader
from capsweep.shards.layout import write_shard
from capsweep.shards.making import build_manifest
from capsweep.shards.manifest import ShardPart
from capsweep.shards.reader import StoredRanges
from capsweep.storage.scratch import make_scratch_prefix
from capsweep.training.devices import using_threads

BATCHES = (128, 1000)
CORE_BAR = 300_000  # examples per second, on one core
Timed = tuple[str, Callable[[], object], int]  # name, function, lowest allowed examples/s
DEVICE_BAR = 2_000_000  # examples/s; composing then takes 3 % of a step at 60,000 images/s


def make_noise(count: int) -> LabelledImages:
    """Return `count` images of noise [N, 1, 28, 28] with labels of ten classes."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, 1, 28, 28)
    images_NCHW = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return LabelledImages(images_NCHW, torch.arange(count) % 10)


def measure_data(is_quick: bool = False) -> BenchReport:
    """Measure how fast MultiMNIST is composed: on the GPU if there is one, else on one core."""
    examples, epochs = (2000, 1) if is_quick else (60_000, 5)
    where, bar = ("a GPU", DEVICE_BAR) if bench.is_gpu() else ("one core", CORE_BAR)
    digits = make_noise(examples).to(bench.get_device())
    source = PairSource(digits, "train", seed=0, margin=4, shift=4)
    composed = f"MultiMNIST composed on {where}"
    calls = [
        (f"{composed}, {n} at once", partial(compose_epoch, source, examples, n), bar)
        for n in BATCHES
    ]
    return measure_rates(calls, examples, 0.0, epochs)


def compose_epoch(source: PairSource, examples: int, at_once: int) -> None:
    """Compose all images of an epoch: the image of each pair, and an image of each of its digits.

    All random numbers of the epoch are drawn before the first image is composed, as in training.

    Args:
        source: Source of the pairs.
        examples: Number of images in the epoch.
        at_once: Number of images that are composed together.
    """
    device = bench.get_device()
    numbers = source.draw_pairs(torch.arange(examples, device=device))
    for part in torch.randperm(examples, device=device).split(at_once):
        source.compose_drawn(numbers.select(part))


def measure_rates(
    calls: Sequence[Timed], examples: int, budget: float, least: int = 5
) -> BenchReport:
    """Time calls in turns, in this process with one thread.

    Args:
        calls: Name, function and lowest allowed rate (examples/s) of each call.
        examples: Number of examples that one call handles.
        budget: Minimum duration of all rounds together, in seconds.
        least: Minimum number of rounds.

    Returns:
        A report with the examples per second of each call.
    """
    with using_threads(1):
        timed = {name: partial(time_call, call) for name, call, _ in calls}
        seconds = time_in_turns(timed, budget, least)
    rates = {name: examples / median(each) for name, each in seconds.items()}
    return BenchReport([Measurement(n, rates[n], "examples/s", bar, True) for n, _, bar in calls])


def measure_shards(is_quick: bool = False) -> BenchReport:
    """Measure how fast one process with one thread writes and reads a shard."""
    pairs, budget = (1, 0.1) if is_quick else (35, 60.0)
    job = prepare_job("multimnist", ["dataset.source=digits"], pairs)
    examples = job.content.splits["train"]
    part, make = ShardPart("train-00000.h5", "train", 0, examples), job.build_maker("train")
    with tempfile.TemporaryDirectory(prefix=make_scratch_prefix("capsweep-bench")) as name:
        folder, cache = Path(name), {"XDG_CACHE_HOME": f"{name}/cache"}  # a new cache
        write = partial(write_shard, folder, job, make=make)
        with patch.dict(os.environ, cache):
            stored = StoredRanges(folder, build_manifest(job, [write(part)]), "train")
            again = replace(part, name="again.h5")
            calls: list[Timed] = [("written", partial(write, again), 150_000)]
            for size in BATCHES:
                loader = ShardLoader(stored, size, examples, seed=0, workers=0)
                read = f"read in shuffled batches of {size}"
                calls.append((read, partial(take_epoch, loader), 500_000))
            return measure_rates(calls, examples, budget)


def take_epoch(loader: ShardLoader) -> None:
    """Read all batches of an epoch, then set the loader to the next epoch."""
    for _ in loader:
        pass
    loader.sampler.set_epoch(loader.sampler.epoch + 1)
