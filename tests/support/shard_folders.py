"""Real folders of shards, small: pairs of the embedded digits."""

from functools import cache
from pathlib import Path

from capsweep.data.shards import manifest
from capsweep.data.shards.manifest import Manifest, Store
from capsweep.data_prep import multimnist, shard
from capsweep.data_prep.multimnist import MultiMnist
from capsweep.data_prep.shard import Part

PER_SHARD = 600  # so that the last shard of a split is a smaller one


@cache
def job(*overrides: str, with_sources: bool = False) -> MultiMnist:
    """One pair for each of the embedded digits."""
    small = ["dataset.source=digits", "dataset.batches.pairs=1", *overrides]
    return multimnist.prepare(small, with_sources)


def parts(made: MultiMnist, per_shard: int = PER_SHARD) -> list[Part]:
    """All shards, by split."""
    return [
        Part(f"{split}-{number:05}.h5", split, first, min(per_shard, count - first))
        for split, count in made.content.splits.items()
        for number, first in enumerate(range(0, count, per_shard))
    ]


def write(
    folder: Path, made: MultiMnist, store: Store = "pixels", gzip: int | None = None
) -> Manifest:
    """A whole data set in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    fields, shards = {}, []
    if store == "pixels":
        fields = {field.name: (field.dtype, field.shape) for field in made.fields()}
        for part in parts(made):
            shards.append(shard.write(folder, made, part, made.maker(part.split), gzip))
    whole = Manifest(made.content, store, fields, tuple(shards))
    manifest.write(folder, whole)
    return whole
