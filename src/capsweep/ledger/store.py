"""Files of the ledger by their names, on a disk or in an object store."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from capsweep.config.places import is_url
from capsweep.errors import ConfigError, UserError
from capsweep.files import write_atomically

FOLDERLESS = ("s3", "gcs", "abfs")  # an object's name may have slashes; there is nothing to make


class Store(Protocol):
    """Named bytes. Names are relative, with slashes; a write is seen whole or not at all."""

    root: str

    def read(self, name: str) -> bytes | None:
        """The content, None when there is no such file."""
        ...

    def write(self, name: str, content: bytes) -> None: ...

    def put(self, name: str, file: Path) -> None:
        """Copy a local file into the store."""
        ...

    def fetch(self, name: str, file: Path) -> bool:
        """Copy a file of the store to a local one; False when there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """What stands directly in a folder, sorted; nothing when it is absent."""
        ...

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Every file below a folder and its bytes, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file or a folder; an absent one is no error."""
        ...


class Disk:
    """A folder of a POSIX file system, local or shared."""

    def __init__(self, root: Path) -> None:
        self.path, self.root = root, str(root)

    def read(self, name: str) -> bytes | None:
        """See Store."""
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """See Store."""
        write_atomically(self.path / name, lambda file: file.write(content))

    def put(self, name: str, file: Path) -> None:
        """See Store."""
        with file.open("rb") as source:
            write_atomically(self.path / name, lambda target: shutil.copyfileobj(source, target))

    def fetch(self, name: str, file: Path) -> bool:
        """See Store."""
        try:
            with (self.path / name).open("rb") as source:
                write_atomically(file, lambda target: shutil.copyfileobj(source, target))
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """See Store."""
        try:
            return sorted(os.listdir(self.path / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """See Store."""
        for path in sorted((self.path / folder).rglob("*")):
            if path.is_file():
                yield str(path.relative_to(self.path)), path.stat().st_size

    def remove(self, name: str) -> None:
        """See Store."""
        path = self.path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class Bucket:
    """A folder of any pyarrow file system, named by its URL. It has no rename and no lock."""

    def __init__(self, url: str) -> None:
        try:
            from pyarrow import ArrowException, fs
        except ImportError as error:
            raise ConfigError(f"places.ledger={url}: {error}; install pyarrow") from error
        try:
            filesystem, folder = fs.FileSystem.from_uri(url)
        except (ArrowException, ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"places.ledger={url}: {reason}") from error
        self.root, self.folder, self.filesystem, self._fs = url, folder, filesystem, fs

    def read(self, name: str) -> bytes | None:
        """See Store."""
        try:
            with self.filesystem.open_input_stream(self._path(name)) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """See Store. An object appears when its stream is closed."""
        path = self._path(name)
        if self.filesystem.type_name not in FOLDERLESS:
            self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with self.filesystem.open_output_stream(path) as file:
            file.write(content)

    def put(self, name: str, file: Path) -> None:
        """See Store."""
        self.write(name, file.read_bytes())

    def fetch(self, name: str, file: Path) -> bool:
        """See Store."""
        content = self.read(name)
        if content is not None:
            write_atomically(file, lambda target: target.write(content))
        return content is not None

    def names(self, folder: str) -> list[str]:
        """See Store."""
        return sorted(info.base_name for info in self._infos(folder, recursive=False))

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """See Store."""
        for info in sorted(self._infos(folder, recursive=True), key=lambda info: info.path):
            if info.is_file:
                name = info.path.removeprefix(self.folder).lstrip("/")
                yield name, info.size

    def remove(self, name: str) -> None:
        """See Store."""
        path = self._path(name)
        kind = self.filesystem.get_file_info(path).type
        if kind == self._fs.FileType.Directory:
            self.filesystem.delete_dir(path)
        elif kind == self._fs.FileType.File:
            self.filesystem.delete_file(path)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}" if name else self.folder

    def _infos(self, folder: str, recursive: bool) -> list:
        selector = self._fs.FileSelector(
            self._path(folder), recursive=recursive, allow_not_found=True
        )
        return self.filesystem.get_file_info(selector)


def open_store(root: str | Path) -> Store:
    """The store at a path or URL. Raises ConfigError naming `places.ledger`."""
    return Bucket(str(root)) if is_url(str(root)) else Disk(Path(root))


def prove_writable(store: Store) -> None:
    """Write and remove a probe. Raises UserError naming `places.ledger`."""
    try:
        store.write(".probe", b"")
        store.remove(".probe")
    except OSError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"places.ledger: {store.root} cannot be written ({reason}); set LEDGER=..."
        ) from error
