"""Whether shards are those of their manifest.

A shard is never read unless it is: each is verified once on a node. The user's cache knows of each
shard that was whole what it should be, and the size and times of its file. While that is the same,
neither the next process nor the next run reads the whole file again.
"""

import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import h5py

from capsweep.errors import DataError
from capsweep.shards.layout import DAMAGE_ERRORS, find_disagreements, open_shard
from capsweep.shards.manifest import AGAIN, INDEX, STATE, Manifest, Shard
from capsweep.storage import official_files
from capsweep.storage.checked import load_cached, save_cached
from capsweep.storage.files import hash_file
from capsweep.storage.stores import hide_query

TICK = 2 * 10**9  # ns: what FAT counts time in; others take less


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Raise DataError naming a shard, what the system, HDF5 or the block says of it, and the
    cure.
    """
    try:
        yield
    except DAMAGE_ERRORS as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{path}: {' '.join(reason.split())}; {AGAIN}") from error


def check_size(folder: Path, shard: Shard) -> None:
    """Raise DataError unless a shard is a plain file of its number of bytes."""
    with naming_damage(folder / shard.name):
        status = (folder / shard.name).lstat()  # to open a pipe is to wait for ever
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("a link, or no plain file")
        if status.st_size != shard.bytes:
            raise ValueError(f"{status.st_size:,} bytes, {shard.bytes:,} in {INDEX}")


def check_shard(folder: Path, manifest: Manifest, shard: Shard) -> None:
    """Raise DataError unless a shard, which is read now, is that of the manifest."""
    path = folder / shard.name
    check_size(folder, shard)
    with naming_damage(path):
        if (sha256 := hash_file(path)) != shard.sha256:
            raise ValueError(f"sha256 {sha256}, {shard.sha256} in {INDEX}")
        with open_shard(path) as file:
            if texts := list(find_disagreements(file, manifest, shard)):
                raise ValueError(", ".join(texts))


def list_faults(folder: Path, manifest: Manifest) -> list[str]:
    """Return a line on each shard of a manifest that is not whole, then on all that is in their
    folder besides.
    """
    # hashlib lets go of the interpreter, so that threads are enough.
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        found = pool.map(partial(_find_fault, folder, manifest), manifest.shards)
        faults = [fault for fault in found if fault is not None]
    named = {INDEX, STATE, *(shard.name for shard in manifest.shards)}
    surplus = sorted(set(os.listdir(folder)) - named)
    return [*faults, *(f"{folder / name}: not in {INDEX}; move it away" for name in surplus)]


def _find_fault(folder: Path, manifest: Manifest, shard: Shard) -> str | None:
    try:
        return check_shard(folder, manifest, shard)
    except DataError as error:
        return str(error)


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
            official_files.has_file(self.origin, shard.name, partial(self._is_whole, shard))
        self._check(shard)
        with naming_damage(self.folder / shard.name):
            return open_shard(self.folder / shard.name)

    def _check(self, shard: Shard) -> None:
        """Raise DataError unless a shard is whole; it is read unless it was whole before."""
        state = self._describe_state(shard)
        if state in self._verified or (state and load_cached("shards", state)):
            return
        check_shard(self.folder, self.manifest, shard)
        if state and state == self._describe_state(shard):
            self._verified.add(state)
            save_cached("shards", state, True)

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

    def _is_whole(self, shard: Shard, _: Path) -> bool:
        """Return whether the copy that was fetched before is of this data set: the store may have
        had another one.
        """
        try:
            self._check(shard)
        except DataError:
            return False
        return True


def check_sizes(folder: Path, shards: Sequence[Shard]) -> None:
    """Raise DataError unless all shards are there, plain files of as many bytes as they should
    have. Nothing is fetched from an object store.
    """
    origin = official_files.read_origin(folder)
    sizes = {} if origin is None else official_files.list_sizes(origin)
    for shard in shards:
        if origin is None:
            check_size(folder, shard)
        elif (size := sizes.get(shard.name)) != shard.bytes:
            official_files.forget_copy(folder / INDEX)  # of shards that were there before, perhaps
            raise DataError(
                f"{official_files.KEY}: {hide_query(origin)}/{shard.name}: {size or 'no'} bytes, "
                f"{shard.bytes:,} in {INDEX}; copy the whole folder there again, {INDEX} last"
            )
