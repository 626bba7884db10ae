"""How a job's examples lie in a shard: one data set of HDF5 for each field, in chunks of
BLOCK examples.

    images   uint8  [N, C, H, W]      what a network is shown
    labels   uint8  [N, L], or [N]    classes; of two digits first the one below
    indices  uint32 [N, L], or [N]    places of the source images in their split
    shifts   int8   [N, L, 2]         rows down, columns right

The attributes of the file say what it is without `index.json`. Shape letters: B batch, L = 2 digits
of an image, C H W image.
"""

import io
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import h5py
import numpy as np
from torch import Tensor

from capsweep.data.batches import Split
from capsweep.data.images import Splits, trained_and_validated
from capsweep.data.pairs import PairSource
from capsweep.errors import ConfigError, DataError
from capsweep.shards.manifest import (
    INDEX,
    MOST,
    DataSetContent,
    Fields,
    Manifest,
    Shard,
    ShardPart,
    count_bytes,
)
from capsweep.storage.files import hash_bytes, write_atomically

MULTIMNIST = "multimnist"  # the job
# What h5py raises for what it finds in a file, beside OSError.
DAMAGE_ERRORS = (
    *(OSError, RuntimeError, KeyError, ValueError, TypeError),
    *(MemoryError, OverflowError),  # of sizes that a header declares
)
BLOCK = 500  # examples of a chunk: about 0.6 MB of MultiMNIST
AT_ONCE = 2 * BLOCK  # examples, so that they are still in the cache when they are stored
USUAL = 100_000  # examples of a shard, where the number of shards is not given
LARGEST = 2**29  # bytes of a shard, which is made in memory

# Examples start .. stop - 1 of a split, by field.
Maker: TypeAlias = Callable[[int, int], Mapping[str, np.ndarray]]


class ShardJob(Protocol):
    """One data set. It pickles and holds numpy arrays, since Ray's workers get it."""

    @property
    def content(self) -> DataSetContent:
        """What the examples are."""
        ...

    def list_fields(self) -> Fields:
        """Return what is stored of each example."""
        ...

    def build_maker(self, split: str) -> Maker:
        """Return the function that makes examples of a split."""
        ...


def divide_into_parts(job: ShardJob, shards: int | None) -> tuple[ShardPart, ...]:
    """Return the shards of all splits; their sizes within a split differ by one example at most.

    shards: those of "train", or of the first split where there is no such; None: of USUAL examples.
    Other splits have as many examples in each. Raises ConfigError for too few or too many.
    """
    splits = job.content.splits
    first = "train" if "train" in splits else next(iter(splits))
    count = splits[first]
    shards = -(-count // USUAL) if shards is None else shards
    if not 1 <= shards <= count:
        raise ConfigError(f"SHARDS={shards}: must be 1 to {count:,}, the {first} examples")
    room = LARGEST // count_bytes(job.list_fields())
    if (usual := -(-count // shards)) > room:
        raise ConfigError(
            f"SHARDS={shards}: must be {-(-count // room)} or more, since a shard is made in memory"
        )
    numbers = {split: -(-examples // usual) for split, examples in splits.items()} | {first: shards}
    parts: list[ShardPart] = []
    for split, examples in splits.items():
        number = numbers[split]
        bounds = [place * examples // number for place in range(number + 1)]
        for place, (start, stop) in enumerate(pairwise(bounds)):
            parts.append(ShardPart(f"{split}-{place:05d}.h5", split, start, stop - start))
    return tuple(parts)


def describe_shard(content: DataSetContent, split: str, first: int) -> dict[str, str | int]:
    """Return the attributes of the file that has the examples of a split from `first` on."""
    return {
        "dataset": content.dataset,
        "fingerprint": content.fingerprint,
        "generator_version": content.version,
        "settings": json.dumps(content.settings, sort_keys=True),
        "source": content.origin.name,
        "source_sha256": content.origin.sha256,
        "split": split,
        "first": first,
    }


def write_shard(folder: Path, job: ShardJob, part: ShardPart, make: Maker) -> Shard:
    """Make a shard and write it, whole or not at all. Raises OSError.

    HDF5 never writes to the disk itself: it ends the process when a disk refuses while it closes a
    file. A full disk is an ordinary OSError here.
    """
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.attrs.update(describe_shard(job.content, part.split, part.first))
        stored = {
            name: file.create_dataset(
                name,
                (part.examples, *shape),
                dtype,
                chunks=(min(BLOCK, part.examples), *shape),
                fletcher32=True,
                track_times=False,  # the same examples are the same bytes
            )
            for name, (dtype, shape) in job.list_fields().items()
        }
        for start in range(0, part.examples, AT_ONCE):
            stop = min(start + AT_ONCE, part.examples)
            arrays = make(part.first + start, part.first + stop)
            for name, data_set in stored.items():
                data_set[start:stop] = arrays[name]
    content = buffer.getvalue()  # no copy: BytesIO shares its bytes until it is written to
    write_atomically(folder / part.name, lambda file: file.write(content))
    return Shard(**asdict(part), bytes=len(content), sha256=hash_bytes(content))


def open_shard(path: Path) -> h5py.File:
    """Return a shard for reading. Raises OSError.

    The file system need not know locks. Blocks are read whole and in no order, so that nothing is
    worth a cache.
    """
    return h5py.File(path, "r", rdcc_nbytes=0, locking=False)


def find_disagreements(file: h5py.File, manifest: Manifest, shard: Shard) -> Iterator[str]:
    """Return where a file is not what the manifest says of the shard; none where it is.

    Raises one of DAMAGE_ERRORS where the file cannot be read.
    """
    expected = {
        **describe_shard(manifest.content, shard.split, shard.first),
        **{n: f"{dtype} {[shard.examples, *s]}" for n, (dtype, s) in manifest.fields.items()},
    }
    stored: dict[str, Any] = {str(name): value for name, value in file.attrs.items()}
    stored |= {name: _describe_data_set(file, name) for name in map(str, file)}
    for name in {**expected, **stored}:
        value, wanted = stored.get(name, "missing"), expected.get(name, "nothing")
        if not np.array_equal(value, wanted):
            yield f"{name} is {reprlib.repr(value)}, {reprlib.repr(wanted)} in index.json"


def _describe_data_set(file: h5py.File, name: str) -> str:
    """Return its dtype and shape, where its bytes lie in this file: a hash proves no others."""
    is_link = not isinstance(file.get(name, getlink=True), h5py.HardLink)
    stored = None if is_link else file[name]
    if not isinstance(stored, h5py.Dataset) or stored.is_virtual or stored.external:
        return "no data set of this file"
    return f"{stored.dtype} {list(stored.shape or ())}"


def make_pair_source(digits: Splits, split: Split, settings: Mapping[str, Any]) -> PairSource:
    """Return what composes the examples of a split. Raises DataError for settings of a manifest
    that are not whole numbers from 0 on.
    """
    names = ("validation", "seed", "margin", "shift")
    numbers: dict[str, Any] = {name: settings.get(name) for name in names}
    for name, value in numbers.items():
        if type(value) is not int or not 0 <= value <= MOST:
            raise DataError(
                f"{INDEX}: settings.{name} is {reprlib.repr(value)}, no whole number from 0 on; "
                f"{MULTIMNIST} has one: make the data set again"
            )
    train, held_out = trained_and_validated(digits, numbers.pop("validation"))
    examples = {"train": train, "validation": held_out, "test": digits.test}[split]
    return PairSource(examples, split, **numbers)


def compose_pairs(source: PairSource, k_B: Tensor) -> dict[str, np.ndarray]:
    """Return examples k, by field."""
    drawn = source.draw_pairs(k_B)
    return {
        "images": source.compose_images(drawn).numpy(),
        "labels": drawn.labels_BL.numpy().astype(np.uint8),
        "indices": drawn.sources_BL.numpy().astype(np.uint32),
        "shifts": drawn.shifts_BL2.numpy().astype(np.int8),
    }
