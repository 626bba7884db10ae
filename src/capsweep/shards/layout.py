"""The layout of a shard, and functions that write and read it.

A shard is an HDF5 file with one HDF5 data set for each field. A chunk has BLOCK examples. The
fields are:

    images   uint8  [N, C, H, W]      input of the network
    labels   uint8  [N, L], or [N]    classes of the L digits, or class of the image
    indices  uint32 [N, L], or [N]    indices of the source images in their split
    shifts   int8   [N, L, 2]         shifts of the digits in pixels, down and right

The attributes of the file identify its content, even if `index.json` is missing.

Shape letters: B batch, N examples of a shard, L = 2 digits of an image, C H W image.
"""

import io
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from torch import Tensor

from capsweep.data.batches import Split
from capsweep.data.images import Splits, divide_examples
from capsweep.data.pairs import PairSource
from capsweep.errors import ConfigError, DataError
from capsweep.shards.manifest import (
    INDEX,
    MOST_COUNT,
    DataSetContent,
    Fields,
    Manifest,
    Shard,
    ShardPart,
    count_bytes,
)
from capsweep.storage.files import hash_bytes, write_atomically

MULTIMNIST = "multimnist"  # name of the job
# Errors that h5py raises for a damaged file.
DAMAGE_ERRORS = (
    *(OSError, RuntimeError, KeyError, ValueError, TypeError),
    *(MemoryError, OverflowError),  # if a damaged header declares huge sizes
)
BLOCK = 500  # examples in a chunk: about 0.6 MB of MultiMNIST
AT_ONCE = 2 * BLOCK  # examples that are made together; they fit into the cache of a CPU
DEFAULT_EXAMPLES = 100_000  # most examples in a shard, if the number of shards is not given
MOST_BYTES = 2**29  # largest size of a shard in bytes; a shard is made in memory

# A function that makes the examples start .. stop - 1 of a split and returns their arrays by field.
Maker: TypeAlias = Callable[[int, int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class ShardJob:
    """A job that makes the examples of one data set.

    A job is sent to Ray workers. So it must be picklable, and its data must be numpy arrays.
    """

    content: DataSetContent  # the examples; the hash is the fingerprint of the data set
    fields: Fields  # dtype and shape of each field of an example
    build_maker: Callable[[str], Maker]  # returns the function that makes the examples of a split


def divide_into_parts(job: ShardJob, shards: int | None) -> tuple[ShardPart, ...]:
    """Divide all splits of a data set into shards.

    Within a split, the sizes of shards differ by at most one example. Shards of other splits have
    at most as many examples as the largest shard of "train".

    Args:
        job: Makes the examples.
        shards: Number of shards of "train", or of the first split if there is no "train"; None
            puts at most 100,000 examples into each shard.

    Returns:
        The shards of all splits. The shards of a split are in the order of its examples.

    Raises:
        ConfigError: If `shards` is below 1, if there are fewer examples than shards, or if a shard
            would exceed 512 MiB.
    """
    splits = job.content.splits
    first = "train" if "train" in splits else next(iter(splits))
    count = splits[first]
    shards = -(-count // DEFAULT_EXAMPLES) if shards is None else shards
    if not 1 <= shards <= count:
        raise ConfigError(f"SHARDS={shards}: must be 1 to {count:,} (the {first} examples)")
    room = MOST_BYTES // count_bytes(job.fields)
    if (usual := -(-count // shards)) > room:
        raise ConfigError(
            f"SHARDS={shards}: must be {-(-count // room)} or more, so that a shard fits in memory"
        )
    parts: list[ShardPart] = []
    for split, examples in splits.items():
        number = shards if split == first else -(-examples // usual)
        bounds = [place * examples // number for place in range(number + 1)]
        for place, (start, stop) in enumerate(pairwise(bounds)):
            parts.append(ShardPart(f"{split}-{place:05d}.h5", split, start, stop - start))
    return tuple(parts)


def describe_shard(content: DataSetContent, split: str, first: int) -> dict[str, str | int]:
    """Return the HDF5 attributes that identify the content of a shard.

    Args:
        content: The data set.
        split: Name of the split.
        first: Index of the shard's first example in the split.
    """
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
    """Make the examples of a shard and write it atomically.

    The HDF5 file is built in memory, and Python then writes its bytes to the disk. If the disk is
    full, Python raises an OSError, whereas HDF5 would abort the process when it closes the file.

    Args:
        folder: Folder of the data set.
        job: The job that makes the data set.
        part: The range of the examples in their split, and the name of the file.
        make: The function that makes the examples, from `job.build_maker`.

    Returns:
        The entry of the shard for the manifest, with the size and the hash of the file.

    Raises:
        OSError: If the file cannot be written.
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
                track_times=False,  # so that equal examples give equal bytes
            )
            for name, (dtype, shape) in job.fields.items()
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
    """Open a shard for reading.

    No lock is taken, since some file systems have no locks. HDF5's cache of chunks is switched off,
    since blocks are read completely and in random order.

    Args:
        path: The file.

    Raises:
        OSError: If the file cannot be opened as HDF5.
    """
    return h5py.File(path, "r", rdcc_nbytes=0, locking=False)


def find_disagreements(file: h5py.File, manifest: Manifest, shard: Shard) -> Iterator[str]:
    """Compare attributes, dtypes and shapes of a shard with the manifest.

    Args:
        file: The open shard.
        manifest: The manifest of the data set.
        shard: The entry of the shard in the manifest.

    Yields:
        A line for each difference.

    Raises:
        Exception: One of DAMAGE_ERRORS if the file cannot be read.
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
            yield f"{name} is {reprlib.repr(value)}, but {reprlib.repr(wanted)} in index.json"


def _describe_data_set(file: h5py.File, name: str) -> str:
    """Describe dtype and shape of an HDF5 data set in a text.

    Links and external or virtual data sets can refer to bytes that the hash of the file does not
    cover. For these, the text says that the file has no array.
    """
    is_link = not isinstance(file.get(name, getlink=True), h5py.HardLink)
    stored = None if is_link else file[name]
    if not isinstance(stored, h5py.Dataset) or stored.is_virtual or stored.external:
        return "no array in this file"
    return f"{stored.dtype} {list(stored.shape or ())}"


def make_pair_source(digits: Splits, split: Split, settings: Mapping[str, Any]) -> PairSource:
    """Prepare the digits of a split for the composition of pairs.

    Args:
        digits: The data set of single digits.
        split: Name of the split.
        settings: The settings of the pairs, from the manifest of their data set.

    Raises:
        DataError: If a setting is missing or not a whole number from 0 on.
        ConfigError: If all digits of the split are of one class, or if no training digits remain.
    """
    names = ("validation", "seed", "margin", "shift")
    numbers: dict[str, Any] = {name: settings.get(name) for name in names}
    for name, value in numbers.items():
        if type(value) is not int or not 0 <= value <= MOST_COUNT:
            raise DataError(
                f"{INDEX}: settings.{name} is {reprlib.repr(value)}, but must be a whole number "
                "from 0 on; make the data set again"
            )
    examples = divide_examples(digits, numbers.pop("validation"))
    return PairSource(examples[split], split, **numbers)


def compose_pairs(source: PairSource, k_B: Tensor) -> dict[str, np.ndarray]:
    """Compose pairs and return the arrays that a shard stores, by field.

    Args:
        source: The digits of a split.
        k_B: Indices of the pairs in the split, int64 [B].

    Returns:
        "images" [B, C, H, W], "labels" [B, L], "indices" [B, L] and "shifts" [B, L, 2].
    """
    drawn = source.draw_pairs(k_B)
    return {
        "images": source.compose_images(drawn).numpy(),
        "labels": drawn.labels_BL.numpy().astype(np.uint8),
        "indices": drawn.sources_BL.numpy().astype(np.uint32),
        "shifts": drawn.shifts_BL2.numpy().astype(np.int8),
    }
