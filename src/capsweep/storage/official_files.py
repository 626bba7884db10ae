"""Find the official files of data sets below the data folder, and verify their hashes.

If the data folder is in an object store, each file is fetched once per node into the user's cache.
The files of one folder of the store are put into one folder of the cache, `fetched/NAME-HASH`. NAME
is the end of the URL of the store's folder, and HASH is the hash of the URL. The file `.origin` in
the cache's folder contains the URL. A file gets its final name only when it is complete. While one
process fetches a file, other processes that need the file wait. If the fetching process dies, a
waiting process fetches the file. Fetched files are verified again when they are read, and may be
deleted at any time.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from capsweep.errors import DataError
from capsweep.storage.files import (
    hash_bytes,
    lock_file,
    read_plain_file,
    remove_path,
    user_cache_folder,
    write_atomically,
    write_text,
)
from capsweep.storage.stores import Bucket, StoreError, check_inside, hide_query, is_url, join

KEY = "places.data"
ORIGIN = ".origin"
UNKNOWN = "unknown"  # is declared if we do not know the hash; the file is then refused

IsCurrent = Callable[[Path], bool]  # returns whether a copy that was fetched earlier can be used


def resolve_folders(data: str, folders: Sequence[str]) -> list[str]:
    """Return the full paths or URLs of folders below the data folder.

    Args:
        data: The data folder, a path or the URL of an object store.
        folders: Names of folders below the data folder. A name that is an absolute path or a URL is
            returned unchanged.

    Raises:
        ConfigError: If the data folder is a URL, and a name is not valid or leads out of this
            folder.
    """

    def resolve(name: str) -> str:
        if is_url(name) or not is_url(data) or os.path.isabs(name):
            return name if is_url(name) else str(Path(data) / name)
        name = check_inside(name, f"{KEY}={hide_query(data)}")
        return data if name == "." else join(data, name)

    return [resolve(name) for name in folders]


def locate_folder(place: str) -> Path:
    """Return the local folder for a path or URL.

    For a path, this is the path itself. For a URL, it is a folder of the user's cache.

    Raises:
        DataError: If `place` is a URL, and the user has no home folder for the cache.
    """
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
            f"{KEY} is in an object store, and there is no home folder to fetch files to; set HOME "
            "or XDG_CACHE_HOME"
        ) from error


def read_origin(folder: Path) -> str | None:
    """Return the URL from which a folder of the cache was fetched; None for any other folder."""
    try:
        is_ours = folder.parent == _cache_root()
        return (folder / ORIGIN).read_text(encoding="utf-8") if is_ours else None
    except (OSError, UnicodeDecodeError, DataError):
        return None


def fetch_file(place: str, name: str, is_current: IsCurrent = lambda path: True) -> bool:
    """Return whether a folder has a file, and fetch the file if the folder is in an object store.

    The fetched file is put into the folder `locate_folder(place)`. If this folder has a usable copy
    of the file, nothing is fetched. The hash of the file is not verified here.

    Args:
        place: The folder, a path or a URL.
        name: Name of the file.
        is_current: Returns whether a copy that was fetched earlier can be used, given its path. By
            default, every copy can be used.

    Raises:
        ConfigError: If the URL or the name is not valid.
        StoreError: If the object store does not answer or refuses access.
        DataError: If the file cannot be stored in the cache.
    """
    if not is_url(place):
        return Path(place, name).is_file()
    check_inside(name, f"{KEY}={hide_query(place)}")
    folder = locate_folder(place)
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
        remove_copy(path)
        return False
    except OSError as error:
        raise DataError(
            f"{_cache_root()}: {name} from {hide_query(place)} cannot be stored there "
            f"({error.strerror or error}); free space, or set XDG_CACHE_HOME to a writable folder "
            "of this node"
        ) from error
    return True


def remove_copy(path: Path) -> bool:
    """Remove a file or folder that was fetched into the cache; return False for any other path."""
    if read_origin(path.parent) is None and read_origin(path) is None:
        return False
    remove_path(path)
    return True


def list_sizes(place: str) -> dict[str, int]:
    """List the files directly in a folder of an object store.

    Args:
        place: URL of the folder.

    Returns:
        The size of each file in bytes, by the name of the file.

    Raises:
        ConfigError: If the URL is not valid.
        StoreError: If the object store does not answer or refuses access.
    """
    return dict(_open_bucket(place, os.getpid()).list_files("", is_deep=False))


@lru_cache(maxsize=16)
def _open_bucket(place: str, process: int) -> Bucket:
    """Open an object store once per process, because no client can be used after a fork.

    Args:
        place: URL of a folder in the object store.
        process: The id of this process. After a fork, the new id opens a new client.
    """
    return Bucket(place, KEY)


@contextmanager
def _report_unreadable() -> Iterator[None]:
    """Convert each OSError of a `with` block or function, except StoreError, to a DataError.

    The message of the DataError names the path that cannot be read.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise DataError(
            f"{error.filename}: cannot be read ({error.strerror}); correct its permissions, or set "
            "DATA_DIR to a folder that can be read"
        ) from error


# Read a file before its hash is verified. DataError is raised if the file cannot be read.
read_content = _report_unreadable()(read_plain_file)


@contextmanager
def report_undecodable(path: Path) -> Iterator[None]:
    """Raise DataError if the decoding of a file in a `with` block fails.

    The hash of the file was verified before, but a user can declare the hash of a wrong file. For a
    wrong file, decoders raise many types of errors.

    Args:
        path: The file that the block decodes. The message names this path.

    Raises:
        DataError: If the block raises any error except MemoryError.
    """
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoders can raise any error
        why = f"it has the declared sha256, but cannot be decoded ({error!r})"
        raise DataError(f"{path}: {why}; put the publisher's file there") from error


class Digest(NamedTuple):
    """The computed and the declared hash of a file."""

    path: Path  # the file
    computed: str  # the sha256 of the file
    declared: str  # the sha256 that the file should have, or UNKNOWN
    key: str  # configuration key that declares the sha256


@dataclass(frozen=True)
class OfficialFiles:
    """The official files of one data set: where they are, and who publishes them."""

    folders: Sequence[str]  # folders below the data folder, in the order in which they are searched
    publisher: str  # where users can download the files (text for messages)

    def find(self, data: str, *names: str) -> Path | None:
        """Find a file that may have one of several names, and fetch the file if needed.

        The folders are searched in the order of `self.folders`. In each folder, the names are tried
        in the given order.

        Args:
            data: The data folder, a path or the URL of an object store.
            *names: Names that the file may have, in order of preference.

        Returns:
            The local path of the file, or None if no folder has the file.

        Raises:
            ConfigError: If a URL or the name of a folder is not valid.
            DataError: If no folder has the file and the data folder does not exist, if a file
                cannot be read, or if a fetched file cannot be stored.
            StoreError: If the object store does not answer or refuses access.
        """
        with _report_unreadable():
            for place, name in itertools.product(resolve_folders(data, self.folders), names):
                if fetch_file(place, name):
                    return locate_folder(place) / name
            if not is_url(data) and not Path(data).is_dir():
                raise DataError(
                    f"{KEY}: {data} does not exist; set DATA_DIR to the folder that has {names[0]} "
                    f"from {self.publisher}"
                )
            return None

    def find_all(self, data: str, names: Mapping[str, Sequence[str]]) -> dict[str, Path]:
        """Find several files, and raise DataError if any of them is absent.

        Args:
            data: The data folder, a path or the URL of an object store.
            names: For each file, the names that the file may have. The caller chooses the key of
                each file.

        Returns:
            The local path of each file, by the key of the file.

        Raises:
            ConfigError: If a URL or the name of a folder is not valid.
            DataError: If files are absent, cannot be read or cannot be stored. For absent files,
                the message has the first name of each.
            StoreError: If the object store does not answer or refuses access.
        """
        paths = {key: self.find(data, *allowed) for key, allowed in names.items()}
        absent = [allowed[0] for key, allowed in names.items() if paths[key] is None]
        if absent:
            raise self.build_missing_error(data, ", ".join(absent))
        return {key: path for key, path in paths.items() if path is not None}

    def build_missing_error(self, data: str, needed: str) -> DataError:
        """Build the error for files that are in none of the folders.

        Args:
            data: The data folder, a path or the URL of an object store.
            needed: Names of the absent files, for the message.
        """
        place = f"{KEY}={hide_query(data)}" if is_url(data) else data
        looked = ", ".join(self.folders) or "no folder"
        return DataError(
            f"{place}: {needed} not found (looked in {looked} below {KEY}); download from "
            f"{self.publisher} and put it there, or set DATA_DIR"
        )

    def check_digests(self, *digests: Digest) -> None:
        """Check that the computed hash of each file equals its declared hash.

        If a file with a wrong hash was fetched from an object store, the local copy is removed.

        Args:
            *digests: The computed and the declared hash of each file.

        Raises:
            DataError: If the two hashes of a file differ, or if a declared hash is UNKNOWN. For
                unknown hashes, the message says how to declare them.
        """
        for path, computed, declared, _ in digests:
            if declared not in (UNKNOWN, computed):
                cure = f"delete it and download it again from {self.publisher}"
                if remove_copy(path):
                    cure = "it was a copy from the object store and is removed; the same command "
                    cure += "fetches it again"
                raise DataError(
                    f"{path}: truncated or altered (sha256 {computed}, declared {declared}); {cure}"
                )
        unknown = [digest for digest in digests if digest.declared == UNKNOWN]
        if unknown:
            files = ", ".join(f"{digest.path} has sha256 {digest.computed}" for digest in unknown)
            settings = " ".join(f"{digest.key}={digest.computed}" for digest in unknown)
            raise DataError(
                f"{files}; we do not know the publisher's hash, so nothing is read. If this is the "
                f"file from {self.publisher}, set {settings}"
            )
