"""Stored values that are checked when they are read: typed JSON, .npz files, and the user's cache.

The cache has small values that take long to compute. A value depends only on its key, so that the
cached value is always up to date. A damaged file counts as absent. If there is no home folder, or
if it cannot be written, values are computed each time.
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
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from capsweep.storage.files import hash_bytes, user_cache_folder, write_atomically

if TYPE_CHECKING:
    import numpy as np

# The largest factor by which a member of a .zip file can grow in decompression, by type of
# compression.
MOST_EXPANSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1033}
KEPT_SECONDS = 30 * 24 * 3600.0  # age at which values are removed from the cache
MOST_LETTERS = 200  # characters of a key or of a reason in a message
Value = TypeVar("Value")


def parse_json(content: bytes, adapter: TypeAdapter[Value]) -> Value:
    """Parse JSON and check that the value has the expected type.

    Args:
        content: JSON text in UTF-8.
        adapter: Pydantic's adapter of the expected type.

    Raises:
        ValueError: If the text is not JSON of this type. The message is one printable line.
    """
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise ValueError(describe_fault(error)) from error


def describe_fault(error: ValidationError) -> str:
    """Return one printable line with the first wrong field, the reason and the field's value."""
    fault, *_ = error.errors(include_url=False)
    parts = (str(part) for part in fault["loc"] if part != "[key]")
    place = ".".join(part if part.isprintable() else reprlib.repr(part) for part in parts)
    cause = fault.get("ctx", {}).get("error")  # raised by one of our validators
    is_plain = cause is not None or fault["type"] == "json_invalid"
    value = "" if is_plain else f", got {reprlib.repr(fault['input'])}"
    reason = f"{str(cause or fault['msg'])[:MOST_LETTERS]}{value}"
    return f"{place[:MOST_LETTERS]}: {reason}" if place else reason


def open_npz(file: IO[bytes]) -> "np.lib.npyio.NpzFile":
    """Open an .npz file, whose arrays are then read one by one; pickled objects are refused.

    Each array has a header that declares its size. Before numpy allocates memory, this size is
    compared with the number of bytes that are stored for the array. So a damaged file cannot make
    numpy allocate too much memory.

    Args:
        file: The file, open for reading.

    Raises:
        ValueError: If the declared size of an array differs from its stored size.
        Exception: Any error that zipfile and numpy raise for a damaged file.
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
    """Return the value of a key from the user's cache, or compute it and store it there.

    Args:
        kind: Kind of the value. Each kind has a folder in the cache.
        key: A text with everything on which the value depends.
        compute: Computes the value, which must be JSON data and not None.
    """
    value = load_cached(kind, key)
    if value is None:
        value = compute()
        save_cached(kind, key, value)
    return value


def load_cached(kind: str, key: str) -> Any:
    """Return the value of a key from the user's cache, or None if it is absent or damaged."""
    try:
        digest, _, content = _path_of(kind, key).read_bytes().partition(b"\n")
        return json.loads(content) if digest.decode() == _digest_of(kind, key, content) else None
    except (OSError, RuntimeError, ValueError):
        return None


def save_cached(kind: str, key: str, value: Any) -> None:
    """Store a value in the user's cache, and remove month-old values of the same kind."""
    content = json.dumps(value).encode()
    stored = f"{_digest_of(kind, key, content)}\n".encode() + content
    with suppress(OSError, RuntimeError):
        path = _path_of(kind, key)
        write_atomically(path, lambda file: file.write(stored))
        for other in path.parent.iterdir():
            if time.time() - other.stat().st_mtime > KEPT_SECONDS:
                other.unlink(missing_ok=True)


def _digest_of(kind: str, key: str, content: bytes) -> str:
    """Hash a value with its kind and key, so that a renamed file does not match another key."""
    return hash_bytes(f"{kind}\n{key}\n".encode() + content)


def _path_of(kind: str, key: str) -> Path:
    return user_cache_folder() / "computed" / kind / f"{hash_bytes(key.encode())[:32]}.json"
