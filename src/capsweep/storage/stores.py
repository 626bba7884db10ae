"""Read and write the files of folders and of object stores with the same methods.

The name of a file is relative to the folder. The parts of the name are separated by slashes. Files
are written atomically. An object store is given by its URL, such as s3://bucket/folder, and is
accessed with pyarrow. Object stores can neither rename files nor lock them. The query of the URL
contains options of pyarrow, such as `?region=eu-west-1` or `?endpoint_override=...&scheme=http`.
Credentials are never in the URL. They come from the environment or from a role of the machine.
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

STORES = ("s3", "gs", "gcs", "abfs", "abfss")  # schemes of the URLs of object stores
PIECE = 2**24  # bytes that one request reads
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LEDGER = "places.ledger"  # the configuration key of the path or URL that `open_store` opens
LONGEST_NAME = 255  # maximum bytes of the name of a file or folder
CREDENTIALS = (
    "is it reachable from here, and are credentials in the environment (AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or a role of the machine)?"
)


class StoreError(UserError, OSError):
    """An error of a store, which does not answer or refuses access; `errno` is not set."""


def is_url(place: str) -> bool:
    """Return whether a text is a URL, such as s3://bucket/folder; any other text is a path."""
    return URL.match(place) is not None


def join(place: str, name: str) -> str:
    """Append a name to a path or URL; the query of a URL stays at the end."""
    if not is_url(place):
        return f"{place.rstrip('/')}/{name}"
    path, mark, query = place.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def hide_query(place: str) -> str:
    """Return a path or URL for use in messages; the query of a URL is left out."""
    return place.partition("?")[0] if is_url(place) else place


def check_inside(name: str, where: str) -> str:
    """Check that a name does not lead out of its folder, and return the normalised name.

    Args:
        name: The name of a file or folder, relative to the folder.
        where: A configuration key and its value, `KEY=VALUE`. Error messages begin with this text.

    Raises:
        ConfigError: If the name leads out of the folder, or has a character that is special in URLs
            or not printable.
    """
    path = PurePosixPath(name)
    is_odd = any(character in name for character in "\\?#%\0") or not name.isprintable()
    if is_odd or is_url(name) or path.is_absolute() or ".." in path.parts:
        raise ConfigError(
            f"{where}: {name!r} leads out of its folder or is no valid name; correct it"
        )
    return path.as_posix()


class Disk:
    """A folder of a POSIX file system, local or shared.

    Args:
        root: The path of the folder.
    """

    def __init__(self, root: Path) -> None:
        self.path, self.root = root, str(root)

    def read(self, name: str) -> bytes | None:
        """Read a file.

        Args:
            name: The name of the file, relative to the folder.

        Returns:
            The content of the file; None if there is no such file.

        Raises:
            DamageError: If a folder, a pipe or another special file has this name.
            StoreError: If the file cannot be read.
        """
        path = self.path / name
        try:
            return read_plain_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError as error:
            raise DamageError(f"{path} is damaged (it is not a regular file); remove it") from error
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror or error})") from error

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically, and create the folders above it.

        Raises:
            OSError: If the file cannot be written.
        """
        write_atomically(self.path / name, lambda file: file.write(content))

    def list_names(self, folder: str) -> list[str]:
        """List the names of the files and folders directly in a folder, sorted.

        If the folder is absent, the list is empty.
        """
        try:
            return sorted(os.listdir(self.path / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def list_files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield the name and the size in bytes of each file in a folder and its subfolders.

        The files are sorted by name. A name is relative to the root of the store, not to `folder`.
        """
        for path in sorted((self.path / folder).rglob("*")):
            if path.is_file():
                yield str(path.relative_to(self.path)), path.stat().st_size

    def remove(self, name: str) -> None:
        """Remove a file or folder; do nothing if it is absent."""
        remove_path(self.path / name)


class Bucket:
    """A folder of an object store, with the methods of `Disk`.

    Args:
        url: URL of the folder, with options in its query.
        key: The configuration key of the URL. Error messages begin with this key.

    Raises:
        ConfigError: If the URL cannot be used or pyarrow is not installed.
        StoreError: If the store does not answer or refuses access.
    """

    def __init__(self, url: str, key: str) -> None:
        self.root, self.where = url, f"{key}={hide_query(url)}"
        try:
            from pyarrow import ArrowException, fs
        except ImportError as error:
            raise ConfigError(f"{self.where}: {error}; install pyarrow") from error
        if url.startswith("s3://"):  # a small object is then written by one request, not three
            url += f"{'&' if '?' in url else '?'}allow_delayed_open=true"
        try:
            _check_url(self.root, key)
            with self._report_errors():  # pyarrow asks S3 for the region of the bucket
                filesystem, folder = fs.FileSystem.from_uri(url)
            self.filesystem = fs.SubTreeFileSystem(folder, filesystem)
        except UserError:
            raise
        except (ArrowException, ValueError) as error:
            raise ConfigError(f"{self.where}: {_join_lines(error)}") from error

    def read(self, name: str) -> bytes | None:
        """Read an object; return None if there is no such object.

        Raises:
            StoreError: If the store does not answer or refuses access.
        """
        content = BytesIO()
        try:
            self.copy_to(name, content)
        except FileNotFoundError:
            return None
        return content.getvalue()

    def copy_to(self, name: str, target: IO[bytes]) -> None:
        """Copy an object into an open file, piece by piece.

        Args:
            name: The name of the object, relative to the folder.
            target: The file, open for writing.

        Raises:
            FileNotFoundError: If there is no such object.
            StoreError: If the store does not answer, refuses access, or sends only a part of the
                object.
            OSError: If the file cannot be written.
        """
        with self._report_errors(name, FileNotFoundError):
            source = self.filesystem.open_input_file(name)
        with source:
            size, total = source.size(), 0
            while total < size:
                with self._report_errors(name):
                    piece = source.read(PIECE)
                if not piece:
                    ended = f"{name} ended after {total:,} of {size:,} bytes; try again"
                    raise StoreError(f"{self.where}: {ended}")
                target.write(piece)
                total += len(piece)

    def write(self, name: str, content: bytes) -> None:
        """Write an object atomically.

        Raises:
            StoreError: If the store does not answer or refuses access.
        """
        self._write_from(name, BytesIO(content))

    def copy_from(self, name: str, file: Path) -> None:
        """Copy a local file into the store, piece by piece.

        Args:
            name: The name of the object to write, relative to the folder.
            file: The local file.

        Raises:
            StoreError: If the store does not answer or refuses access.
            OSError: If the local file cannot be read.
        """
        with file.open("rb") as source:
            self._write_from(name, source)

    def _write_from(self, name: str, source: IO[bytes]) -> None:
        """Write an object from an open file; readers see the object only when it is complete."""
        # Compression is off, because pyarrow would compress objects whose names end in .gz.
        with (
            self._report_errors(name),
            self.filesystem.open_output_stream(name, compression=None) as target,
        ):
            shutil.copyfileobj(source, target, PIECE)

    def list_names(self, folder: str) -> list[str]:
        """List the names of the objects and folders directly in a folder, sorted.

        If the folder is absent, the list is empty.
        """
        return sorted(info.base_name for info in self._list_infos(folder))

    def list_files(self, folder: str, is_deep: bool = True) -> Iterator[tuple[str, int]]:
        """Yield the name and the size in bytes of each object in a folder.

        The objects are sorted by name. A name is relative to the root of the store, not to
        `folder`.

        Args:
            folder: The name of the folder; "" for the root.
            is_deep: Whether the objects in subfolders are yielded too.
        """
        infos = self._list_infos(folder, is_deep)
        for info in sorted(infos, key=lambda info: info.path):
            if info.is_file:
                yield info.path, info.size

    def remove(self, name: str) -> None:
        """Remove an object or folder; do nothing if it is absent."""
        with self._report_errors(name):
            try:
                info = self.filesystem.get_file_info(name)
                if info.is_file:
                    self.filesystem.delete_file(name)
                elif info.type.name == "Directory":
                    self.filesystem.delete_dir(name)
            except FileNotFoundError:  # another process has just removed it
                return

    def _list_infos(self, folder: str, is_deep: bool = False) -> "list[fs.FileInfo]":
        from pyarrow.fs import FileSelector

        place = FileSelector(folder, recursive=is_deep, allow_not_found=True)
        with self._report_errors():
            return self.filesystem.get_file_info(place)

    @contextmanager
    def _report_errors(self, name: str = "", *passes: type[OSError]) -> Iterator[None]:
        """Convert each OSError of a `with` block to a StoreError.

        Args:
            name: The name of the object, for the message; "" if there is none.
            *passes: Types of errors that are not converted.
        """
        try:
            yield
        except passes:
            raise
        except OSError as error:
            what = f"{name}: {_join_lines(error)}" if name else _join_lines(error)
            raise StoreError(f"{self.where}: {what}; {CREDENTIALS}") from error


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
    """Check that a path is a folder or is free for a new folder; a URL is not checked.

    Args:
        place: The path or URL.
        key: The configuration key or option of this path. Error messages begin with this key.

    Raises:
        ConfigError: If the path or one of its parents exists but is not a folder. Also if a part of
            the path is not a valid name.
    """
    if is_url(place):
        return
    if "\0" in place or any(len(os.fsencode(part)) > LONGEST_NAME for part in place.split("/")):
        raise ConfigError(f"{key}={place[:40]!r} is no valid name of a folder; choose another name")
    path = Path(place)
    nearest = next((above for above in (path, *path.parents) if os.path.lexists(above)), None)
    if nearest is not None and not nearest.is_dir():
        cure = "choose another folder, or move it away"
        raise ConfigError(f"{key}={place}: {nearest} is not a folder; {cure}")


def open_store(root: str | Path) -> Store:
    """Open the folder or object store at the path or URL of a ledger.

    Raises:
        ConfigError: If the path or URL cannot be used.
        StoreError: If the object store does not answer or refuses access.
    """
    check_folder(str(root), LEDGER)
    return Bucket(str(root), LEDGER) if is_url(str(root)) else Disk(Path(root))


def prove_writable(store: Store, probe: str = ".probe", word: str = "LEDGER") -> None:
    """Write and remove a small file, to check that a store can be written.

    Args:
        store: The store.
        probe: Name of the file.
        word: The option that sets the folder, such as LEDGER for `LEDGER=...`. If a folder
            cannot be written, the error message names this option.

    Raises:
        UserError: If the store cannot be written.
    """
    try:
        store.write(probe, b"")
        store.remove(probe)
    except StoreError:
        raise  # its message already names the key
    except OSError as error:
        why = f"cannot be written ({_join_lines(error)}); set {word}=... to a writable folder"
        raise UserError(f"places.{word.lower()}: {store.root} {why}") from error
