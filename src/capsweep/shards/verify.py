"""Whether shards are those of their manifest.

A shard is never read unless it is: each is verified once on a node. The user's cache knows of each
shard that was whole what it should be, and the size and times of its file. While that is the same,
neither the next process nor the next run reads the whole file again.
"""

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import h5py

from capsweep.errors import DataError
from capsweep.shards.layout import DAMAGE_ERRORS, find_disagreements, open_shard
from capsweep.shards.manifest import INDEX, STATE, Manifest, Shard
from capsweep.storage import disk_cache, official_files
from capsweep.storage.files import hash_file, stat_regular_file
from capsweep.storage.official_files import IsCurrent
from capsweep.storage.stores import StoreError, hide_query

TICK = 2 * 10**9  # ns: what FAT counts time in; others take less

AGAIN = "run the same `make shards` again, which makes it anew, or copy it again"
CURES = {"surplus": "move it away, or delete it", "different": f"delete it; then {AGAIN}"}


@dataclass(frozen=True)
class Fault:
    """What is wrong with one file; kind: in a word. text: in words, without its name."""

    file: str
    kind: Literal["missing", "altered", "unreadable", "different", "surplus"]
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.kind}: {self.text}"

    @property
    def cure(self) -> str:
        """What to do about it."""
        return CURES.get(self.kind, AGAIN)

    def as_error(self, folder: Path) -> DataError:
        """Return the error of a file that was to be read, with the cure."""
        return DataError(f"{folder / self.file}: {self.kind}: {self.text}; {self.cure}")


def list_faults(folder: Path, manifest: Manifest, shard: Shard) -> list[Fault]:
    """Return what is wrong with a shard, which is read now."""
    try:
        if (fault := find_size_fault(folder, shard)) is not None:
            return [fault]
        if (sha256 := hash_file(folder / shard.name)) != shard.sha256:
            text = f"sha256 {sha256}, {shard.sha256} in index.json"
            return [Fault(shard.name, "altered", text)]
        with open_shard(folder / shard.name) as file:
            texts = find_disagreements(file, manifest, shard)
            return [Fault(shard.name, "different", text) for text in texts]
    except DAMAGE_ERRORS as error:
        return [damage_fault(shard, error)]


def find_size_fault(folder: Path, shard: Shard) -> Fault | None:
    """Return why a shard is no plain file of its number of bytes; None where it is one."""
    try:
        size = stat_regular_file(folder, shard.name).st_size
    except FileNotFoundError:
        return Fault(shard.name, "missing", "no such file")
    except DataError as error:
        return Fault(shard.name, "unreadable", str(error).removeprefix(f"{folder / shard.name}: "))
    except OSError as error:
        return damage_fault(shard, error)
    text = f"{size:,} bytes, {shard.bytes:,} in index.json"
    return None if size == shard.bytes else Fault(shard.name, "altered", text)


def damage_fault(shard: Shard, error: BaseException) -> Fault:
    """Return what the system or HDF5 says, on one line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Fault(shard.name, "unreadable", f"cannot be read ({' '.join(reason.split())})")


def verify_folder(folder: Path, manifest: Manifest) -> list[Fault]:
    """Return all faults of the shards of a manifest, then all that is in their folder besides."""
    # hashlib lets go of the interpreter, so that threads are enough.
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        found = pool.map(partial(list_faults, folder, manifest), manifest.shards)
        faults = [fault for of_shard in found for fault in of_shard]
    named = {INDEX, STATE, *(shard.name for shard in manifest.shards)}
    surplus = sorted(set(os.listdir(folder)) - named)
    return [*faults, *(Fault(name, "surplus", "not in index.json") for name in surplus)]


class ShardVerifier:
    """Opens the shards of a folder, fetched where it is one of an object store."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.origin = official_files.read_origin(folder)
        self._verified: set[str] = set()

    def open_shard(self, shard: Shard) -> h5py.File:
        """Return a shard that is what the manifest says. Raises DataError naming the file and the
        cure.
        """
        if self.origin is not None:
            # A copy in the cache may be of a data set that was there before.
            _fetch_shard(self.origin, self.folder, shard, lambda _: not self._find_faults(shard))
        for fault in self._find_faults(shard):
            raise fault.as_error(self.folder)
        try:
            return open_shard(self.folder / shard.name)
        except OSError as error:
            raise damage_fault(shard, error).as_error(self.folder) from error

    def _find_faults(self, shard: Shard) -> list[Fault]:
        """Return what is wrong with a shard, which is read unless it was whole before."""
        state = self._describe_state(shard)
        if state in self._verified or (state and disk_cache.load("shards", state)):
            return []
        faults = list_faults(self.folder, self.manifest, shard)
        if not faults and state and state == self._describe_state(shard):
            self._verified.add(state)
            disk_cache.save("shards", state, True)
        return faults

    def _describe_state(self, shard: Shard) -> str:
        """Return what a shard should be and the size and times of its file: its ctime moves even
        where its mtime is set back. Empty for a shard of the last moments, since a change within
        the same tick would not show.
        """
        try:
            state = (self.folder / shard.name).lstat()
        except OSError:
            return ""
        if state.st_mtime_ns + TICK > time.time_ns():
            return ""
        expected = [self.manifest.content.fingerprint, self.manifest.fields, asdict(shard)]
        return json.dumps([*expected, state.st_size, state.st_mtime_ns, state.st_ctime_ns])


def check_sizes(folder: Path, shards: Sequence[Shard]) -> None:
    """Raise DataError unless all shards are there, plain files of as many bytes as they should
    have. Nothing is fetched from an object store.
    """
    if (origin := official_files.read_origin(folder)) is not None:
        sizes = official_files.list_sizes(origin)
        for shard in shards:
            if (size := sizes.get(shard.name)) != shard.bytes:
                raise _refuse_object(origin, folder, shard, f"{size or 'no'} bytes")
        return
    for shard in shards:
        if (fault := find_size_fault(folder, shard)) is not None:
            raise fault.as_error(folder)


def _fetch_shard(origin: str, folder: Path, shard: Shard, is_current: IsCurrent) -> None:
    """Have a shard of an object store in its folder of the cache, whole. Raises DataError."""
    try:
        is_there = official_files.fetch_file(origin, shard.name, is_current)
    except StoreError as error:  # workers that read ahead hand on what is wrong with data
        raise DataError(str(error)) from error
    if not is_there:
        raise _refuse_object(origin, folder, shard, "no such object")


def _refuse_object(origin: str, folder: Path, shard: Shard, reason: str) -> DataError:
    """Forget the manifest, which may be that of shards that were there before, and return the
    error.
    """
    official_files.forget_copy(folder / INDEX)
    return DataError(
        f"{official_files.KEY}: {hide_query(origin)}/{shard.name}: {reason}, {shard.bytes:,} "
        "bytes in index.json; copy the whole folder there again, index.json last"
    )
