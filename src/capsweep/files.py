"""Files that are whole or absent: written to a temporary name, flushed to disk, renamed."""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it to `path`.

    A reader, or a crash at any moment, sees the old file or the new one, never a part.
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
    """Write `text` as UTF-8, atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN is an error, since JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def open_plain(path: Path) -> IO[bytes]:
    """A plain file, opened for reading. Raises IsADirectoryError for what is none: a pipe would be
    waited for.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise IsADirectoryError(errno.EISDIR, "it is no plain file", str(path))
    return open(number, "rb")


def read_plain(path: Path) -> bytes:
    """The content of a plain file. Raises IsADirectoryError as `open_plain`."""
    with open_plain(path) as file:
        return file.read()


def remove(path: Path) -> None:
    """Remove a file or a folder; an absent one is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made. A dead process holds none.

    Raises OSError where it cannot be made, or the file system has no locks.
    """
    import fcntl  # which systems that are refused do not have

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/capsweep`, or `~/.cache/capsweep` where that is unset, empty or relative.

    So the XDG base directory specification has it. Raises RuntimeError where there is no home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "capsweep"


def sha256_of(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hexadecimal sha256 of a file of any size."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
