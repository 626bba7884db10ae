"""Folders of shards of the embedded digits: small ones made here, and `capsweep data make`."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import commands
import h5py
from commands import Process
from filled_overrides import fill_overrides

from capsweep import cli
from capsweep.cli.data import prepare_job
from capsweep.config import compose
from capsweep.data.batches import Split
from capsweep.data.pairs import PairSource
from capsweep.shards import manifest
from capsweep.shards.layout import ShardJob, divide_into_parts, make_pair_source, write_shard
from capsweep.shards.making import build_manifest
from capsweep.shards.manifest import Manifest
from capsweep.shards.reader import declare_data_set
from capsweep.storage.files import hash_file
from capsweep.training import build

Folder = tuple[Path, Manifest]

# 57,480 examples in forty shards and 14,400 in eleven, of the embedded digits: after the first ones
# there is time to see that they are there.
LARGER = ["dataset.source=digits", "PAIRS=40", "SHARDS=40", "EXECUTOR=local"]
PAIRS = 2  # of each training digit: 2,874 examples


@cache
def job(*overrides: str) -> ShardJob:
    """MultiMNIST of the embedded digits."""
    return prepare_job("multimnist", ["dataset.source=digits", *overrides], PAIRS)


def source(split: Split) -> PairSource:
    """What composes the same pairs on the fly."""
    config = compose.cell(["dataset=multimnist", "dataset.source=digits"]).config
    return make_pair_source(build.build_reader(config).read(""), split, job().content.settings)


def make(folder: Path, made_by: ShardJob | None = None, shards: int = 3) -> Manifest:
    """A whole folder, the training split in so many shards."""
    made_by = made_by or job()
    folder.mkdir(parents=True, exist_ok=True)
    makers = {split: made_by.build_maker(split) for split in made_by.content.splits}
    parts = divide_into_parts(made_by, shards)
    made = [write_shard(folder, made_by, part, makers[part.split]) for part in parts]
    whole = build_manifest(made_by, made)
    manifest.write_manifest(folder, whole)
    return whole


def declare_small(folder: Path) -> list[str]:
    """Make a whole folder; the overrides of a cell of it whose epochs have 60 examples."""
    content = make(folder).content
    sizes = ["batch_size=16", "dataset.batches.epoch_examples=60", "dataset.batches.workers=1"]
    words = [f"dataset.shards.folders=[{folder}]", "dataset.batches.test_examples=50", *sizes]
    return ["dataset=multimnist_shards", *declare_data_set(content), *words]


def run_make(folder: Path, *arguments: str) -> int:
    """`capsweep data make` in this process: 2,874 examples in four shards, 720 in two.

    Returns its exit status.
    """
    small = ["dataset.source=digits", "PAIRS=2", "SHARDS=4", "EXECUTOR=local"]
    return cli.main(["data", "make", *fill_overrides(arguments, *small, f"STORAGE={folder}")])


def rehash(folder: Path, name: str) -> Manifest:
    """Write index.json anew for a file that was altered, as whoever altered it would."""
    stored, path = manifest.read_manifest(folder), folder / name
    facts = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
    shards = [replace(s, **facts) if s.name == name else s for s in stored.shards]
    manifest.write_manifest(folder, replace(stored, shards=tuple(shards)))
    return manifest.read_manifest(folder)


def flip_bit(path: Path, place: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def pixel_place(path: Path) -> int:
    """Where a byte of an image is in a shard."""
    with h5py.File(path, locking=False) as file:
        return file["images"].id.get_chunk_info(1).byte_offset + 1000


def hashes(folder: Path) -> dict[str, str]:
    """sha256 of every file that is the data set's, by name."""
    return {path.name: hash_file(path) for path in folder.iterdir() if path.is_file()}


def times(folder: Path) -> dict[str, int]:
    """When every file of the data set was written, in nanoseconds."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.is_file()}


def start_making(folder: Path, *arguments: str) -> Process:
    """`capsweep data make`, by default of LARGER, in its own process."""
    words = [*(arguments or LARGER), f"STORAGE={folder}"]
    return commands.start("data", "make", *words)


def run_until(process: Process, holds: Callable[[], bool]) -> None:
    """Return when it holds; the process must still run then."""
    while not holds():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
