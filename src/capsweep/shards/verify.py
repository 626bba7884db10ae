"""Whether shards are those of their manifest.

A shard is never read unless it is: each is verified once on a node. The user's cache has an empty
file for each shard that was whole, named by a hash of what it should be and of the size and times
of its file. While that is the same, neither the next process nor the next run reads the whole file
again.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import h5py

from capsweep.errors import DataError
from capsweep.runtime import terminal
from capsweep.shards.layout import DAMAGE_ERRORS, find_disagreements, open_shard
from capsweep.shards.manifest import INDEX, STATE, Manifest, Shard
from capsweep.storage import official_files
from capsweep.storage.files import hash_bytes, hash_file, stat_regular_file, user_cache_folder
from capsweep.storage.official_files import IsCurrent
from capsweep.storage.stores import StoreError, hide_query

TICK = 2 * 10**9  # ns: what FAT counts time in; others take less

AGAIN = "run the same `make shards` again, which makes it anew, or copy it again"
CURES: Mapping[str, str] = {
    "missing": AGAIN,
    "truncated": AGAIN,
    "altered": AGAIN,
    "unreadable": f"correct its permissions, or move it away; then {AGAIN}",
    "different": "its hash is that of index.json: delete it, and run the same `make shards` again",
    "surplus": "move it away, or delete it",
}


@dataclass(frozen=True)
class Fault:
    """What is wrong with one file; kind: of CURES. text: in words, without its name."""

    file: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.kind}: {self.text}"

    def as_error(self, folder: Path) -> DataError:
        """Return the error of a file that was to be read, with the cure."""
        return DataError(f"{folder / self.file}: {self.kind}: {self.text}; {CURES[self.kind]}")


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
    if size == shard.bytes:
        return None
    kind = "truncated" if size < shard.bytes else "altered"
    return Fault(shard.name, kind, f"{size:,} bytes, {shard.bytes:,} in index.json")


def damage_fault(shard: Shard, error: BaseException) -> Fault:
    """Return what the system or HDF5 says, on one line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Fault(shard.name, "unreadable", f"cannot be read ({' '.join(reason.split())})")


def describe_cures(faults: Sequence[Fault]) -> Iterator[str]:
    """Yield what to do, by kind."""
    for cure in dict.fromkeys(CURES[fault.kind] for fault in faults):
        kinds = dict.fromkeys(f.kind for f in faults if CURES[f.kind] == cure)
        yield f"{', '.join(kinds)}: {cure}"


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
        self._stamps: set[Path] = set()
        try:
            self._cache = user_cache_folder() / "shards"
        except RuntimeError:  # no home: a place where nothing can be kept
            self._cache = Path(os.devnull, "shards")

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
        stamp = self._find_stamp(shard)
        if stamp is not None and (stamp in self._stamps or stamp.exists()):
            return []
        faults = list_faults(self.folder, self.manifest, shard)
        if not faults and stamp is not None and stamp == self._find_stamp(shard):
            self._keep_stamp(stamp)
        return faults

    def _find_stamp(self, shard: Shard) -> Path | None:
        """Return the empty file that says that a shard is verified; the ctime of a shard moves even
        where its mtime is set back. None for a shard of the last moments, since a change within the
        same tick would not show.
        """
        try:
            state = (self.folder / shard.name).lstat()
        except OSError:
            return None
        if state.st_mtime_ns + TICK > time.time_ns():
            return None
        expected = [self.manifest.content.fingerprint, self.manifest.fields, asdict(shard)]
        stored = [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
        return self._cache / hash_bytes(json.dumps([*expected, *stored]).encode())

    def _keep_stamp(self, stamp: Path) -> None:
        self._stamps.add(stamp)
        try:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
        except OSError as error:
            text = f"verified shards cannot be remembered ({error}); each run hashes them again"
            terminal.print_once(text)


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
