"""Shards are never read unless they are those of the manifest: each is verified once on a node.

A file of the user's cache has a stamp for each shard that was whole: a hash of what it should be
and of the size and times of its file. While that is the same, neither the next process nor the next
run reads the whole file again.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import h5py

from capsweep.errors import DataError
from capsweep.shards.layout import open_shard
from capsweep.shards.manifest import INDEX, Manifest, Shard
from capsweep.shards.verify import damage_fault, find_size_fault, list_faults
from capsweep.storage import official_files
from capsweep.storage.files import hash_bytes, user_cache_folder
from capsweep.storage.stores import StoreError, hide_query

TICK = 2 * 10**9  # ns: what FAT counts time in; others take less


class ShardVerifier:
    """Opens the shards of a folder, fetched where it is one of an object store."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.origin = official_files.read_origin(folder)
        self._stamps: set[str] = set()

    def open_shard(self, shard: Shard) -> h5py.File:
        """A shard that is what the manifest says. Raises DataError naming the file and the cure."""
        if self.origin is not None:
            _fetch_shard(self.origin, self.folder, shard)
        stamp = self._find_stamp(shard)
        if stamp not in self._stamps:
            self._stamps |= self._read_stamps()
        if stamp not in self._stamps:
            self._verify_shard(shard)
            if stamp is not None:
                self._keep_stamp(stamp)
        try:
            return open_shard(self.folder / shard.name)
        except OSError as error:
            raise damage_fault(shard, error).as_error(self.folder) from error

    def _find_stamp(self, shard: Shard) -> str | None:
        """What a verified shard is known again by; its ctime moves even where its mtime is set
        back. None for a file of the last moments: a change within the same tick would not show.
        """
        try:
            state = (self.folder / shard.name).lstat()
        except OSError:
            return None
        if state.st_mtime_ns + TICK > time.time_ns():
            return None
        wanted = [self.manifest.content.fingerprint, self.manifest.fields, asdict(shard)]
        found = [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
        return hash_bytes(json.dumps([*wanted, *found]).encode())

    def _verify_shard(self, shard: Shard) -> None:
        for fault in list_faults(self.folder, self.manifest, shard):
            if official_files.forget_copy(self.folder / shard.name):
                raise DataError(
                    f"{self.folder / shard.name}: altered in the cache, and removed; run it again"
                )
            raise fault.as_error(self.folder)

    def _read_stamps(self) -> set[str]:
        try:
            return set(self._stamp_file().read_text(errors="replace").split())
        except (OSError, RuntimeError):  # none yet, or no home
            return set()

    def _keep_stamp(self, stamp: str) -> None:
        self._stamps.add(stamp)
        try:
            self._stamp_file().parent.mkdir(parents=True, exist_ok=True)
            with self._stamp_file().open("a") as file:
                file.write(f"{stamp}\n")
        except (OSError, RuntimeError) as error:
            _warn_once(str(error))

    def _stamp_file(self) -> Path:
        name = hash_bytes(bytes(self.folder.resolve()))[:16]
        return user_cache_folder() / f"shards-{name}.txt"


@cache
def _warn_once(reason: str) -> None:
    text = f"which shards are whole cannot be kept ({reason}); hashing in every run"
    print(text, file=sys.stderr, flush=True)


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


def _fetch_shard(origin: str, folder: Path, shard: Shard) -> None:
    """Have a shard of an object store in its folder of the cache, whole. Raises DataError."""
    try:
        is_there = official_files.fetch_file(origin, shard.name, [shard.sha256])
    except StoreError as error:  # workers that read ahead hand on what is wrong with data
        raise DataError(str(error)) from error
    if not is_there:
        raise _refuse_object(origin, folder, shard, "no such object")


def _refuse_object(origin: str, folder: Path, shard: Shard, reason: str) -> DataError:
    """The manifest is forgotten: it may be that of shards which were there before."""
    official_files.forget_copy(folder / INDEX)
    return DataError(
        f"{official_files.KEY}: {hide_query(origin)}/{shard.name}: {reason}, {shard.bytes:,} "
        "bytes in index.json; copy the whole folder there again, index.json last"
    )
