"""Data in an object store: each file is fetched once for a node, into the user's cache.

A folder of the store has a folder of its own there (`fetched/NAME-HASH`, the hash of its URL), with
the URL in `.origin`. A file has its name when it is whole and accepted, not before; processes that
want it at the same time wait for the one that fetches it, and a dead one holds nothing up.
What lies there is read as any official file is: verified again. All of it may be deleted.
"""

import errno
import glob
import hashlib
import lzma
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import IO

from capsweep.errors import DataError
from capsweep.storage.files import (
    hash_bytes,
    hold_lock,
    stat_regular_file,
    user_cache_folder,
    write_atomically,
    write_text,
)
from capsweep.storage.object_store import (
    AbsentError,
    Bucket,
    StoreError,
    check_inside,
    is_url,
    join,
    shown,
)

KEY = "places.data"
ORIGIN = ".origin"
ANYTHING = "unknown"  # what conf/ declares where a hash is not known to us
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # then each process fetches for itself

Refusal = Callable[[Path], str | None]  # why a file is not what was declared; None: it is
IsCurrent = Callable[[Path], bool]  # of a file that was fetched before


def _always(path: Path) -> bool:
    """A file of a declared hash is never another one."""
    return True


def declared(hashes: Sequence[str]) -> Refusal:
    """Accepts a file with one of these sha256, of itself or, for .xz, of what it holds.

    One of which the hash is not known is accepted here, and refused by its reader.
    """

    def refusal(path: Path) -> str | None:
        if not hashes or ANYTHING in hashes:
            return None
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if found in hashes or (".xz" in path.name and _held_by_xz(file) in hashes):
                return None
            return f"sha256 {found} of {file.seek(0, os.SEEK_END):,} bytes is not declared"

    return refusal


def _held_by_xz(file: IO[bytes]) -> str | None:
    file.seek(0)
    try:
        with lzma.open(file) as whole:
            # lzma's file reads as hashlib asks; the stubs of both do not say so.
            return hashlib.file_digest(whole, "sha256").hexdigest()  # type: ignore[arg-type]
    except (lzma.LZMAError, EOFError):
        return None


def places(folder: str, below: Sequence[str]) -> list[str]:
    """Folders below a data folder, as paths or URLs; one that is absolute, or a URL, is itself."""
    return [_below(folder, name) for name in below]


def _below(folder: str, name: str) -> str:
    if is_url(name) or not is_url(folder) or os.path.isabs(name):
        return name if is_url(name) else str(Path(folder) / name)
    name = check_inside(name, f"{KEY}={shown(folder)}")
    return folder if name == "." else join(folder, name)


def local(place: str) -> Path:
    """The folder in which the files of a place are, or will be when they were fetched.

    Raises DataError where the user has no cache.
    """
    if not is_url(place):
        return Path(place)
    return _root() / f"{_last(place)}-{hash_bytes(place.encode())[:16]}"


def origin(folder: Path) -> str | None:
    """The URL of what a folder of the cache has; None for any other folder."""
    try:
        if folder.parent != _root():
            return None
        return (folder / ORIGIN).read_text()
    except (OSError, UnicodeDecodeError, DataError):
        return None


def find(of: Sequence[str], names: Sequence[str], refusal: Refusal) -> Path | None:
    """The first of `names` in the first place that has one; None where none has.

    What was fetched before comes first, and no store is asked. Raises DataError and StoreError.
    """
    wanted = [(place, name) for place in of for name in names]
    for place, name in wanted:
        if is_url(place) and _is_file(local(place), name):
            return local(place) / name
    for place, name in wanted:
        if is_url(place) and fetch(place, name, refusal):
            return local(place) / name
        if not is_url(place) and _is_file(Path(place), name):
            return Path(place) / name
    return None


def find_current(of: Sequence[str], name: str, is_current: IsCurrent) -> Iterator[Path]:
    """The folders that have a file which may change at its place: fetched again unless what was
    fetched before is the current one; then that comes first.
    """
    kept = [p for p in of if is_url(p) and _is_kept(local(p), name, is_current)]
    yield from map(local, kept)
    for place in of:
        if place in kept:
            continue
        if is_url(place):
            if fetch(place, name, declared(()), is_current):
                yield local(place)
        elif _is_file(Path(place), name):
            yield Path(place)


def fetch(place: str, name: str, refusal: Refusal, is_current: IsCurrent = _always) -> bool:
    """Whether a file is there now, whole and accepted; False where the store has none.

    is_current: whether what was fetched before will do.

    Raises StoreError for a store that does not answer; DataError for what was refused, and where
    there is no room for it. Nothing of that stays.
    """
    folder = local(place)
    check_inside(name, f"{KEY}={shown(place)}")
    if _is_kept(folder, name, is_current):
        return True
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(folder / f".{name}.lock"))
            for left in folder.glob(f".{glob.escape(name)}.*.tmp"):  # by killed processes
                left.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise _unwritable(place, name, error) from error
        if _is_kept(folder, name, is_current):  # another process has fetched it meanwhile
            return True
        bucket = _bucket(place, os.getpid())
        try:
            _write(bucket, folder, name, refusal)
        except AbsentError:
            forget(folder / name)
            return False
        except StoreError:
            raise
        except OSError as error:
            raise _unwritable(place, name, error) from error
    return True


def _write(bucket: Bucket, folder: Path, name: str, refusal: Refusal) -> None:
    def fill(file: IO[bytes]) -> None:
        bucket.copy(name, file)
        file.flush()
        if (why := refusal(Path(file.name))) is not None:
            raise DataError(
                f"{KEY}={shown(bucket.root)}: {name} is truncated or altered there ({why}); put "
                "the declared file in its place"
            )

    begin(bucket.root)
    write_atomically(folder / name, fill)


def begin(place: str) -> None:
    """Make the folder of a place of a store, which knows where it is from. Raises OSError."""
    write_text(local(place) / ORIGIN, place)


def forget(path: Path) -> bool:
    """Remove a file that was fetched, so that it is fetched again; whether it was one."""
    if origin(path.parent) is None:
        return False
    path.unlink(missing_ok=True)
    return True


def listed(place: str) -> dict[str, int]:
    """Names and bytes of what lies in a place of a store. Raises StoreError."""
    return _bucket(place, os.getpid()).sizes("")


@lru_cache(maxsize=16)
def _bucket(place: str, process: int) -> Bucket:
    """process: a client of a parent's is of no use behind a fork."""
    return Bucket(place, KEY)


def _root() -> Path:
    try:
        return user_cache_folder() / "fetched"
    except RuntimeError as error:
        raise DataError(
            f"{KEY} is in an object store, and there is no home to fetch it to; set HOME or "
            "XDG_CACHE_HOME"
        ) from error


def _last(place: str) -> str:
    """Something to know a folder by, of letters that no file system minds."""
    name = shown(place).rstrip("/").rpartition("/")[2]
    return "".join(letter if letter.isalnum() else "_" for letter in name)[:40] or "data"


def _is_kept(folder: Path, name: str, is_current: IsCurrent) -> bool:
    return _is_file(folder, name) and is_current(folder / name)


def _is_file(folder: Path, name: str) -> bool:
    """Whether a plain file is there. In the cache nothing else may have its name."""
    if origin(folder) is None:
        return (folder / name).is_file()
    try:
        stat_regular_file(folder, name)
    except FileNotFoundError:
        return False
    return True


def _unwritable(place: str, name: str, error: OSError) -> DataError:
    return DataError(
        f"{_root()}: {name} of {shown(place)} cannot be kept there "
        f"({error.strerror or error}); make room, or set XDG_CACHE_HOME to a folder of this node "
        "that can be written"
    )
