"""Checks that shards match their manifest.

A shard is verified once per node, before its first use. The user's cache then stores the entry that
the manifest has for the shard, and the size and times of the shard's file. As long as entry, size
and times are unchanged, later processes and runs do not hash the file again.
"""

import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import h5py

from capsweep.errors import DataError
from capsweep.shards.layout import DAMAGE_ERRORS, find_disagreements, open_shard
from capsweep.shards.manifest import INDEX, REPAIR_HINT, STATE, Manifest, Shard
from capsweep.storage import official_files
from capsweep.storage.checked import load_cached, save_cached
from capsweep.storage.files import hash_file
from capsweep.storage.stores import hide_query

TICK = 2 * 10**9  # coarsest resolution of file times, in ns: that of the FAT file system


@contextmanager
def report_damage(path: Path) -> Iterator[None]:
    """Convert errors to a DataError while a `with` block reads a shard.

    The message has the path of the shard and says how to repair it.

    Args:
        path: Path of the shard, for the message.

    Raises:
        DataError: If the block raises one of DAMAGE_ERRORS.
    """
    try:
        yield
    except DAMAGE_ERRORS as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{path}: {' '.join(reason.split())}; {REPAIR_HINT}") from error


def check_size(folder: Path, shard: Shard) -> None:
    """Check that a shard is a regular file of the size in the manifest.

    Args:
        folder: Local folder of the shards.
        shard: Entry of the shard in the manifest.

    Raises:
        DataError: If the shard is missing, is not a regular file, or has another size.
    """
    with report_damage(folder / shard.name):
        status = (folder / shard.name).lstat()  # a pipe would block if it were opened
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is a link, or not a regular file")
        if status.st_size != shard.bytes:
            raise ValueError(f"{status.st_size:,} bytes, but {shard.bytes:,} in {INDEX}")


def check_shard(folder: Path, manifest: Manifest, shard: Shard) -> None:
    """Read a whole shard and check that it matches the manifest.

    Args:
        folder: Local folder of the shards.
        manifest: Manifest of the data set.
        shard: Entry of the shard in the manifest.

    Raises:
        DataError: If the shard is missing, or if its size, hash, attributes or arrays differ from
            the manifest.
    """
    path = folder / shard.name
    check_size(folder, shard)
    with report_damage(path):
        if (sha256 := hash_file(path)) != shard.sha256:
            raise ValueError(f"sha256 {sha256}, but {shard.sha256} in {INDEX}")
        with open_shard(path) as file:
            if texts := list(find_disagreements(file, manifest, shard)):
                raise ValueError(", ".join(texts))


def list_faults(folder: Path, manifest: Manifest) -> list[str]:
    """Check all shards of a data set, and describe each fault in a line.

    Args:
        folder: Local folder of the shards.
        manifest: Manifest of the data set.

    Returns:
        A line for each missing or damaged shard, then a line for each file in the folder that does
        not belong to the data set.
    """
    # Threads suffice, since hashlib releases the global interpreter lock.
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
    """A verifier of the shards in a folder.

    If the folder is the local copy of a folder in an object store, missing shards are fetched from
    the object store.

    Args:
        folder: Local folder of the shards.
        manifest: Manifest of the data set.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.origin = official_files.read_origin(folder)
        self._verified: set[str] = set()

    def open_shard(self, shard: Shard) -> h5py.File:
        """Verify a shard and open it; before that, fetch it if it is only in an object store.

        Args:
            shard: Entry of the shard in the manifest.

        Raises:
            DataError: If the shard is missing or does not match the manifest.
            StoreError: If the object store does not answer.
        """
        if self.origin is not None:
            official_files.fetch_file(self.origin, shard.name, partial(self._is_whole, shard))
        self._check(shard)
        with report_damage(self.folder / shard.name):
            return open_shard(self.folder / shard.name)

    def _check(self, shard: Shard) -> None:
        """Verify a shard; skip this if its file was verified before and has not changed since.

        Raises:
            DataError: If the shard does not match the manifest.
        """
        state = self._describe_state(shard)
        if state in self._verified or (state and load_cached("shards", state)):
            return
        check_shard(self.folder, self.manifest, shard)
        if state and state == self._describe_state(shard):
            self._verified.add(state)
            save_cached("shards", state, True)

    def _describe_state(self, shard: Shard) -> str:
        """Return a text with the manifest entry of a shard and the size and times of its file.

        The times include the ctime, because it changes even if a program sets the mtime back. The
        text is empty if there is no file. The text is also empty if the file was changed less than
        TICK nanoseconds ago, because another change now might not change the times.
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
        """Return whether a copy that was fetched earlier is a shard of this data set.

        When the copy was fetched, the object store may have held another data set.
        """
        with suppress(DataError):
            self._check(shard)
            return True
        return False


def check_sizes(folder: Path, shards: Sequence[Shard]) -> None:
    """Check that shards exist and have the size in the manifest.

    If the folder is the local copy of a folder in an object store, the sizes in the object store
    are checked. No shard is fetched or read.

    Args:
        folder: Local folder of the shards.
        shards: Entries of the shards in the manifest.

    Raises:
        DataError: If a shard is missing or has another size.
        StoreError: If the object store does not answer.
    """
    origin = official_files.read_origin(folder)
    sizes = {} if origin is None else official_files.list_sizes(origin)
    for shard in shards:
        if origin is None:
            check_size(folder, shard)
        elif (size := sizes.get(shard.name)) != shard.bytes:
            official_files.remove_copy(folder / INDEX)  # the copy may describe earlier shards
            raise DataError(
                f"{official_files.KEY}: {hide_query(origin)}/{shard.name}: {size or 'no'} bytes, "
                f"but {shard.bytes:,} in {INDEX}; copy the whole folder there again, {INDEX} last"
            )
