"""One shard: made, written, hashed and named, so that a file of its name is always whole."""

import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py

from capsweep.data.shards.described import attributes
from capsweep.data.shards.layout import BLOCK, Field
from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.job import Job, Maker
from capsweep.data_prep.making.sink import LateSignals, Sink
from capsweep.files import sha256_of_file
from capsweep.training.threads import threads

AT_ONCE = 2 * BLOCK  # examples, so that they are still in the cache when they are written


@dataclass(frozen=True)
class Part:
    """A shard that is to be made: examples first .. first + examples - 1 of a split."""

    name: str
    split: str
    first: int
    examples: int


def write(folder: Path, job: Job, part: Part, make: Maker, gzip: int | None = None) -> Shard:
    """Make a shard under a temporary name, flush it to the disk, rename it.

    gzip: level of compression, None: none. Raises OSError.
    """
    path = folder / part.name
    temporary = path.with_name(f".{part.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    sink = Sink(temporary)
    try:
        # A worker has one core, and there are as many workers as cores.
        with threads(1), LateSignals() as signals:
            is_whole = _fill(sink, signals, job, part, make, gzip)
        sink.check()
        if not is_whole:  # and the handler of that signal let it pass
            raise KeyboardInterrupt
        made = Shard(
            **asdict(part), bytes=temporary.stat().st_size, sha256=sha256_of_file(temporary)
        )
        os.fsync(sink.fileno())
        temporary.replace(path)
        _flush(folder)
    finally:
        sink.close()
        temporary.unlink(missing_ok=True)
    return made


def _fill(
    sink: Sink, signals: LateSignals, job: Job, part: Part, make: Maker, gzip: int | None
) -> bool:
    """Whether all examples are written; not after a fault or a signal."""
    with h5py.File(sink, "w") as file:
        file.attrs.update(attributes(job.content, part.split, part.first))
        stored = _data_sets(file, job.fields(), part.examples, gzip)
        for begun in range(0, part.examples, AT_ONCE):
            if signals.asked or sink.fault is not None:
                return False
            ended = min(begun + AT_ONCE, part.examples)
            for name, array in make(part.first + begun, part.first + ended).items():
                stored[name][begun:ended] = array
    return True


def _data_sets(
    file: h5py.File, fields: Sequence[Field], examples: int, gzip: int | None
) -> dict[str, h5py.Dataset]:
    return {
        field.name: file.create_dataset(
            field.name,
            (examples, *field.shape),
            field.dtype,
            chunks=(min(BLOCK, examples), *field.shape),
            compression=gzip,
            fletcher32=True,
            track_times=False,  # the same examples are the same bytes
        )
        for field in fields
    }


def _flush(path: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
