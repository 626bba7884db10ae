"""Folders of shards, small and made here, of the embedded digits."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from capsweep.cli.data_jobs import prepare_job
from capsweep.data.batches import Split
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.pairs import PairSource
from capsweep.shards import manifest, pair_examples
from capsweep.shards.job import Job
from capsweep.shards.manifest import Manifest
from capsweep.shards.write import Part, write_shard
from data_prep.multimnist import MultiMnist

PAIRS = 2  # of each training digit: 2,874 examples


@cache
def job(*overrides: str, with_sources: bool = False) -> MultiMnist:
    """MultiMNIST of the embedded digits."""
    given = ["dataset.source=digits", *overrides]
    made = prepare_job("multimnist", given, PAIRS, with_sources)
    assert isinstance(made, MultiMnist)
    return made


def source(split: Split) -> PairSource:
    """What composes the same pairs on the fly."""
    digits = {
        name: LabelledImages(torch.tensor(images), torch.tensor(labels).long())
        for name, (images, labels) in job().digits.items()
    }
    return pair_examples.make_pair_source(Splits(**digits), split, job().content.settings)


def make(folder: Path, made_by: Job | None = None, shards: int = 3) -> Manifest:
    """A whole folder, each of its splits in so many shards."""
    made_by = made_by or job()
    folder.mkdir(parents=True, exist_ok=True)
    fields = {field.name: (field.dtype, field.shape) for field in made_by.fields()}
    made = [
        write_shard(folder, made_by, part, made_by.maker(split))
        for split, count in made_by.content.splits.items()
        for part in _parts(split, count, shards)
    ]
    whole = Manifest(made_by.content, "pixels", fields, tuple(made))
    manifest.write_manifest(folder, whole)
    return whole


def _parts(split: str, count: int, shards: int) -> Sequence[Part]:
    """Shards of equal size, up to one example."""
    ends = [count * (place + 1) // shards for place in range(shards)]
    starts = [0, *ends[:-1]]
    return [
        Part(f"{split}-{place:05d}.h5", split, start, end - start)
        for place, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
