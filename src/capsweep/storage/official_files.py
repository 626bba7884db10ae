"""Official files: found below the data folder, and never read unless they are the declared ones.

Of a data folder in an object store each file is fetched once for a node, into the user's cache.
A folder of the store has a folder of its own there (`fetched/NAME-HASH`, the hash of its URL), with
the URL in `.origin`. A file has its name when it is whole, not before; processes that
want it at the same time wait for the one that fetches it, and a dead one holds nothing up.
What lies there is verified again when it is read. All of it may be deleted.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, NamedTuple

from capsweep.errors import DataError
from capsweep.storage.files import (
    hash_bytes,
    lock_file,
    open_plain_file,
    remove_path,
    user_cache_folder,
    write_atomically,
    write_text,
)
from capsweep.storage.stores import Bucket, StoreError, check_inside, hide_query, is_url, join

KEY = "places.data"
ORIGIN = ".origin"
UNKNOWN = "unknown"  # a declared hash that we do not know; such a file is never read

IsCurrent = Callable[[Path], bool]  # of a file that was fetched before


def resolve_folders(data: str, folders: Sequence[str]) -> list[str]:
    """Folders below the data folder, as paths or URLs; an absolute one, or a URL, is itself."""

    def resolve(name: str) -> str:
        if is_url(name) or not is_url(data) or os.path.isabs(name):
            return name if is_url(name) else str(Path(data) / name)
        name = check_inside(name, f"{KEY}={hide_query(data)}")
        return data if name == "." else join(data, name)

    return [resolve(name) for name in folders]


def local_folder(place: str) -> Path:
    """Where the files of a place are, or will be when they are fetched. Raises DataError."""
    if not is_url(place):
        return Path(place)
    last = hide_query(place).rstrip("/").rpartition("/")[2]
    name = "".join(letter if letter.isalnum() else "_" for letter in last)[:40]
    return _cache_root() / f"{name}-{hash_bytes(place.encode())[:16]}"


def _cache_root() -> Path:
    try:
        return user_cache_folder() / "fetched"
    except RuntimeError as error:
        raise DataError(
            f"{KEY} is in an object store, and there is no home to fetch it to; set HOME or "
            "XDG_CACHE_HOME"
        ) from error


def read_origin(folder: Path) -> str | None:
    """Return the URL of what a folder of the cache has; None for any other folder."""
    try:
        is_ours = folder.parent == _cache_root()
        return (folder / ORIGIN).read_text(encoding="utf-8") if is_ours else None
    except (OSError, UnicodeDecodeError, DataError):
        return None


def has_file(place: str, name: str, is_current: IsCurrent = lambda path: True) -> bool:
    """Whether a place has a file, which is then in its local folder, whole; its reader verifies it.
    is_current: whether what was fetched before will do.

    Raises StoreError for a store that does not answer; DataError where there is no room for it.
    """
    if not is_url(place):
        return Path(place, name).is_file()
    check_inside(name, f"{KEY}={hide_query(place)}")
    folder = local_folder(place)
    path = folder / name
    if path.is_file() and is_current(path):
        return True
    fill = partial(_open_bucket(place, os.getpid()).copy_to, name)
    try:
        with lock_file(path):
            if not (path.is_file() and is_current(path)):  # another process may have fetched it
                write_text(folder / ORIGIN, place)
                write_atomically(path, fill)
    except StoreError:
        raise
    except FileNotFoundError:
        forget_copy(path)
        return False
    except OSError as error:
        raise DataError(
            f"{_cache_root()}: {name} of {hide_query(place)} cannot be kept there "
            f"({error.strerror or error}); make room, or set XDG_CACHE_HOME to a folder of this "
            "node that can be written"
        ) from error
    return True


def forget_copy(path: Path) -> bool:
    """Remove a file that was fetched, or a folder of such; whether it was one."""
    if read_origin(path.parent) is None and read_origin(path) is None:
        return False
    remove_path(path)
    return True


def list_sizes(place: str) -> dict[str, int]:
    """Names and bytes of all files directly in a place of a store. Raises StoreError."""
    return dict(_open_bucket(place, os.getpid()).list_files("", is_deep=False))


@lru_cache(maxsize=16)
def _open_bucket(place: str, process: int) -> Bucket:
    """process: a client of a parent's is of no use behind a fork."""
    return Bucket(place, KEY)


def read_content(path: Path) -> bytes:
    """All bytes of a file that may be official. Raises DataError when it cannot be read."""
    with _name_unreadable(), open_plain_file(path) as file:
        return file.read()


def open_content(path: Path) -> IO[bytes]:
    """Open a file that may be declared, of any size. Raises DataError when it cannot be read."""
    with _name_unreadable():
        return open_plain_file(path)


@contextmanager
def _name_unreadable() -> Iterator[None]:
    """Raise DataError naming the file or folder that the block may not read."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise DataError(
            f"{error.filename}: cannot be read ({error.strerror}); correct its permissions, or set "
            "DATA_DIR to a folder that can be read"
        ) from error


@contextmanager
def name_undecodable(path: Path) -> Iterator[None]:
    """Raise DataError naming a verified file that the block cannot decode: what was declared by
    its user can be anything, and decoders then raise anything.
    """
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoders raise anything
        why = f"its sha256 is declared, but it is not such a file ({error!r})"
        raise DataError(f"{path}: {why}; put the publisher's file there") from error


class Digest(NamedTuple):
    """The sha256 of a file, the one that is declared for it, and the key at which that stands."""

    path: Path
    found: str
    declared: str
    key: str


@dataclass(frozen=True)
class OfficialFiles:
    """Where the files of one data set are looked for, and who offers them.

    folders: below the data folder, the first that has a file wins. publisher: the page or URL that
    messages name as the cure.
    """

    folders: Sequence[str]
    publisher: str

    def find(self, data: str, *names: str) -> Path | None:
        """The first of `names` in the first folder that has one; None where none has."""
        with _name_unreadable():
            if not is_url(data) and not Path(data).is_dir():
                raise DataError(
                    f"{KEY}: {data} does not exist; set DATA_DIR to the folder of the files from "
                    f"{self.publisher}"
                )
            for place, name in itertools.product(resolve_folders(data, self.folders), names):
                if has_file(place, name):
                    return local_folder(place) / name
            return None

    def find_all(self, data: str, names: Mapping[str, Sequence[str]]) -> dict[str, Path]:
        """A file for every key, `names` being what it may be called.

        Raises DataError for those that are nowhere, all at once, by the first of their names.
        """
        paths = {key: self.find(data, *allowed) for key, allowed in names.items()}
        absent = [allowed[0] for key, allowed in names.items() if paths[key] is None]
        if absent:
            raise self.missing_error(data, ", ".join(absent))
        return {key: path for key, path in paths.items() if path is not None}

    def missing_error(self, data: str, needed: str) -> DataError:
        """The error for files that are nowhere; `needed` says which."""
        place = f"{KEY}={hide_query(data)}" if is_url(data) else data
        looked = ", ".join(self.folders) or "no folder"
        return DataError(
            f"{place}: {needed} not found (looked in {looked} below {KEY}); download from "
            f"{self.publisher} and put it there, or set DATA_DIR"
        )

    def check_digests(self, *digests: Digest) -> None:
        """Raise DataError unless all are the declared ones; of unknown hashes all are named."""
        for path, found, declared, _ in digests:
            if declared not in (UNKNOWN, found):
                cure = f"delete it and download it again from {self.publisher}"
                if forget_copy(path):
                    cure = "it was a copy from the object store and is removed; the same command "
                    cure += "fetches it again"
                raise DataError(
                    f"{path}: truncated or altered (sha256 {found}, declared {declared}); {cure}"
                )
        unknown = [digest for digest in digests if digest.declared == UNKNOWN]
        if unknown:
            files = ", ".join(f"{digest.path} has sha256 {digest.found}" for digest in unknown)
            settings = " ".join(f"{digest.key}={digest.found}" for digest in unknown)
            raise DataError(
                f"{files}; the publisher's is not known to us, so nothing is read. If this is the "
                f"file of {self.publisher}, set {settings}"
            )
