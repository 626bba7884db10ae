"""Folders of shards, small and made here, of the embedded digits."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from capsweep.data.images import LabelledImages, Splits
from capsweep.data.pairs import PairSource
from capsweep.data.presented import Split
from capsweep.data.shards import manifest, sequence
from capsweep.data.shards.manifest import Manifest, Shard, Store
from capsweep.data_prep import multimnist
from capsweep.data_prep.job import Job
from capsweep.data_prep.making import shard
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.multimnist import MultiMnist

PAIRS = 2  # of each training digit: 2,874 examples


@cache
def job(*overrides: str, with_sources: bool = False) -> MultiMnist:
    """MultiMNIST of the embedded digits."""
    small = ("dataset.source=digits", f"dataset.batches.pairs={PAIRS}")
    return multimnist.prepare([*small, *overrides], with_sources)


def source(split: Split) -> PairSource:
    """What composes the same pairs on the fly."""
    digits = {
        name: LabelledImages(torch.tensor(images), torch.tensor(labels).long())
        for name, (images, labels) in job().digits.items()
    }
    return sequence.pair_source(Splits(**digits), split, job().content.settings)


def make(
    folder: Path,
    made_by: Job | None = None,
    shards: int = 3,
    store: Store = "pixels",
) -> Manifest:
    """A whole folder, each of its splits in so many shards, or in none."""
    made_by = made_by or job()
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Shard] = []
    fields: Mapping[str, tuple[str, tuple[int, ...]]] = {}
    if store == "pixels":
        fields = {field.name: (field.dtype, field.shape) for field in made_by.fields()}
        for split, count in made_by.content.splits.items():
            make = made_by.maker(split)
            parts = _parts(split, count, shards)
            found += [shard.write(folder, made_by, part, make) for part in parts]
    whole = Manifest(made_by.content, store, fields, tuple(found))
    manifest.write(folder, whole)
    return whole


def _parts(split: str, count: int, shards: int) -> Sequence[Part]:
    """Shards of equal size, up to one example."""
    ends = [count * (place + 1) // shards for place in range(shards)]
    starts = [0, *ends[:-1]]
    return [
        Part(f"{split}-{place:05d}.h5", split, start, end - start)
        for place, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
