"""Shards are never read unless they are those of the manifest: each is hashed once.

What was hashed is kept in the user's cache of the node, one file for each folder of shards, so that
neither the next process nor the next run hashes it again. It counts as long as the file's size and
times are the same. A file that was written within the last moments could be changed again without
its time telling so, since file systems count time in ticks of up to 2 s: that it was whole is not
kept, and it is hashed at each opening until it is older.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from capsweep.errors import DataError
from capsweep.shards.manifest import INDEX, SHARD_NAME, Shard
from capsweep.storage import official_files
from capsweep.storage.files import hash_bytes, stat_regular_file, user_cache_folder, write_text
from capsweep.storage.stores import StoreError, hide_query

TICK = 2 * 10**9  # ns: what FAT counts time in; others take less
AGAIN = "run `make shards` again, which makes it anew, or copy it again"

_said: set[str] = set()


class FileState(NamedTuple):
    """A file as it was when it was hashed; times in ns. A change of its content moves `changed`
    even where its time of modification is set back.
    """

    size: int
    modified: int
    changed: int

    @classmethod
    def from_stat(cls, found: os.stat_result) -> "FileState":
        """What a file is known again by."""
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether a later change would have another time."""
        return self.modified + TICK < time.time_ns()


class ShardVerifier:
    """The shards of one folder, each hashed on its first use.

    hashed: how many files this object has hashed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.origin = folder, official_files.read_origin(folder)
        self.hashed = 0
        self._known: dict[str, tuple[FileState, str]] | None = None

    def verified_path(self, shard: Shard) -> Path:
        """Where a shard lies, once its sha256 is that of the manifest.

        Raises DataError naming the file and the cure: absent, truncated, altered, a link, or a name
        that leads out of the folder.
        """
        if self.origin is not None:
            _fetch_shard(self.origin, self.folder, shard)
        path = check_plain_file(self.folder, shard.name)
        try:
            with path.open("rb", buffering=0) as file:
                self._verify(path, file, shard)
        except OSError as error:
            raise unreadable_error(path, error) from error
        return path

    def _verify(self, path: Path, file: Any, shard: Shard) -> None:
        seen = FileState.from_stat(os.fstat(file.fileno()))
        _check_size(path, seen.size, shard)
        if self._load_records().get(shard.name) == (seen, shard.sha256):
            return
        self._known = (
            _read_records(self._record_file()) | self._load_records()
        )  # another may have hashed it meanwhile
        if self._load_records().get(shard.name) == (seen, shard.sha256):
            return
        found = hashlib.file_digest(file, "sha256").hexdigest()
        self.hashed += 1
        if FileState.from_stat(os.fstat(file.fileno())) != seen:
            raise DataError(f"{path}: it was written to while it was read; wait for who does")
        if found != shard.sha256:
            if official_files.forget_copy(path):
                raise DataError(f"{path}: altered in the cache, and removed; run it again")
            raise DataError(
                f"{path}: altered (sha256 {found}, {shard.sha256} in index.json); {AGAIN}"
            )
        if seen.is_settled:
            self._store_record(shard.name, (seen, found))

    def _load_records(self) -> dict[str, tuple[FileState, str]]:
        if self._known is None:
            self._known = _read_records(self._record_file())
        return self._known

    def _store_record(self, name: str, record: tuple[FileState, str]) -> None:
        """Add a record to those of this process, and to those that others have written meanwhile.

        Two at once may lose one of them: then that file is hashed once more.
        """
        self._load_records()[name] = record
        place = self._record_file()
        if place is None:
            return
        records = self._known = _read_records(place) | self._load_records()
        try:
            write_text(place, json.dumps({key: [*s, sha] for key, (s, sha) in records.items()}))
        except OSError as error:
            _warn_once(str(place.parent), error.strerror or error)

    def _record_file(self) -> Path | None:
        """The cache's file for this folder; None where there is no home."""
        try:
            here = user_cache_folder()
        except RuntimeError:
            _warn_once("~/.cache/capsweep", "no home; set HOME or XDG_CACHE_HOME")
            return None
        return here / f"shards-{hash_bytes(os.fsencode(self.folder.resolve()))[:16]}.json"


def check_sizes(folder: Path, shards: Sequence[Shard]) -> None:
    """Raise DataError unless all shards are there, plain files of as many bytes as they should
    have; of a folder of an object store there, where nothing is fetched for it.
    """
    if shards and (origin := official_files.read_origin(folder)) is not None:
        there = official_files.list_sizes(origin)
        for shard in shards:
            if (found := there.get(shard.name)) != shard.bytes:
                raise _refuse_shard(origin, folder, shard, f"{found or 'no'} bytes")
        return
    for shard in shards:
        path = check_plain_file(folder, shard.name)
        _check_size(path, path.stat().st_size, shard)


def _fetch_shard(origin: str, folder: Path, shard: Shard) -> None:
    """Have a shard of an object store in its folder of the cache, whole. Raises DataError."""
    if not SHARD_NAME.fullmatch(shard.name):
        raise DataError(f"{folder}: {shard.name!r} is no name of a shard; remove index.json")
    # What was fetched is the node's own copy: of another content, it is fetched again.
    path = folder / shard.name
    if path.is_file() and not path.is_symlink() and path.stat().st_size != shard.bytes:
        official_files.forget_copy(path)
    try:
        is_there = official_files.fetch_file(origin, shard.name, [shard.sha256])
    except StoreError as error:  # workers that read ahead hand on what is wrong with data
        raise DataError(str(error)) from error
    if not is_there:
        raise _refuse_shard(origin, folder, shard, "no such object")


def _refuse_shard(origin: str, folder: Path, shard: Shard, why: str) -> DataError:
    """The manifest is forgotten: it may be that of shards which were there before."""
    official_files.forget_copy(folder / INDEX)
    return DataError(
        f"{official_files.KEY}: {hide_query(origin)}/{shard.name}: {why}, {shard.bytes:,} bytes in "
        "index.json; copy the whole folder there again, index.json last"
    )


def _check_size(path: Path, size: int, shard: Shard) -> None:
    if size != shard.bytes:
        raise DataError(
            f"{path}: truncated or altered ({size:,} bytes, {shard.bytes:,} in index.json); {AGAIN}"
        )


def check_plain_file(folder: Path, name: str) -> Path:
    """The path of a shard, a file of its own in the folder. Raises DataError."""
    path = folder / name
    if not SHARD_NAME.fullmatch(name):
        raise DataError(f"{folder}: {name!r} is no name of a shard; correct or remove index.json")
    try:
        stat_regular_file(folder, name)
    except DataError as error:
        raise DataError(f"{error}; {AGAIN}") from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; {AGAIN}") from error
    except OSError as error:
        raise unreadable_error(path, error) from error
    return path


def unreadable_error(path: Path, error: OSError) -> DataError:
    """The error for a file that is there and cannot be read."""
    return DataError(
        f"{path}: cannot be read ({error.strerror or error}); correct its permissions, or copy it "
        "again"
    )


def _read_records(path: Path | None) -> dict[str, tuple[FileState, str]]:
    """The records of a file of the cache; none where it is absent or damaged."""
    if path is None:
        return {}
    try:
        plain: Mapping[str, Any] = json.loads(path.read_bytes())
        return {
            name: (FileState(*map(int, numbers)), str(sha256))
            for name, (*numbers, sha256) in plain.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # what is not known is hashed


def _warn_once(place: str, reason: object) -> None:
    if place not in _said:
        _said.add(place)
        text = f"{place}: which shards are whole cannot be kept ({reason}); hashing in every run"
        print(text, file=sys.stderr, flush=True)
