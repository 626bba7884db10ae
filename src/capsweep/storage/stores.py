"""Files of the ledger by their names, on a disk or in an object store."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from capsweep.errors import ConfigError, DamageError, UserError
from capsweep.storage.files import open_plain_file, read_plain_file, remove_path, write_atomically
from capsweep.storage.object_store import Bucket, StoreError, is_url

LONGEST_NAME = 255  # bytes


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
            return read_plain_file(self.path / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError as error:
            raise DamageError(
                f"{self.path / name} is damaged (it is no plain file); remove it"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"{self.path / name} cannot be read ({reason})") from error

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
            with open_plain_file(self.path / name) as source:
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
        remove_path(self.path / name)


def check_folder(place: str, key: str) -> None:
    """Raise ConfigError where something else than a folder is, above it too, or no name of one."""
    if is_url(place):
        return
    if "\0" in place or any(len(os.fsencode(part)) > LONGEST_NAME for part in place.split("/")):
        raise ConfigError(f"{key}={place[:40]!r}: no folder has such a name; name another one")
    path = Path(place)
    there = next((above for above in (path, *path.parents) if os.path.lexists(above)), None)
    if there is not None and not there.is_dir():
        raise ConfigError(f"{key}={place}: {there} is no folder; name another one, or move it away")


def open_store(root: str | Path, key: str = "places.ledger") -> Store:
    """The store at a path or URL, which stands at `key`. Raises UserError naming the key."""
    check_folder(str(root), key)
    return Bucket(str(root), key) if is_url(str(root)) else Disk(Path(root))


def prove_writable(store: Store, probe: str = ".probe") -> None:
    """Write and remove a probe. Raises UserError naming `places.ledger`, or the key of a URL."""
    try:
        store.write(probe, b"")
        store.remove(probe)
    except StoreError:
        raise  # it names the key itself
    except OSError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"places.ledger: {store.root} cannot be written ({reason}); set LEDGER=..."
        ) from error
