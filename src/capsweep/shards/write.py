"""One shard: made in memory, then written, hashed and renamed, so that a named file is whole.

HDF5 never writes to the disk itself: it ends the process when a disk refuses while it closes a
file. A full disk is an ordinary OSError here.
"""

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py

from capsweep.errors import ConfigError
from capsweep.shards.job import Job, Maker
from capsweep.shards.layout import BLOCK, shard_attributes
from capsweep.shards.manifest import Shard
from capsweep.storage.files import hash_bytes, write_atomically

USUAL = 100_000  # examples of a shard, where the number of shards is not given
LARGEST = 2**29  # bytes of a shard, which is made in memory
MOST = 200_000  # shards of all splits: what index.json has room for
AT_ONCE = 2 * BLOCK  # examples, so that they are still in the cache when they are stored


@dataclass(frozen=True)
class Part:
    """A shard that is to be made: examples first .. first + examples - 1 of a split."""

    name: str
    split: str
    first: int
    examples: int


def divide_into_parts(job: Job, shards: int | None) -> tuple[Part, ...]:
    """The shards of all splits; their sizes within a split differ by one example at most.

    shards: those of "train", or of the first split where there is no such; None: of USUAL examples.
    Other splits have as many examples in each. Raises ConfigError for too few or too many.
    """
    splits = job.content.splits
    named = "train" if "train" in splits else next(iter(splits))
    count = splits[named]
    shards = -(-count // USUAL) if shards is None else shards
    if not 1 <= shards <= count:
        raise ConfigError(
            f"SHARDS={shards}: must be 1 to {count:,}, the number of {named} examples"
        )
    room = LARGEST // sum(field.nbytes for field in job.fields())
    if (usual := -(-count // shards)) > room:
        raise ConfigError(
            f"SHARDS={shards}: must be {-(-count // room)} or more, since a shard is made in memory"
        )
    counts = {s: shards if s == named else -(-n // usual) for s, n in splits.items()}
    if (total := sum(counts.values())) > MOST:
        raise ConfigError(
            f"SHARDS={shards}: {total:,} shards in all splits, and index.json has room for "
            f"{MOST:,}; set SHARDS to fewer, or ask for fewer examples (PAIRS)"
        )
    return tuple(part for s, n in splits.items() for part in _divide_split(s, n, counts[s]))


def _divide_split(split: str, examples: int, shards: int) -> list[Part]:
    bounds = [number * examples // shards for number in range(shards + 1)]
    return [
        Part(f"{split}-{number:05d}.h5", split, bounds[number], bounds[number + 1] - bounds[number])
        for number in range(shards)
    ]


def write_shard(folder: Path, job: Job, part: Part, make: Maker) -> Shard:
    """Make a shard and write it, whole or not at all. Raises OSError."""
    content = fill_shard(job, part, make)
    write_atomically(folder / part.name, lambda file: file.write(content))
    return Shard(**asdict(part), bytes=len(content), sha256=hash_bytes(content))


def fill_shard(job: Job, part: Part, make: Maker) -> bytes:
    """The bytes of a shard."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.attrs.update(shard_attributes(job.content, part.split, part.first))
        stored = _create_data_sets(file, job, part.examples)
        for start in range(0, part.examples, AT_ONCE):
            stop = min(start + AT_ONCE, part.examples)
            for name, array in make(part.first + start, part.first + stop).items():
                stored[name][start:stop] = array
    return buffer.getvalue()  # no copy: BytesIO shares its bytes until it is written to


def _create_data_sets(file: h5py.File, job: Job, examples: int) -> Mapping[str, h5py.Dataset]:
    return {
        field.name: file.create_dataset(
            field.name,
            (examples, *field.shape),
            field.dtype,
            chunks=(min(BLOCK, examples), *field.shape),
            fletcher32=True,
            track_times=False,  # the same examples are the same bytes
        )
        for field in job.fields()
    }
