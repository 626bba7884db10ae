"""Object stores by their URLs, s3://bucket/folder: any file system that pyarrow has.

An object is seen whole or not at all. There is no rename and no lock. What pyarrow needs beside the
place stands in the URL's query (`?region=eu-west-1`, `?endpoint_override=...&scheme=http`);
credentials never do: they are in the environment, or the machine has a role.
"""

import re
import secrets
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from capsweep.errors import ConfigError, UserError
from capsweep.storage.files import write_atomically

if TYPE_CHECKING:
    from pyarrow import fs

FOLDERLESS = ("s3", "gcs", "abfs")  # an object's name may have slashes; there is nothing to make
STORES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")  # what comes first in a URL of theirs
PIECE = 2**24  # bytes; every piece that is read is a request
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
HALF = re.compile(r"\..*\.tmp")  # what is being written where a file is seen before it is whole
CREDENTIALS = (
    "is it reachable from here, and are credentials in the environment (AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or a role of the machine)?"
)


class StoreError(UserError, OSError):
    """An object store that does not answer, or not to us. A message alone, no errno."""


class AbsentError(StoreError):
    """There is no such object."""


def is_url(place: str) -> bool:
    """Whether a place is an object store's (s3://bucket/folder) and not a folder's path."""
    return URL.match(place) is not None


def join(place: str, name: str) -> str:
    """The path or URL of `name` below a place; the query of a URL stays last."""
    if not is_url(place):
        return f"{place.rstrip('/')}/{name}"
    path, mark, query = place.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def shown(place: str) -> str:
    """The place for messages: a URL without its query."""
    return place.partition("?")[0] if is_url(place) else place


def check_inside(name: str, where: str) -> str:
    """A name below a folder, in one form. Raises ConfigError beginning with `where` for one that
    leads out of it, or that a store could read as something else than a name.
    """
    path = PurePosixPath(name)
    odd = any(character in name for character in "\\?#%\0") or not name.isprintable()
    if odd or is_url(name) or path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"{where}: {name!r} leads out of its folder, or is no name; correct it")
    return path.as_posix()


class Bucket:
    """A folder of an object store. Names are relative, with slashes.

    key: of the configuration, where the URL stands; every error begins with it.
    """

    def __init__(self, url: str, key: str) -> None:
        self.root, self.key = url, key
        try:
            split = urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"{key}={url}: {error}; correct it") from error
        if split.username or split.password:
            hidden = f"{split.scheme}://{split.hostname}{split.path}"
            raise ConfigError(
                f"{key}={hidden}: a URL with credentials would be printed and recorded; leave them "
                "out and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
            )
        if not split.netloc and split.scheme in STORES:
            raise ConfigError(f"{key}={url}: it names no bucket; write {split.scheme}://BUCKET/...")
        check_inside(f"{split.netloc}{split.path}".lstrip("/"), f"{key}={url}")
        self.filesystem, self.folder = self._opened(url)

    def _opened(self, url: str) -> "tuple[fs.FileSystem, str]":
        try:
            from pyarrow import ArrowException, fs
        except ImportError as error:
            raise ConfigError(f"{self.key}={shown(url)}: {error}; install pyarrow") from error
        try:
            filesystem, folder = fs.FileSystem.from_uri(_delayed(url))
        except (ArrowException, ValueError) as error:
            raise ConfigError(f"{self.key}={shown(url)}: {_line(error)}") from error
        except OSError as error:  # S3 is asked for the region of the bucket
            raise self._unanswered(error) from error
        return filesystem, folder

    @cached_property
    def _is_folderless(self) -> bool:
        return self.filesystem.type_name in FOLDERLESS

    def read(self, name: str) -> bytes | None:
        """The content, None when there is no such object."""
        try:
            with self._stream(self._path(name)) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unanswered(error) from error

    def write(self, name: str, content: bytes) -> None:
        """An object appears when its stream is closed."""
        self._write(name, lambda file: file.write(content))

    def put(self, name: str, file: Path) -> None:
        """Copy a local file into the store, a piece at a time."""
        with file.open("rb") as source:
            self._write(name, lambda target: shutil.copyfileobj(source, target, PIECE))

    def fetch(self, name: str, file: Path) -> bool:
        """Copy an object to a local file, atomically; False when there is none."""
        try:
            write_atomically(file, lambda target: self.copy(name, target))
        except AbsentError:
            return False
        return True

    def copy(self, name: str, target: IO[bytes]) -> None:
        """Write an object into an open file, a piece at a time.

        Raises AbsentError; StoreError, also when it ends early; OSError of the file as it is.
        """
        try:
            source = self.filesystem.open_input_file(self._path(name))
        except FileNotFoundError as error:
            raise AbsentError(f"{self.key}={shown(self.root)}: {name}: no such object") from error
        except OSError as error:
            raise self._unanswered(error, name) from error
        with source:
            size, total = source.size(), 0
            while piece := self._piece(source, name):
                target.write(piece)
                total += len(piece)
        if total != size:
            raise StoreError(
                f"{self.key}={shown(self.root)}: {name} ended after {total:,} of {size:,} bytes; "
                "try again"
            )

    def _piece(self, source: Any, name: str) -> bytes:
        try:
            return source.read(PIECE)
        except OSError as error:
            raise self._unanswered(error, name) from error

    def names(self, folder: str) -> list[str]:
        """What stands directly in a folder, sorted; nothing when it is absent."""
        found = (info.base_name for info in self._infos(folder, recursive=False))
        return sorted(name for name in found if HALF.fullmatch(name) is None)

    def sizes(self, folder: str) -> dict[str, int]:
        """Names of the objects directly in a folder, and their bytes."""
        found = self._infos(folder, recursive=False)
        return {info.base_name: info.size for info in found if info.is_file}

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Every object below a folder and its bytes, sorted."""
        for info in sorted(self._infos(folder, recursive=True), key=lambda info: info.path):
            if info.is_file and HALF.fullmatch(info.base_name) is None:
                yield info.path.removeprefix(self.folder).lstrip("/"), info.size

    def remove(self, name: str) -> None:
        """Remove an object or a folder; an absent one is no error."""
        path = self._path(name)
        try:
            found = self.filesystem.get_file_info(path)
            if found.is_file:
                self.filesystem.delete_file(path)
            elif found.size is None and found.type.name == "Directory":
                self.filesystem.delete_dir(path)
        except FileNotFoundError:  # another process removed it meanwhile
            return
        except OSError as error:
            raise self._unanswered(error, name) from error

    def _write(self, name: str, write: Any) -> None:
        path = self._path(name)
        try:
            if self._is_folderless:
                with self._sink(path) as file:
                    write(file)
                return
            folder, _, last = path.rpartition("/")
            half = f"{folder}/.{last}.{secrets.token_hex(4)}.tmp"
            self.filesystem.create_dir(folder, recursive=True)
            with self._sink(half) as file:
                write(file)
            self.filesystem.move(half, path)
        except OSError as error:
            raise self._unanswered(error, name) from error

    def _stream(self, path: str) -> Any:
        # By default, pyarrow decompresses what is called .gz.
        return self.filesystem.open_input_stream(path, compression=None)

    def _sink(self, path: str) -> Any:
        return self.filesystem.open_output_stream(path, compression=None)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}" if name else self.folder

    def _infos(self, folder: str, recursive: bool) -> "list[fs.FileInfo]":
        from pyarrow.fs import FileSelector

        place = FileSelector(self._path(folder), recursive=recursive, allow_not_found=True)
        try:
            return self.filesystem.get_file_info(place)
        except OSError as error:
            raise self._unanswered(error) from error

    def _unanswered(self, error: OSError, name: str = "") -> StoreError:
        of = f"{name}: " if name else ""
        return StoreError(f"{self.key}={shown(self.root)}: {of}{_line(error)}; {CREDENTIALS}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _delayed(url: str) -> str:
    """S3 writes what fits into one request by one, where it would else take three."""
    if not url.startswith("s3://") or "allow_delayed_open" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}allow_delayed_open=true"
