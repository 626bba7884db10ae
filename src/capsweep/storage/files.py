"""Atomic files, locks and hashes: a file is complete or absent, never written in part."""

import errno
import glob
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a temporary file, flush it to disk, and rename it to its final path.

    Readers see the old file or the new one, never a part, even after a crash at any moment.

    Args:
        path: Where the file is to be; missing folders are created.
        write: Writes the content to an open file.

    Raises:
        OSError: If the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically.

    Raises:
        ValueError: If the value has NaN or infinite numbers, which JSON does not have.
        OSError: If the file cannot be written.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def open_plain_file(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Pipes are refused, because reading a pipe could block for ever. Folders are refused too.

    Raises:
        IsADirectoryError: If the path is not a regular file.
        OSError: If the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def read_plain_file(path: Path) -> bytes:
    """Read the bytes of a regular file; folders and pipes raise IsADirectoryError."""
    with open_plain_file(path) as file:
        return file.read()


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with all that it contains; do nothing if the path is absent."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold a lock in a `with` block, so that only one process at a time writes a file.

    Temporary files of killed processes are removed first. A process that dies releases the lock. If
    the folder cannot be written, or its file system has no locks, the block runs without a lock.

    Args:
        path: The file that the block may write.
    """
    import fcntl  # here, so that Windows, which has no fcntl, gets our own message

    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_name(f".{path.name}.lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
                temporary.unlink(missing_ok=True)
        yield


def user_cache_folder() -> Path:
    """Return the folder of the user's cache, as the XDG base directory specification defines it.

    The folder is `$XDG_CACHE_HOME/capsweep`, or `~/.cache/capsweep` if the variable XDG_CACHE_HOME
    is unset, empty or a relative path.

    Raises:
        RuntimeError: If there is no home folder.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "capsweep"


def hash_bytes(data: bytes) -> str:
    """Compute the hexadecimal sha256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def hash_file(path: Path) -> str:
    """Compute the hexadecimal sha256 of a file, piece by piece."""
    with path.open("rb", buffering=0) as file:
        return hash_open_file(file)


def hash_open_file(file: IO[bytes]) -> str:
    """Compute the hexadecimal sha256 of an open file from its current position on."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore
