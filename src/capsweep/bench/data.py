"""Batches and shards: how fast examples are composed, written, read and verified.

Pixels are noise of MNIST's size, since no speed here depends on them. Rates are medians; what is
compared takes turns.

Shape letters: B batch, N examples, C H W image, L labels of an image.
"""

import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from unittest.mock import patch

import h5py
import torch

from capsweep.bench.candidates import ParityError, time_in_turns
from capsweep.bench.machine import get_device, time_call
from capsweep.bench.results import BenchReport, Measured
from capsweep.data.batches import Batch, Field, TrainLoader
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.pairs import PairSource
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
from capsweep.shards.verify import verify_files
from capsweep.training.devices import using_threads

BATCH, SHIFT, NUM_IMAGES = 128, 2, 60_000
BATCHES_AT_ONCE = 200  # of a round
SIDE = 28  # pixels of an image
PAIRS = {"margin": 4, "shift": 4}  # pixels, of MultiMNIST
SHARD_EXAMPLES, GATE_EXAMPLES = 50_000, 1024
READ_SIZES = (128, 1000)  # of batches


def make_noise(count: int) -> LabelledImages:
    """So many images, ten classes."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, 1, SIDE, SIDE)
    images_NCHW = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return LabelledImages(images_NCHW, torch.arange(count) % 10)


def measure_data(rounds: int = 5) -> BenchReport:
    """Shifted images and MultiMNIST."""
    with using_threads(1):
        images = _shift_batches()
        next(images)
        seconds = median(time_call(lambda: _take_batches(images)) for _ in range(rounds))
        rate = BATCHES_AT_ONCE * BATCH / seconds
        measured = [Measured("shifted images by one thread", rate, "images/s")]
        measured += [_measure_composition(size) for size in (BATCH, 1000)]
    return BenchReport(measured)


def _measure_composition(at_once: int) -> Measured:
    """uint8 images, both digits alone, their labels and places; an epoch's numbers are drawn at
    once, as in training, and each example bears its share.
    """
    source = PairSource(make_noise(NUM_IMAGES), "train", 0, **PAIRS)
    order_N = torch.randperm(NUM_IMAGES, generator=torch.Generator().manual_seed(0))
    k_N = torch.arange(NUM_IMAGES)
    numbers = source.draw_pairs(k_N)
    drawing = median(time_call(lambda: source.draw_pairs(k_N)) for _ in range(5))
    parts = [part for part in order_N.split(at_once) if len(part) == at_once]
    composing = median(
        time_call(lambda part=part: source.compose_drawn(numbers.select(part))) for part in parts
    )
    rate = 1 / (composing / at_once + drawing / NUM_IMAGES)
    what = f"MultiMNIST composed on one core, {at_once} at once"
    return Measured(what, rate, "examples/s", 300_000, at_least=True)


def _shift_batches() -> Iterator[Batch]:
    """Epoch after epoch of shifted images, as a trainer takes them."""
    images = ShiftedImages(make_noise(NUM_IMAGES).to(get_device()), "train", SHIFT)
    loader = TrainLoader(images, BATCH, seed=0)
    while True:
        yield from loader
        loader.sampler.set_epoch(loader.sampler.epoch + 1)


def _take_batches(batches: Iterator[Batch]) -> None:
    for _ in islice(batches, BATCHES_AT_ONCE):
        pass


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
    with using_threads(1), tempfile.TemporaryDirectory(prefix="capsweep-bench-") as folder:
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
        sets = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
        stored = {name: torch.from_numpy(item[:]) for name, item in sets.items()}
    composed = job.source.compose_pairs(torch.arange(GATE_EXAMPLES))
    for name, tensor in (("images", composed.images_BCHW), ("labels", composed.labels_BL)):
        if not torch.equal(stored[name].long(), tensor.long()):
            raise ParityError(f"{name} of a shard are not those composed on the fly")


def _list_calls(
    folder: Path, job: NoisePairs, examples: int
) -> dict[str, tuple[Callable[[], object], float | None]]:
    """What is timed and its bar, by name; each goes over all examples of a shard once."""
    folder.mkdir()
    make, part = job.build_maker("train"), ShardPart("train-00000.h5", "train", 0, examples)
    shard = write_shard(folder, job, part, make)
    fields = {field.name: (field.dtype, field.shape) for field in job.list_fields()}
    manifest = Manifest(job.content, "pixels", fields, (shard,))
    stored = StoredRanges(folder, manifest, "train", IMAGES)
    again = replace(part, name="again.h5")

    def verify_all() -> None:
        verify_files(folder, manifest, lambda: None)

    read = "read: shuffled float32 batches of verified shards"
    return {
        "written": (lambda: write_shard(folder, job, again, make), 150_000),
        **{f"{read}, {n} at once": (_read_epoch(stored, n), 500_000) for n in READ_SIZES},
        "verified: hashed anew by all threads": (verify_all, None),
    }


def _read_epoch(stored: StoredRanges, batch_size: int) -> Callable[[], None]:
    """A pass over all examples, each time in another order."""
    loader = ShardLoader(stored, torch.device("cpu"), batch_size, len(stored), seed=0)

    def take_all() -> None:
        for _ in loader:
            pass
        loader.sampler.set_epoch(loader.sampler.epoch + 1)

    return take_all
