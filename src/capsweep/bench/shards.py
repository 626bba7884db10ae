"""Shards: what it costs to compose, write and read them, and a worker's memory.

Digits are noise, since no speed here depends on them. All is done by one process on one core, what
is compared takes turns in it, and rates are medians. Files are read from the page cache.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import h5py
import numpy as np
import torch

from capsweep.bench import comparison, machine
from capsweep.bench.comparison import ParityError
from capsweep.bench.data import PAIRS, make_noise
from capsweep.bench.results import BenchReport, Measured
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.pairs import PairSource
from capsweep.data.shards import manifest, sequence
from capsweep.data.shards.batches import StretchLoader
from capsweep.data.shards.manifest import Manifest, Origin
from capsweep.data.shards.reader import SHOWN
from capsweep.data.shards.stored import StoredStretches
from capsweep.data_prep.making import shard
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.multimnist import MultiMnist
from capsweep.training.threads import threads

DIGITS, TEST_DIGITS, GATE_DIGITS = 60_000, 10_000, 1_024
SHARD, SHARDS = 100_000, 2  # examples of a shard, of MultiMNIST's 600 shards; shards that are read
AT_ONCE = 1_000  # examples
BATCHES = (128, 1000)
NEEDED = 3e9  # bytes on the disk
WORKERS = (100_000, 2_000_000)  # examples of a worker's one shard
CACHE = "XDG_CACHE_HOME"
NOTE = (
    "Shards of {examples:,} examples. Written is composed, stored, hashed, flushed to the disk and "
    "renamed. Read are {shards} shards that were just written, so from the page cache: groups of "
    "blocks in permuted order, shuffled, cut into batches, float32 in 0..1. Files were in {folder} "
    "(TMPDIR)."
)


def make_job(examples: int, digits: int = DIGITS) -> MultiMnist:
    """So many training pairs, as `dataset=multimnist` composes them of MNIST's digits."""
    splits = Splits(train=make_noise(digits), test=make_noise(TEST_DIGITS))
    settings = {"seed": 0, "validation": 0, **PAIRS}
    content = sequence.content(Origin("noise", "0" * 64), splits, 1, settings)
    arrays = {"train": _to_arrays(splits.train), "test": _to_arrays(splits.test)}
    return MultiMnist(replace(content, splits={"train": examples}), arrays, False)


def _to_arrays(examples: LabelledImages) -> tuple[np.ndarray, np.ndarray]:
    return examples.images_NCHW.numpy(), examples.labels_N.numpy().astype(np.uint8)


def make_part(number: int, examples: int) -> Part:
    """The shard of this number, where all have as many examples."""
    return Part(f"train-{number:05d}.h5", "train", number * examples, examples)


def measure(
    budget: float = 60.0, examples: int = SHARD, workers: tuple[int, ...] = WORKERS
) -> BenchReport:
    """budget: seconds of the rounds; examples: of a shard; workers: examples of the one shard of
    each. Raises ParityError, before it measures, where a shard does not hold what is composed.
    """
    with threads(1), tempfile.TemporaryDirectory(prefix="capsweep-bench-") as name:
        folder = Path(name)
        if (free := shutil.disk_usage(folder).free) < NEEDED:
            reason = f"{free / 1e9:.1f} GB free, {NEEDED / 1e9:.1f} GB needed; set TMPDIR"
            return BenchReport([Measured("shards", None, "", skipped=f"{folder.parent}: {reason}")])
        check_shard(folder)
        with own_cache(folder / "cache"):
            calls = _prepare_calls(folder, examples)
            seconds = comparison.time_in_turns(calls, budget)
        peaks = [_measure_worker(folder, count) for count in workers]
    counts = {"composed": examples, "written": examples}
    rates = {name: counts.get(name, SHARDS * examples) / median(s) for name, s in seconds.items()}
    note = NOTE.format(examples=examples, shards=SHARDS, folder=folder.parent)
    return BenchReport([*_judge_rates(rates), *peaks], notes=[note])


def check_shard(folder: Path, spoil: Callable[[Path], object] | None = None) -> None:
    """Raise ParityError unless a shard holds the pairs that are composed on the fly, byte for byte.

    spoil: done to the shard before it is read.
    """
    job, part = make_job(GATE_DIGITS, GATE_DIGITS), make_part(0, GATE_DIGITS)
    shard.write(folder, job, part, job.maker("train"))
    path = folder / part.name
    if spoil is not None:
        spoil(path)
    source = PairSource(make_noise(GATE_DIGITS), "train", 0, **PAIRS)
    pairs = source.compose(torch.arange(GATE_DIGITS))
    expected = {
        "images": pairs.images_BCHW,
        "labels": pairs.labels_BL,
        "indices": pairs.sources_BL,
        "shifts": pairs.shifts_BL2,
    }
    with h5py.File(path) as file:
        for name, values in expected.items():
            dataset = file[name]
            assert isinstance(dataset, h5py.Dataset)
            if not np.array_equal(dataset[:], values.numpy()):
                raise ParityError(f"{name} of a shard are not those composed on the fly")
    path.unlink()


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """A user's cache for the time of a block: what is known of files shall not outlive them."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(CACHE)
        if before is not None:
            os.environ[CACHE] = before


def _prepare_calls(folder: Path, examples: int) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    place = folder / "multimnist"
    place.mkdir()
    job = make_job(SHARDS * examples)
    make = job.maker("train")
    shards = [shard.write(place, job, make_part(n, examples), make) for n in range(SHARDS)]
    fields = {field.name: (field.dtype, field.shape) for field in job.fields()}
    index = Manifest(job.content, "pixels", fields, tuple(shards))
    manifest.write(place, index)
    stored = StoredStretches(place, index, "train", SHOWN)

    def compose() -> None:
        for first in range(0, examples, AT_ONCE):
            make(first, first + AT_ONCE)

    return {
        "composed": compose,
        "written": lambda: shard.write(folder, job, make_part(1, examples), make),
        **{f"read {size}": _prepare_epoch(stored, size) for size in BATCHES},
    }


def _prepare_epoch(examples: StoredStretches, batch_size: int) -> Callable[[], None]:
    """A pass over all examples, each time in another order."""
    loader = StretchLoader(examples, torch.device("cpu"), batch_size, len(examples), seed=0)

    def take() -> None:
        for _ in loader:
            pass
        loader.sampler.set_epoch(loader.sampler.epoch + 1)

    return take


def _judge_rates(rates: Mapping[str, float]) -> list[Measured]:
    def judge(name: str, what: str, bar: float, stretch: float | None = None) -> Measured:
        return Measured(what, rates[name], "examples/s", bar, at_least=True, stretch=stretch)

    reading = "read: shuffled float32 batches of verified shards"
    return [
        judge("composed", f"composed in sequence, {AT_ONCE} at once", 300_000, 1_000_000),
        judge("written", "written", 150_000),
        *(judge(f"read {size}", f"{reading}, {size} at once", 500_000) for size in BATCHES),
    ]


def _measure_worker(folder: Path, examples: int) -> Measured:
    """The process of a worker that makes one shard, all in it counted."""
    peak = machine.call_in_fresh_process(make_shard_and_measure_peak, folder, examples)
    what = f"resident memory of a worker, one shard of {examples:,} examples"
    return Measured(what, peak / 1e6, "MB", 500)


def make_shard_and_measure_peak(folder: Path, examples: int) -> int:
    """The largest memory in bytes that this process has had, once it has made a shard."""
    job = make_job(examples)
    part = make_part(0, examples)
    shard.write(folder, job, part, job.maker("train"))
    (folder / part.name).unlink()
    return machine.peak_of_process()
