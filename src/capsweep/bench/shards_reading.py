"""What reading shards costs: batches as training takes them, their first use, and verifying."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import torch

from capsweep.bench import noise
from capsweep.bench import shards_problem as problem
from capsweep.bench.measured import Measured
from capsweep.data.shards import manifest
from capsweep.data.shards.batches import StretchLoader
from capsweep.data.shards.described import disagreements, opened
from capsweep.data.shards.layout import BLOCK
from capsweep.data.shards.manifest import Manifest
from capsweep.data.shards.reader import SHOWN
from capsweep.data.shards.stored import StoredStretches
from capsweep.data.shards.stretches import ComposedStretches, Stretches
from capsweep.data_prep.checking.verify import verify

SHARDS = 2
BATCHES = (128, 1000)
KINDS = ("read", "virtual")
NAMES = (*(f"{kind} {size}" for kind in KINDS for size in BATCHES), "first", "blocks", "verify")
CACHE = "XDG_CACHE_HOME"


@contextmanager
def shards_read(folder: Path, examples: int) -> Iterator[tuple[Path, Manifest]]:
    """Shards of so many examples, and the user's cache beside them, for the time of a block: what
    is known to be whole shall not outlive them.
    """
    place, before = folder / "multimnist", os.environ.get(CACHE)
    place.mkdir()
    whole = problem.job(SHARDS * examples)
    made = [problem.made(place, whole, problem.part(number, examples)) for number in range(SHARDS)]
    found = problem.manifest(whole, tuple(made))
    manifest.write(place, found)
    os.environ[CACHE] = str(folder / "cache")
    try:
        yield place, found
    finally:
        os.environ.pop(CACHE)
        if before is not None:
            os.environ[CACHE] = before


def calls(folder: Path, found: Manifest) -> dict[str, Callable[[], object]]:
    """By name, what is timed; each goes over all examples once."""
    count = found.content.splits["train"]
    composed = ComposedStretches(noise.pair_source(problem.DIGITS), count, SHOWN)
    whole = StoredStretches(folder, found, "train", SHOWN)
    epochs = [_epoch(examples, size) for examples in (whole, composed) for size in BATCHES]
    others = [
        lambda: _first(folder, found),
        lambda: _blocks(folder, found),
        lambda: _verified(folder, found),
    ]
    return dict(zip(NAMES, [*epochs, *others], strict=True))


def measured(rates: Mapping[str, float], size: float) -> list[Measured]:
    """Beside their bars. rates: examples a second, by name; size: bytes of an example."""

    def rate(name: str, what: str, bar: float | None = None) -> Measured:
        return Measured(what, rates[name], "examples/s", bar, at_least=True)

    read = "read: shuffled float32 batches of verified shards"
    virtual = "the same of a virtual data set"
    return [
        *(rate(f"read {n}", f"{read}, {n} at once", 500_000) for n in BATCHES),
        rate("first", f"the same, {BATCHES[-1]} at once, hashed before, as on their first use"),
        *(rate(f"virtual {n}", f"{virtual}, {n} at once") for n in BATCHES),
        Measured(f"verified by {_cores()} threads", rates["verify"] * size / 1e9, "GB/s"),
    ]


def _epoch(examples: Stretches, batch_size: int) -> Callable[[], None]:
    """A pass over all examples, each time in another order."""
    loader = StretchLoader(examples, torch.device("cpu"), batch_size, len(examples), seed=0)

    def take() -> None:
        for _ in loader:
            pass
        loader.sampler.set_epoch(loader.sampler.epoch + 1)

    return take


def _first(folder: Path, found: Manifest) -> None:
    """By a process that does not know yet that they are whole."""
    for shard in found.shards:
        os.utime(folder / shard.name)
    _epoch(StoredStretches(folder, found, "train", SHOWN), BATCHES[-1])()


def _blocks(folder: Path, found: Manifest) -> None:
    """Blocks of pixels in their order, by HDF5 alone."""
    for shard in found.shards:
        with opened(folder / shard.name) as file:
            images = file["images"]
            assert isinstance(images, h5py.Dataset)
            block = np.empty((BLOCK, *images.shape[1:]), images.dtype)
            for start in range(0, shard.examples - BLOCK + 1, BLOCK):
                images.read_direct(block, np.s_[start : start + BLOCK])


def _verified(folder: Path, found: Manifest) -> None:
    """As `capsweep data verify` does."""
    described = verify(folder, found.shards, lambda file, of: disagreements(file, found, of))
    if described.faults:
        raise RuntimeError("; ".join(map(str, described.faults)))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
