"""One shard: made, written, hashed and named, so that a file of its name is always whole."""

import hashlib
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py

from capsweep.data.shards.layout import BLOCK, Field
from capsweep.data.shards.manifest import Content, Shard
from capsweep.data_prep.job import Job, Maker

AT_ONCE = 2 * BLOCK  # examples, so that they are still in the cache when they are written
READ = 1 << 20  # bytes


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
    try:
        with h5py.File(temporary, "x") as file:
            _describe(file, job.content, part)
            _fill(file, job.fields(), part, make, gzip)
        made = Shard(**asdict(part), bytes=temporary.stat().st_size, sha256=sha256_of(temporary))
        _flush(temporary)
        temporary.replace(path)
        _flush(folder)
    finally:
        temporary.unlink(missing_ok=True)
    return made


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file of any size."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe(file: h5py.File, content: Content, part: Part) -> None:
    file.attrs["dataset"] = content.dataset
    file.attrs["fingerprint"] = content.fingerprint
    file.attrs["generator_version"] = content.version
    file.attrs["settings"] = json.dumps(content.settings, sort_keys=True)
    file.attrs["source"] = content.origin.name
    file.attrs["source_sha256"] = content.origin.sha256
    file.attrs["split"] = part.split
    file.attrs["first"] = part.first


def _fill(
    file: h5py.File, fields: Sequence[Field], part: Part, make: Maker, gzip: int | None
) -> None:
    chunk = min(BLOCK, part.examples)
    stored: dict[str, h5py.Dataset] = {}
    for field in fields:
        stored[field.name] = file.create_dataset(
            field.name,
            (part.examples, *field.shape),
            field.dtype,
            chunks=(chunk, *field.shape),
            compression=gzip,
            fletcher32=True,
            track_times=False,  # the same examples are the same bytes
        )
    for begun in range(0, part.examples, AT_ONCE):
        ended = min(begun + AT_ONCE, part.examples)
        for name, array in make(part.first + begun, part.first + ended).items():
            stored[name][begun:ended] = array


def _flush(path: Path) -> None:
    """Have the file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
