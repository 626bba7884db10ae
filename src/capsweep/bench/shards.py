"""Shards: examples a second that are composed, written, read as batches, and verified.

Digits are noise, since no speed here depends on them. One process on one core does all of it; what
is compared takes turns.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import h5py
import torch

from capsweep.bench.candidates import ParityError, time_in_turns
from capsweep.bench.data import PAIRS, make_noise
from capsweep.bench.results import BenchReport, Measured
from capsweep.data.batches import Field
from capsweep.data.images import Splits
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

DIGITS = 60_000  # MNIST's
EXAMPLES = 50_000  # of a shard
GATE_EXAMPLES = 1024
AT_ONCE = 1000
BATCHES = (128, 1000)
CACHE = "XDG_CACHE_HOME"


@dataclass(frozen=True)
class NoisePairs:
    """A job that makes pairs of noise digits."""

    content: DataSetContent
    source: PairSource

    def list_fields(self) -> Sequence[Field]:
        """Those of MultiMNIST."""
        arrays = compose_pairs(self.source, torch.arange(1), with_digits=False)
        return [Field(name, str(one.dtype), one.shape[1:]) for name, one in arrays.items()]

    def build_maker(self, split: str) -> Maker:
        """Composes ranges of the sequence."""
        return lambda start, stop: compose_pairs(self.source, torch.arange(start, stop), False)


def measure_shards(budget: float = 60.0, examples: int = EXAMPLES) -> BenchReport:
    """All of it. budget: seconds of the rounds; examples: of a shard.

    Raises ParityError, before it measures, where a shard does not hold what is composed.
    """
    with using_threads(1), tempfile.TemporaryDirectory(prefix="capsweep-bench-") as name:
        folder = Path(name)
        check_parity()
        job, part = make_job(examples), ShardPart("train-00000.h5", "train", 0, examples)
        with own_cache(folder / "cache"):
            calls = _list_calls(folder / "shards", job, part)
            seconds = time_in_turns(calls, budget)
    rates = {name: examples / median(taken) for name, taken in seconds.items()}
    read = "read: shuffled float32 batches of verified shards"
    return BenchReport(
        [
            _rate(rates, "composed", f"composed in sequence, {AT_ONCE} at once", 300_000),
            _rate(rates, "written", "written", 150_000),
            *(_rate(rates, f"read {n}", f"{read}, {n} at once", 500_000) for n in BATCHES),
            _rate(rates, "verified", "verified: hashed anew by all threads", None),
        ]
    )


def make_job(examples: int, digits: int = DIGITS) -> NoisePairs:
    """So many training pairs of so many digits."""
    splits = Splits(train=make_noise(digits), test=make_noise(100))
    settings = {"seed": 0, "validation": 0, **PAIRS}
    origin = Origin("noise", "0" * 64)
    content = DataSetContent(MULTIMNIST, 1, settings, origin, {"train": examples})
    source = make_pair_source(splits, "train", settings)
    return NoisePairs(content, source)


def check_parity(spoil: Callable[[dict[str, torch.Tensor]], object] | None = None) -> None:
    """Raise ParityError unless a shard holds the pairs that are composed on the fly, byte for byte.

    spoil: done to what was stored before it is compared.
    """
    count = GATE_EXAMPLES
    job = make_job(count, digits=count)
    content = fill_shard(job, ShardPart("one.h5", "train", 0, count), job.build_maker("train"))
    with tempfile.TemporaryFile() as opened:
        opened.write(content)
        with h5py.File(opened, "r") as file:
            sets = {n: one for n, one in file.items() if isinstance(one, h5py.Dataset)}
            stored = {name: torch.from_numpy(one[:]) for name, one in sets.items()}
    if spoil is not None:
        spoil(stored)
    composed = job.source.compose_pairs(torch.arange(count))
    expected = {"images": composed.images_BCHW, "labels": composed.labels_BL}
    for name, tensor in expected.items():
        if not torch.equal(stored[name].long(), tensor.long()):
            raise ParityError(f"{name} of a shard are not those composed on the fly")


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Have what is known of shards outlive them nowhere."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(CACHE)
        if before is not None:
            os.environ[CACHE] = before


def _list_calls(folder: Path, job: NoisePairs, part: ShardPart) -> dict[str, Callable[[], object]]:
    """What is timed, by name; each goes over all examples of a shard once."""
    folder.mkdir()
    make = job.build_maker("train")
    shard = write_shard(folder, job, part, make)
    fields = {field.name: (field.dtype, field.shape) for field in job.list_fields()}
    manifest = Manifest(job.content, "pixels", fields, (shard,))
    stored = StoredRanges(folder, manifest, "train", IMAGES)
    again = replace(part, name="again.h5")

    def compose() -> None:
        for start in range(0, part.examples, AT_ONCE):
            make(start, min(start + AT_ONCE, part.examples))

    def verify() -> None:
        verify_files(folder, manifest, lambda: None)

    reads = {f"read {size}": _read_epoch(stored, size) for size in BATCHES}
    write = {"written": lambda: write_shard(folder, job, again, make)}
    return {"composed": compose, **write, **reads, "verified": verify}


def _read_epoch(stored: StoredRanges, batch_size: int) -> Callable[[], None]:
    """A pass over all examples, each time in another order."""
    loader = ShardLoader(stored, torch.device("cpu"), batch_size, len(stored), seed=0)

    def take() -> None:
        for _ in loader:
            pass
        loader.sampler.set_epoch(loader.sampler.epoch + 1)

    return take


def _rate(rates: dict[str, float], name: str, what: str, bar: float | None) -> Measured:
    return Measured(what, rates[name], "examples/s", bar, at_least=True)
