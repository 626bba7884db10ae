"""Whether a folder holds what its manifest says: every file read now, whatever was known of it."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import h5py

from capsweep.data.shards.described import DAMAGED, opened
from capsweep.data.shards.manifest import INDEX, Shard
from capsweep.data.shards.regular import regular
from capsweep.data_prep.making.leftovers import CALIBRATION, STATE, TEMPORARY
from capsweep.errors import DataError

AT_ONCE = 1 << 20  # bytes

Kind = Literal[
    "missing", "truncated", "grown", "altered", "unlike", "unreadable", "surplus", "leftover",
    "different",
]  # fmt: skip


AGAIN = "run the same `make shards` again, which makes it anew, or copy it again"
KNOWN_AS_WHOLE = (
    "delete it, and run the same `make shards` again, which would else take it for whole: its hash "
    "is that of index.json"
)
CURES: Mapping[Kind, str] = {
    "missing": AGAIN,
    "truncated": AGAIN,
    "grown": AGAIN,
    "altered": AGAIN,
    "unreadable": "correct its permissions, or move it away; then " + AGAIN,
    "unlike": KNOWN_AS_WHOLE,
    "different": KNOWN_AS_WHOLE,
    "surplus": "move it away, or delete it",
    "leftover": "the next `make shards` removes it; no other command needs it",
}


@dataclass(frozen=True)
class Fault:
    """What is wrong with one file; text: in words, without its name."""

    file: str
    kind: Kind
    text: str

    def __str__(self) -> str:
        # A name may be of any bytes, and what it shows is a terminal's to print.
        name = self.file if self.file.isprintable() else ascii(self.file)
        return f"{name}: {self.kind}: {self.text}"


@dataclass(frozen=True)
class Checked:
    """What came of it. faults: in the order of the shards, then what is surplus. bytes: hashed, in
    so many seconds.
    """

    faults: tuple[Fault, ...]
    bytes: int
    seconds: float

    def cures(self) -> Iterator[str]:
        """What to do, by kind."""
        for cure in dict.fromkeys(CURES[fault.kind] for fault in self.faults):
            kinds = dict.fromkeys(f.kind for f in self.faults if CURES[f.kind] == cure)
            yield f"{', '.join(kinds)}: {cure}"


# What a shard, opened, is besides its bytes: where it is not as it should be, in words.
Describe: TypeAlias = Callable[[h5py.File, Shard], Iterable[str]]


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
    shards: Sequence[Shard],
    describe: Describe,
    advance: Callable[[int], object] = lambda count: None,
) -> Checked:
    """All faults of the shards that a folder is to hold, and all that is there besides.

    advance: is told of bytes as they are read, by several threads in turns. Raises DataError for a
    folder that cannot be listed.
    """
    begun, reading = time.monotonic(), Reading(advance)
    checks = _Shards(folder, describe, reading, {(s.bytes, s.sha256): s.name for s in shards})
    # hashlib lets go of the interpreter, so that threads are enough.
    pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)))
    try:
        faults = [fault for found in pool.map(checks.faults, shards) for fault in found]
    finally:
        reading.end()
        pool.shutdown(cancel_futures=True)
    faults += _surplus(folder, {shard.name for shard in shards})
    return Checked(tuple(faults), reading.bytes, time.monotonic() - begun)


@dataclass(frozen=True)
class _Shards:
    """recorded: names by bytes and sha256, to know a file again under another one's name."""

    folder: Path
    describe: Describe
    reading: Reading
    recorded: Mapping[tuple[int, str], str]

    def faults(self, shard: Shard) -> list[Fault]:
        """What is wrong with one; never raises what is the file's fault."""
        path = self.folder / shard.name
        try:
            size = regular(self.folder, shard.name).st_size
            if size != shard.bytes and all(size != other for other, _ in self.recorded):
                return [_of_size(shard, size)]
            sha256 = self.reading.sha256_of(path)
            if (size, sha256) != (shard.bytes, shard.sha256):
                return [_of_content(shard, size, sha256, self.recorded)]
            with opened(path) as file:
                said = list(self.describe(file, shard))
        except FileNotFoundError:
            return [Fault(shard.name, "missing", "no such file")]
        except DataError as error:
            return [Fault(shard.name, "unreadable", str(error).removeprefix(f"{path}: "))]
        except DAMAGED as error:
            return [Fault(shard.name, "unreadable", f"cannot be read ({in_one_line(error)})")]
        return [Fault(shard.name, "unlike", text) for text in said]


def _of_size(shard: Shard, size: int) -> Fault:
    kind = "truncated" if size < shard.bytes else "grown"
    return Fault(shard.name, kind, f"{size:,} bytes, {shard.bytes:,} recorded")


def _of_content(
    shard: Shard, size: int, sha256: str, recorded: Mapping[tuple[int, str], str]
) -> Fault:
    other = recorded.get((size, sha256))
    if other is not None:
        return Fault(shard.name, "altered", f"it is {other}, under another name")
    if size != shard.bytes:
        return _of_size(shard, size)
    return Fault(shard.name, "altered", f"sha256 {sha256}, recorded {shard.sha256}")


def _surplus(folder: Path, named: set[str]) -> Iterator[Fault]:
    try:
        found = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
    for name in found:
        if name in named or name in (INDEX, STATE):
            continue
        if TEMPORARY.fullmatch(name) or name.startswith(CALIBRATION):
            yield Fault(name, "leftover", "of a write that did not end, or has not yet")
        else:
            kind = "folder" if (folder / name).is_dir() else "file"
            yield Fault(name, "surplus", f"a {kind} that index.json does not name")


def in_one_line(error: BaseException) -> str:
    """What the system or HDF5 says, for a line of text."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split())
