"""Named bytes in a folder or in an object store; names are relative, with slashes.

A write is seen whole or not at all. An object store is named by its URL, s3://bucket/folder, and is
one of pyarrow's; it has no rename and no lock. What pyarrow needs beside the place
stands in the URL's query (`?region=eu-west-1`, `?endpoint_override=...&scheme=http`); credentials
never do: they are in the environment, or the machine has a role.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from capsweep.errors import ConfigError, DamageError, UserError
from capsweep.storage.files import read_plain_file, remove_path, write_atomically

if TYPE_CHECKING:
    from pyarrow import fs

STORES = ("s3", "gs", "gcs", "abfs", "abfss")  # what comes first in a URL of theirs
PIECE = 2**24  # bytes; every piece that is read is a request
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LONGEST_NAME = 255  # bytes
CREDENTIALS = (
    "is it reachable from here, and are credentials in the environment (AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or a role of the machine)?"
)


class StoreError(UserError, OSError):
    """A store that does not answer, or not to us. A message alone, no errno."""


def is_url(place: str) -> bool:
    """Whether a place is an object store's (s3://bucket/folder) and not a folder's path."""
    return URL.match(place) is not None


def join(place: str, name: str) -> str:
    """The path or URL of `name` below a place; the query of a URL stays last."""
    if not is_url(place):
        return f"{place.rstrip('/')}/{name}"
    path, mark, query = place.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def hide_query(place: str) -> str:
    """The place for messages: a URL without its query."""
    return place.partition("?")[0] if is_url(place) else place


def check_inside(name: str, where: str) -> str:
    """A name below a folder, in one form. Raises ConfigError beginning with `where` for one that
    leads out of it, or that a store could read as something else than a name.
    """
    path = PurePosixPath(name)
    is_odd = any(character in name for character in "\\?#%\0") or not name.isprintable()
    if is_odd or is_url(name) or path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"{where}: {name!r} leads out of its folder, or is no name; correct it")
    return path.as_posix()


class Disk:
    """A folder of a POSIX file system, local or shared."""

    def __init__(self, root: Path) -> None:
        self.path, self.root = root, str(root)

    def read(self, name: str) -> bytes | None:
        """The content; None when there is no such file."""
        path = self.path / name
        try:
            return read_plain_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError as error:
            raise DamageError(f"{path} is damaged (it is no plain file); remove it") from error
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror or error})") from error

    def write(self, name: str, content: bytes) -> None:
        """Write a file, and the folders above it."""
        write_atomically(self.path / name, lambda file: file.write(content))

    def list_names(self, folder: str) -> list[str]:
        """What stands directly in a folder, sorted; nothing when it is absent."""
        try:
            return sorted(os.listdir(self.path / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def list_files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Every file below a folder and its bytes, sorted."""
        for path in sorted((self.path / folder).rglob("*")):
            if path.is_file():
                yield str(path.relative_to(self.path)), path.stat().st_size

    def remove(self, name: str) -> None:
        """Remove a file or a folder; an absent one is no error."""
        remove_path(self.path / name)


class Bucket:
    """A folder of an object store, with the methods of `Disk`.

    key: of the configuration, where the URL stands; every error begins with it.
    """

    def __init__(self, url: str, key: str) -> None:
        self.root, self.key = url, key
        try:
            from pyarrow import ArrowException, fs
        except ImportError as error:
            raise ConfigError(f"{key}={hide_query(url)}: {error}; install pyarrow") from error
        if url.startswith("s3://"):  # what fits into one request is written by one, not three
            url += f"{'&' if '?' in url else '?'}allow_delayed_open=true"
        try:
            _check_url(self.root, key)
            with self._name_errors():  # S3 is asked for the region of the bucket
                self.filesystem, self.folder = fs.FileSystem.from_uri(url)
        except UserError:
            raise
        except (ArrowException, ValueError) as error:
            raise ConfigError(f"{key}={hide_query(self.root)}: {_join_lines(error)}") from error

    def read(self, name: str) -> bytes | None:
        """See Disk."""
        content = BytesIO()
        try:
            self.copy_to(name, content)
        except FileNotFoundError:
            return None
        return content.getvalue()

    def copy_to(self, name: str, target: IO[bytes]) -> None:
        """Write an object into an open file, a piece at a time.

        Raises FileNotFoundError; StoreError, also when it ends early; OSError of the file as it is.
        """
        with self._name_errors(name, FileNotFoundError):
            source = self.filesystem.open_input_file(self._path_of(name))
        with source:
            size, total = source.size(), 0
            while total < size:
                with self._name_errors(name):
                    piece = source.read(PIECE)
                if not piece:
                    ended = f"{name} ended after {total:,} of {size:,} bytes; try again"
                    raise StoreError(f"{self.key}={hide_query(self.root)}: {ended}")
                target.write(piece)
                total += len(piece)

    def write(self, name: str, content: bytes) -> None:
        """See Disk."""
        self._write_from(name, BytesIO(content))

    def copy_from(self, name: str, file: Path) -> None:
        """Copy a local file into the store, a piece at a time."""
        with file.open("rb") as source:
            self._write_from(name, source)

    def _write_from(self, name: str, source: IO[bytes]) -> None:
        """An object appears, whole, when its stream is closed."""
        path = self._path_of(name)
        # By default, pyarrow compresses what is called .gz.
        with (
            self._name_errors(name),
            self.filesystem.open_output_stream(path, compression=None) as target,
        ):
            shutil.copyfileobj(source, target, PIECE)

    def list_names(self, folder: str) -> list[str]:
        """See Disk."""
        return sorted(info.base_name for info in self._list_infos(folder))

    def list_files(self, folder: str, is_deep: bool = True) -> Iterator[tuple[str, int]]:
        """See Disk. is_deep: with the files of folders below it."""
        infos = self._list_infos(folder, is_deep)
        for info in sorted(infos, key=lambda info: info.path):
            if info.is_file:
                yield info.path.removeprefix(self.folder).lstrip("/"), info.size

    def remove(self, name: str) -> None:
        """See Disk."""
        path = self._path_of(name)
        with self._name_errors(name):
            try:
                info = self.filesystem.get_file_info(path)
                if info.is_file:
                    self.filesystem.delete_file(path)
                elif info.size is None and info.type.name == "Directory":
                    self.filesystem.delete_dir(path)
            except FileNotFoundError:  # another process removed it meanwhile
                return

    def _path_of(self, name: str) -> str:
        return f"{self.folder}/{name}" if name else self.folder

    def _list_infos(self, folder: str, is_deep: bool = False) -> "list[fs.FileInfo]":
        from pyarrow.fs import FileSelector

        place = FileSelector(self._path_of(folder), recursive=is_deep, allow_not_found=True)
        with self._name_errors():
            return self.filesystem.get_file_info(place)

    @contextmanager
    def _name_errors(self, name: str = "", *passes: type[OSError]) -> Iterator[None]:
        """Errors of the store become StoreErrors that name the key, but for those that pass."""
        try:
            yield
        except passes:
            raise
        except OSError as error:
            what = f"{name}: {_join_lines(error)}" if name else _join_lines(error)
            where = f"{self.key}={hide_query(self.root)}"
            raise StoreError(f"{where}: {what}; {CREDENTIALS}") from error


Store = Disk | Bucket


def _check_url(url: str, key: str) -> None:
    split = urlsplit(url)
    if split.username or split.password:
        raise ConfigError(
            f"{key}={split.scheme}://{split.hostname}{split.path}: a URL with credentials would be "
            "printed and recorded; leave them out and set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment"
        )
    if split.scheme not in STORES or not split.netloc:
        schemes = ", ".join(STORES)
        raise ConfigError(f"{key}={url}: write one of {schemes}, then ://BUCKET/..., or a path")
    check_inside(f"{split.netloc}{split.path}".lstrip("/"), f"{key}={url}")


def _join_lines(error: BaseException) -> str:
    return " ".join(str(error).split())


def check_folder(place: str, key: str) -> None:
    """Raise ConfigError where something else than a folder is, above it too, or no name of one."""
    if is_url(place):
        return
    if "\0" in place or any(len(os.fsencode(part)) > LONGEST_NAME for part in place.split("/")):
        raise ConfigError(f"{key}={place[:40]!r}: no folder has such a name; name another one")
    path = Path(place)
    nearest = next((above for above in (path, *path.parents) if os.path.lexists(above)), None)
    if nearest is not None and not nearest.is_dir():
        cure = "name another one, or move it away"
        raise ConfigError(f"{key}={place}: {nearest} is no folder; {cure}")


def open_store(root: str | Path, key: str = "places.ledger") -> Store:
    """The store at a path or URL, which stands at `key`. Raises UserError naming the key."""
    check_folder(str(root), key)
    return Bucket(str(root), key) if is_url(str(root)) else Disk(Path(root))


def prove_writable(store: Store, probe: str = ".probe", word: str = "LEDGER") -> None:
    """Write and remove a probe. Raises UserError naming the key of the word that says where the
    store is, or of a URL its own.
    """
    try:
        store.write(probe, b"")
        store.remove(probe)
    except StoreError:
        raise  # it names the key itself
    except OSError as error:
        why = f"cannot be written ({_join_lines(error)}); set {word}=... to a writable folder"
        raise UserError(f"places.{word.lower()}: {store.root} {why}") from error
