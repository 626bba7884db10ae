"""Read .npz files and values of the user's cache, and check what was read.

The user's cache stores small values that take long to compute. A value depends only on its key, so
a cached value is never out of date. A damaged file of the cache counts as absent. If the folder of
the cache cannot be found or written, values are computed each time.
"""

import json
import math
import os
import reprlib
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from capsweep.storage.files import hash_bytes, user_cache_folder, write_atomically

if TYPE_CHECKING:
    import numpy as np

# For each type of compression: the largest factor by which decompression enlarges a file in a .zip.
MOST_EXPANSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1033}
KEPT_SECONDS = 30 * 24 * 3600.0  # age at which values are removed from the cache
MOST_LETTERS = 200  # maximum length of a key, and of a reason, in a message


def describe_fault(error: ValidationError) -> str:
    """Describe the first error of a validation in one printable line.

    The line has the name of the wrong field, the reason and the field's value. The value is left
    out in two cases: the text is not JSON, or one of our own validators raised the error.
    """
    fault, *_ = error.errors(include_url=False)
    parts = (str(part) for part in fault["loc"] if part != "[key]")
    place = ".".join(part if part.isprintable() else reprlib.repr(part) for part in parts)
    cause = fault.get("ctx", {}).get("error")  # raised by one of our validators
    is_plain = cause is not None or fault["type"] == "json_invalid"
    value = "" if is_plain else f", got {reprlib.repr(fault['input'])}"
    reason = f"{str(cause or fault['msg'])[:MOST_LETTERS]}{value}"
    return f"{place[:MOST_LETTERS]}: {reason}" if place else reason


def open_npz(file: IO[bytes]) -> "np.lib.npyio.NpzFile":
    """Open an .npz file; the caller can then read its arrays one at a time.

    Reading an array of pickled objects raises ValueError. Each array has a header, which declares
    the size of the array. Before numpy allocates memory, the declared size is compared with the
    number of bytes that are stored for the array. So a damaged file cannot make numpy allocate too
    much memory.

    Args:
        file: The file, open for reading.

    Raises:
        ValueError: If the declared size of an array differs from its stored size, or if a declared
            size is impossible.
        Exception: If the file is damaged; zipfile and numpy raise many types of errors.
    """
    import numpy as np

    length = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            most = MOST_EXPANSION.get(member.compress_type, 0) * member.compress_size
            if member.compress_size > length or member.file_size > most:
                text = f"{member.filename}: {member.file_size:,} bytes in a file of {length:,}"
                raise ValueError(f"{text}, or compressed in a way that numpy does not use")
            with archive.open(member) as stream:
                np.lib.format.read_magic(stream)
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
                stored = member.file_size - stream.tell()
            if math.prod(shape) * dtype.itemsize != stored and not dtype.hasobject:
                declared = f"shape {str(shape)[:80]} of {dtype.itemsize}-byte numbers"
                raise ValueError(f"{member.filename} declares {declared}, but has {stored:,} bytes")
    file.seek(0)
    return np.load(file, allow_pickle=False)


def compute_once(kind: str, key: str, compute: Callable[[], Any]) -> Any:
    """Return the value of a key from the user's cache; compute and store an absent value.

    Args:
        kind: The kind of the value. The cache has a folder for each kind.
        key: A text with everything on which the value depends.
        compute: Computes the value. The value must be JSON data, but not None.
    """
    value = load_cached(kind, key)
    if value is None:
        value = compute()
        save_cached(kind, key, value)
    return value


def load_cached(kind: str, key: str) -> Any:
    """Return the value of a key from the user's cache; None if the value is absent or damaged."""
    try:
        digest, _, content = _path_of(kind, key).read_bytes().partition(b"\n")
        return json.loads(content) if digest.decode() == _digest_of(kind, key, content) else None
    except (OSError, RuntimeError, ValueError):
        return None


def save_cached(kind: str, key: str, value: Any) -> None:
    """Store a value in the user's cache, and remove old values of the same kind.

    A value is old KEPT_SECONDS after it was stored. If the cache cannot be written, nothing is
    stored.
    """
    content = json.dumps(value).encode()
    stored = f"{_digest_of(kind, key, content)}\n".encode() + content
    with suppress(OSError, RuntimeError):
        path = _path_of(kind, key)
        write_atomically(path, lambda file: file.write(stored))
        for other in path.parent.iterdir():
            if time.time() - other.stat().st_mtime > KEPT_SECONDS:
                other.unlink(missing_ok=True)


def _digest_of(kind: str, key: str, content: bytes) -> str:
    """Hash a value with its kind and key, so that a renamed file counts as damaged."""
    return hash_bytes(f"{kind}\n{key}\n".encode() + content)


def _path_of(kind: str, key: str) -> Path:
    return user_cache_folder() / "computed" / kind / f"{hash_bytes(key.encode())[:32]}.json"
