"""Whether a folder holds what its manifest says: every file read now, whatever was known of it."""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from capsweep.data.shards.described import DAMAGED, disagreements, opened
from capsweep.data.shards.manifest import INDEX, Manifest, Shard
from capsweep.data.shards.regular import regular
from capsweep.errors import DataError

AT_ONCE = 1 << 20  # bytes
TEMPORARY = re.compile(r"\..+\.tmp")  # what is written lies under such a name until it is whole

Kind = Literal[
    "missing", "truncated", "grown", "altered", "unlike", "unreadable", "surplus", "leftover",
    "different",
]  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What is wrong with one file; text: in words, without its name."""

    file: str
    kind: Kind
    text: str


@dataclass(frozen=True)
class Checked:
    """What came of it. bytes: hashed, in so many seconds."""

    faults: tuple[Fault, ...]
    bytes: int
    seconds: float


class Reading:
    """Counts the bytes that threads read, and tells these when to end."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        self.bytes = 0
        self._advance, self._lock, self._ended = advance, threading.Lock(), threading.Event()

    def end(self) -> None:
        """Let no thread read on."""
        self._ended.set()

    def sha256_of(self, path: Path) -> str:
        """Hexadecimal sha256 of a file of any size. Raises OSError."""
        digest, room = hashlib.sha256(), memoryview(bytearray(AT_ONCE))
        with path.open("rb", buffering=0) as file:
            while (count := file.readinto(room)) and not self._ended.is_set():
                digest.update(room[:count])
                with self._lock:
                    self.bytes += count
                    self._advance(count)
        return digest.hexdigest()


def verify(
    folder: Path,
    manifest: Manifest,
    is_kept: Callable[[str], bool] = lambda name: False,
    advance: Callable[[int], object] = lambda count: None,
) -> Checked:
    """All faults, in the order of the manifest; then what it does not name.

    is_kept: whether a name is one of those that making a data set keeps there. advance: is told of
    bytes as they are read, by several threads in turns. Raises DataError for a folder that cannot
    be listed.
    """
    begun, reading = time.monotonic(), Reading(advance)
    faults = list(_of_shards(folder, manifest, reading))
    faults += _surplus(folder, {shard.name for shard in manifest.shards}, is_kept)
    return Checked(tuple(faults), reading.bytes, time.monotonic() - begun)


def _of_shards(folder: Path, manifest: Manifest, reading: Reading) -> Iterator[Fault]:
    """Hashed by as many threads as there are cores: hashlib lets go of the interpreter."""
    recorded = {(shard.bytes, shard.sha256): shard.name for shard in manifest.shards}
    cores = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(max_workers=cores)
    try:
        yield from (
            fault
            for found in pool.map(
                lambda shard: _of_shard(folder, manifest, shard, recorded, reading), manifest.shards
            )
            for fault in found
        )
    finally:
        reading.end()
        pool.shutdown(cancel_futures=True)


def _of_shard(
    folder: Path,
    manifest: Manifest,
    shard: Shard,
    recorded: Mapping[tuple[int, str], str],
    reading: Reading,
) -> Sequence[Fault]:
    path = folder / shard.name
    try:
        size = regular(folder, shard.name).st_size
        if size != shard.bytes and all(size != bytes_ for bytes_, _ in recorded):
            return [_of_size(shard, size)]
        sha256 = reading.sha256_of(path)
        if (size, sha256) != (shard.bytes, shard.sha256):
            return [_of_content(shard, size, sha256, recorded)]
        with opened(path) as file:
            said = list(disagreements(file, manifest, shard))
    except FileNotFoundError:
        return [Fault(shard.name, "missing", "no such file")]
    except DataError as error:
        return [Fault(shard.name, "unreadable", str(error).removeprefix(f"{path}: "))]
    except DAMAGED as error:
        return [Fault(shard.name, "unreadable", f"cannot be read ({_one_line(error)})")]
    return [Fault(shard.name, "unlike", text) for text in said]


def _of_size(shard: Shard, size: int) -> Fault:
    kind = "truncated" if size < shard.bytes else "grown"
    return Fault(shard.name, kind, f"{size:,} bytes, {shard.bytes:,} in index.json")


def _of_content(
    shard: Shard, size: int, sha256: str, recorded: Mapping[tuple[int, str], str]
) -> Fault:
    other = recorded.get((size, sha256))
    if other is not None:
        return Fault(shard.name, "altered", f"it is {other}, under another name")
    if size != shard.bytes:
        return _of_size(shard, size)
    return Fault(shard.name, "altered", f"sha256 {sha256}, {shard.sha256} in index.json")


def _surplus(folder: Path, named: set[str], is_kept: Callable[[str], bool]) -> Iterator[Fault]:
    try:
        found = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
    for name in found:
        if name in named or name == INDEX or is_kept(name):
            continue
        if TEMPORARY.fullmatch(name):
            text = "left by a write that did not end; delete it unless data make is running"
            yield Fault(name, "leftover", text)
        else:
            kind = "folder" if (folder / name).is_dir() else "file"
            yield Fault(name, "surplus", f"a {kind} that index.json does not name")


def _one_line(error: BaseException) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split())
