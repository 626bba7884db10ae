"""Files that are whole or absent: written to a temporary name, flushed to disk, renamed."""

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


def open_plain_file(path: Path) -> IO[bytes]:
    """Open a plain file to be read. Raises IsADirectoryError for what is none: a pipe would be
    waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, "it is no plain file", str(path))
    return open(descriptor, "rb")


def read_plain_file(path: Path) -> bytes:
    """Return the content of a plain file. Raises as `open_plain_file`."""
    with open_plain_file(path) as file:
        return file.read()


def remove_path(path: Path) -> None:
    """Remove a file or a folder; an absent one is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Let one process at a time write `path`, and remove what killed ones left of it. There is no
    lock where the folder cannot be written, or the file system has none; a dead process holds none.
    """
    import fcntl  # which systems that are refused do not have

    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_name(f".{path.name}.lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
                left.unlink(missing_ok=True)
        yield


def user_cache_folder() -> Path:
    """`$XDG_CACHE_HOME/capsweep`, or `~/.cache/capsweep` where that is unset, empty or relative.

    So the XDG base directory specification has it. Raises RuntimeError where there is no home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "capsweep"


def hash_bytes(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


def hash_file(path: Path) -> str:
    """Return the hexadecimal sha256 of a file of any size."""
    with path.open("rb", buffering=0) as file:
        return hash_open_file(file)


def hash_open_file(file: IO[bytes]) -> str:
    """Return the hexadecimal sha256 of what is left to read of a file of any size."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore
