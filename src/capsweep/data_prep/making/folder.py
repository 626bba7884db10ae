"""A folder of shards while it is made: whose it is, what it is to hold, what is there already.

All of ours that is not a shard or `index.json` is in STATE: the lock, what is being made, and a
line for every finished shard. Files that are not of our naming are never touched.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from capsweep.data.shards import manifest
from capsweep.data.shards.layout import Field
from capsweep.data.shards.manifest import Content, Manifest, Shard, Store
from capsweep.data_prep.making import leftovers
from capsweep.data_prep.making.leftovers import STATE
from capsweep.data_prep.making.shard import Part
from capsweep.errors import DataError, UserError
from capsweep.files import sha256_of, write_json
from capsweep.ledger import claim

LOCK, WANTED, MADE = "lock", "wanted.json", "made.jsonl"
SHORT = 60  # characters of a value in a message


@dataclass(frozen=True)
class Wanted:
    """What a folder is to hold, and how. parts: of a virtual data set none."""

    content: Content
    store: Store
    fields: Sequence[Field]
    parts: Sequence[Part]
    gzip: int | None = None

    def names(self) -> list[str]:
        """Of the fields that are stored."""
        return [field.name for field in self.fields]

    def manifest(self, shards: Sequence[Shard]) -> Manifest:
        """What is written when these shards are there."""
        fields = {field.name: (field.dtype, field.shape) for field in self.fields}
        return Manifest(self.content, self.store, fields, tuple(shards))

    def described(self) -> dict[str, Any]:
        """All that must be equal in two commands that fill one folder, by the name of a key."""
        flat = _described(self.manifest([]), self.parts) | {"gzip": self.gzip}
        return json.loads(json.dumps(flat))  # as it is read again


def _described(found: Manifest, parts: Sequence[Part | Shard]) -> dict[str, Any]:
    content = asdict(found.content)
    flat = {"dataset": content["dataset"], "version": content["version"], "store": found.store}
    for section in ("settings", "origin", "splits"):
        flat |= {f"{section}.{key}": value for key, value in content[section].items()}
    flat["fields"] = ", ".join(found.fields)
    for split in content["splits"]:
        flat[f"shards.{split}"] = sum(part.split == split for part in parts)
    return flat


def check(folder: Path, wanted: Wanted) -> None:
    """Refuse a folder that holds something else. Raises DataError naming what differs."""
    there = existing(folder)
    if not there.is_dir():
        raise DataError(f"STORAGE={folder}: {there} is a file; name a folder of the data set's own")
    if there != folder:
        return
    wanted_there = _there(folder)
    if wanted_there is None:
        names = sorted(name for name in _names(folder) if _is_foreign(name))
        if names and not (folder / STATE).is_dir():
            raise DataError(
                f"STORAGE={folder}: holds other files ({', '.join(names[:3])}"
                f"{', ...' if len(names) > 3 else ''}); name a folder of the data set's own"
            )
        return
    asked = wanted.described()
    keys = [key for key in {**wanted_there, **asked} if key in wanted_there or key != "gzip"]
    differ = [
        f"{key}: {_short(wanted_there.get(key))} there, {_short(asked.get(key))} asked for"
        for key in keys
        if wanted_there.get(key) != asked.get(key)
    ]
    if differ:
        raise DataError(
            f"STORAGE={folder}: another data set, or another layout of it, is there "
            f"({'; '.join(differ)}); name another folder, or ask for what is there"
        )


def _short(value: object) -> str:
    text = str(value).lower() if value is None else str(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def existing(folder: Path) -> Path:
    """The folder, or what is there nearest above it."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise unwritable(folder, error) from error


def _is_foreign(name: str) -> bool:
    """Hidden files and what a new disk has are in nobody's way."""
    return not name.startswith(".") and name != "lost+found"


def _there(folder: Path) -> Mapping[str, Any] | None:
    """What the folder is to hold according to an earlier command; None: nothing is known."""
    path = folder / STATE / WANTED
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); delete it, and it is written anew"
        ) from error
    if not (folder / manifest.INDEX).exists():
        return None
    found = manifest.read(folder)
    return _described(found, found.shards)


class Held:
    """A folder that this process alone fills."""

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        self.folder, self.wanted = folder, wanted
        self._made = folder / STATE / MADE
        self._identity = sha256_of(json.dumps(wanted.described(), sort_keys=True).encode())

    def known(self) -> dict[str, Shard]:
        """Finished shards by name, as recorded; whether they are still whole is not said."""
        shards = self._of_index()
        try:
            lines = self._made.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            try:
                identity, plain = json.loads(line)
                shard = Shard(**plain)
            except (ValueError, TypeError):  # a driver was killed while it wrote this line
                continue
            if identity == self._identity:
                shards[shard.name] = shard
        wanted = {part.name: part for part in self.wanted.parts}
        return {
            name: shard
            for name, shard in shards.items()
            if name in wanted and asdict(wanted[name]).items() <= asdict(shard).items()
        }

    def _of_index(self) -> dict[str, Shard]:
        try:
            found = manifest.read(self.folder)
        except DataError:  # none yet, or altered: it is written anew at the end
            return {}
        # Of the shards of another data set, copied here since, the hashes would be right too.
        is_ours = found.content.fingerprint == self.wanted.content.fingerprint
        is_ours = is_ours and list(found.fields) == self.wanted.names()
        return {shard.name: shard for shard in found.shards} if is_ours else {}

    def record(self, shard: Shard) -> None:
        """Remember a finished shard. Raises OSError."""
        line = json.dumps([self._identity, asdict(shard)])
        with self._made.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")  # the last line may be a part of one

    def finish(self, shards: Sequence[Shard]) -> None:
        """Write `index.json`: the data set is whole; one that says so stays. Raises OSError."""
        wanted = self.wanted.manifest(shards)
        try:
            is_written = manifest.read(self.folder) == wanted
        except DataError:  # none yet, or altered
            is_written = False
        if not is_written:
            manifest.write(self.folder, wanted)


@contextmanager
def held(folder: Path, wanted: Wanted) -> Iterator[Held]:
    """The folder, made where it is not there, for the time of a block.

    Raises UserError when another process fills it or it cannot be written, DataError when it holds
    something else.
    """
    check(folder, wanted)
    try:
        (folder / STATE).mkdir(parents=True, exist_ok=True)
        lock = (folder / STATE / LOCK).open("a+b", buffering=0)
    except OSError as error:
        raise unwritable(folder, error) from error
    with lock:
        _lock(lock, folder)
        check(folder, wanted)  # another may have begun meanwhile
        mine = Held(folder, wanted)
        try:
            lock.truncate(0)
            lock.write(str(claim.myself()).encode())
            leftovers.remove(folder)
            write_json(folder / STATE / WANTED, wanted.described())
        except OSError as error:
            raise unwritable(folder, error) from error
        yield mine


def unwritable(folder: Path, error: OSError) -> UserError:
    """The error for a folder that nothing can be written to."""
    return UserError(
        f"STORAGE={folder}: cannot be written ({error.strerror}); correct that, or set STORAGE to "
        "a folder that can be written"
    )


def _lock(lock: IO[bytes], folder: Path) -> None:
    """A dead process holds no lock, so a folder is never blocked by one."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        owner = lock.read().decode(errors="replace") or "another process"
        raise UserError(
            f"STORAGE={folder}: is being filled by {owner}; wait for its end, or end it"
        ) from error
    except OSError as error:
        raise UserError(
            f"STORAGE={folder}: its file system has no locks ({error.strerror}), so that two "
            "commands could fill it at once; mount it with them, or set STORAGE to another one"
        ) from error
