"""Write files atomically, lock files, and compute hashes of files."""

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
    """Write a file so that readers see either the old content or the complete new content.

    The content is written to a temporary file. The temporary file is flushed to disk, and then
    renamed to the final path. So no reader sees an incomplete file, even after a crash.

    Args:
        path: The final path of the file. Missing folders are created.
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
    """Write a text file in UTF-8, atomically.

    Raises:
        OSError: If the file cannot be written.
    """
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically.

    Raises:
        ValueError: If the value contains NaN or an infinite number. JSON has no such numbers.
        OSError: If the file cannot be written.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def open_plain_file(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Pipes are refused, because reading a pipe could block for ever. Folders are refused too.

    Raises:
        IsADirectoryError: If the path is a folder, a pipe or another special file.
        OSError: If the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def read_plain_file(path: Path) -> bytes:
    """Read the bytes of a regular file.

    Raises:
        IsADirectoryError: If the path is a folder, a pipe or another special file.
        OSError: If the file cannot be read.
    """
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

    Before the block runs, temporary files that killed processes left for this file are removed. The
    lock of a process that dies is released. If the folder of the file cannot be written, or if the
    file system has no locks, the block runs without a lock.

    Args:
        path: The file that the block may write.
    """
    import fcntl  # imported here, because Windows has no fcntl and must first show our message

    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_name(f".{path.name}.lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
                temporary.unlink(missing_ok=True)
        yield


def user_cache_folder() -> Path:
    """Return the folder of capsweep in the user's cache, by the XDG base directory specification.

    The folder is `$XDG_CACHE_HOME/capsweep`. If the variable XDG_CACHE_HOME is unset, empty or a
    relative path, the folder is `~/.cache/capsweep`.

    Raises:
        RuntimeError: If the home folder is needed and there is none.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "capsweep"


def hash_bytes(data: bytes) -> str:
    """Compute the hexadecimal sha256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def hash_file(path: Path) -> str:
    """Compute the hexadecimal sha256 of a file, without loading the whole file into memory."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
