"""Official files: found below the data folder, and never read unless they are the declared ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsweep.errors import DataError
from capsweep.storage import downloads
from capsweep.storage.files import hash_bytes
from capsweep.storage.object_store import is_url, join, shown

UNKNOWN = "unknown"  # a declared hash that we do not know; such a file is never read
LARGEST = 2**31  # bytes; no official file has as many, and what has is not brought into memory


@dataclass(frozen=True)
class DeclaredFile:
    """A file that was found, its declared sha256, and the key at which that stands."""

    path: Path
    sha256: str
    key: str


@dataclass(frozen=True)
class OfficialFiles:
    """Where the files of one data set are looked for, and who offers them.

    folders: below the data folder, the first that has a file wins. publisher: the page or URL that
    messages name as the cure. sha256: what a file is accepted by that comes from an object store.
    """

    folders: Sequence[str]
    publisher: str
    sha256: Sequence[str] = ()

    def find(self, folder: str, *names: str) -> Path | None:
        """The first of `names` in the first folder that has one; None where none has."""
        if is_url(folder):
            of = downloads.places(folder, self.folders)
            return downloads.find(of, names, downloads.declared(self.sha256))
        places = [self._root(folder) / below for below in self.folders]
        paths = (place / name for place in places for name in names)
        return next((path for path in paths if _exists(path, path.is_file)), None)

    def find_all(self, folder: str, names: Mapping[str, Sequence[str]]) -> dict[str, Path]:
        """A file for every key, `names` being what it may be called.

        Raises DataError for those that are nowhere, all at once, by the first of their names.
        """
        found = {key: self.find(folder, *allowed) for key, allowed in names.items()}
        absent = [allowed[0] for key, allowed in names.items() if found[key] is None]
        if absent:
            raise self.missing(folder, ", ".join(absent))
        return {key: path for key, path in found.items() if path is not None}

    def find_folder(self, folder: str, name: str) -> Path | None:
        """The first folder `name` below the folders; None where there is none. Of an object store
        its files are fetched.
        """
        if is_url(folder):
            return self._fetched_folder(folder, name)
        places = [self._root(folder) / below / name for below in self.folders]
        return next((place for place in places if _exists(place, place.is_dir)), None)

    def _fetched_folder(self, folder: str, name: str) -> Path | None:
        for place in (join(p, name) for p in downloads.places(folder, self.folders)):
            if found := downloads.listed(place):
                for file in found:
                    downloads.fetch(place, file, downloads.declared(()))
                return downloads.local(place)
        return None

    def missing(self, folder: str, needed: str, cure: str | None = None) -> DataError:
        """The error for files that are nowhere; `needed` says which, `cure` where to have them."""
        looked = ", ".join(self.folders) or "no folder"
        place = f"{downloads.KEY}={shown(folder)}"
        if not is_url(folder):
            place = self._root(folder) / next(iter(self.folders), ".")
        cure = cure or f"download from {self.publisher} and put it there"
        return DataError(
            f"{place}: {needed} not found (looked in {looked} below places.data); {cure}, "
            "or set DATA_DIR"
        )

    def read_all(self, files: Mapping[str, DeclaredFile]) -> dict[str, bytes]:
        """The verified bytes of every file. Raises DataError; of unknown hashes all are named."""
        contents = {name: content_of(file.path) for name, file in files.items()}
        unknown = {}
        for name, file in files.items():
            if file.sha256 == UNKNOWN:
                unknown[file.key] = (file.path, hash_bytes(contents[name]))
            else:
                self.verify(file.path, contents[name], file.sha256, file.key)
        if unknown:
            raise refusal_of_unknown(unknown, self.publisher)
        return contents

    def verify(self, path: Path, data: bytes, declared: str, key: str) -> None:
        """Raise DataError unless the sha256 of `data`, read from `path`, is `declared` at `key`."""
        found = hash_bytes(data)
        if declared == UNKNOWN:
            raise refusal_of_unknown({key: (path, found)}, self.publisher)
        if found != declared:
            raise DataError(
                f"{path}: truncated or altered ({len(data)} bytes, sha256 {found}, declared "
                f"{declared}); {cure_of(path, f'download it again from {self.publisher}')}"
            )

    def _root(self, folder: str) -> Path:
        root = Path(folder)
        if not _exists(root, root.is_dir):
            raise DataError(
                f"places.data: {root} does not exist; set DATA_DIR to the folder of the files from "
                f"{self.publisher}"
            )
        return root


def cure_of(path: Path, download: str) -> str:
    """What to do about a file that is not the declared one; what was fetched goes at once."""
    if downloads.forget(path):
        return "it was a copy from the object store and is removed; the same command fetches it"
    return f"delete it and {download}"


def content_of(path: Path) -> bytes:
    """All bytes of a file that may be official. Raises DataError when it cannot be read."""
    try:
        if (size := path.stat().st_size) >= LARGEST:
            raise DataError(
                f"{path}: {size:,} bytes, more than any official file has; put that here"
            )
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _exists(path: Path, proves: Callable[[], bool]) -> bool:
    """What `path.is_file` or `path.is_dir` says. A closed folder above it is an error."""
    try:
        return proves()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path}: cannot be read ({error.strerror}); correct its permissions, or set DATA_DIR to a "
        "folder that can be read"
    )


def refusal_of_unknown(found: Mapping[str, tuple[Path, str]], publisher: str) -> DataError:
    """The error for files whose official sha256 we do not know; all of them at once.

    found: the file and its sha256, by the key that would declare it.
    """
    files = ", ".join(f"{path} has sha256 {sha256}" for path, sha256 in found.values())
    settings = " ".join(f"{key}={sha256}" for key, (_, sha256) in found.items())
    return DataError(
        f"{files}; the publisher's is not known to us, so nothing is read. If this is the file of "
        f"{publisher}, set {settings}"
    )
