"""Stored values that are checked when they are read: typed JSON, .npz files, and the user's cache.

The cache has small values that took long to compute on this machine. Each depends on its key alone,
so nothing there is ever out of date. A damaged file counts as absent; where there is no home, or it
cannot be written, values are computed each time.
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

MOST = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1033}  # bytes that a byte of a member becomes
KEPT_SECONDS = 30 * 24 * 3600.0
MOST_LETTERS = 200  # of a place, and of a reason
Value = TypeVar("Value")


def parse_json(content: bytes, adapter: TypeAdapter[Value]) -> Value:
    """Return what is stored, of the adapter's type. Raises ValueError, of one printable line."""
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise ValueError(describe_fault(error)) from error


def describe_fault(error: ValidationError) -> str:
    """Return the first field that is of another type, why, and its value, in one printable line."""
    fault, *_ = error.errors(include_url=False)
    parts = (str(part) for part in fault["loc"] if part != "[key]")
    place = ".".join(part if part.isprintable() else reprlib.repr(part) for part in parts)
    own = fault.get("ctx", {}).get("error")  # what a validator of ours raised
    is_plain = own is not None or fault["type"] == "json_invalid"
    value = "" if is_plain else f", got {reprlib.repr(fault['input'])}"
    reason = f"{str(own or fault['msg'])[:MOST_LETTERS]}{value}"
    return f"{place[:MOST_LETTERS]}: {reason}" if place else reason


def open_npz(file: IO[bytes]) -> "np.lib.npyio.NpzFile":
    """Open the arrays of an .npz, which are read one by one; pickled objects are refused.

    No array takes more memory than a whole file of this length may need: its header is compared
    with its bytes before it is reserved. Raises ValueError where it declares another size, and
    whatever zipfile and numpy raise for a damaged file.
    """
    import numpy as np

    length = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            most = MOST.get(member.compress_type, 0) * member.compress_size
            if member.compress_size > length or member.file_size > most:
                text = f"{member.filename} declares {member.file_size:,} bytes of {length:,}"
                raise ValueError(f"{text}, or is packed otherwise than numpy packs")
            with archive.open(member) as stream:
                np.lib.format.read_magic(stream)
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
                stored = member.file_size - stream.tell()
            if math.prod(shape) * dtype.itemsize != stored and not dtype.hasobject:
                declared = f"{str(shape)[:80]} numbers of {dtype.itemsize} bytes"
                raise ValueError(f"{member.filename} declares {declared}, and has {stored:,}")
    file.seek(0)
    return np.load(file, allow_pickle=False)


def compute_once(kind: str, key: str, compute: Callable[[], Any]) -> Any:
    """The value of a key, plain JSON data: from the cache, else computed and kept there."""
    value = load_cached(kind, key)
    if value is None:
        value = compute()
        save_cached(kind, key, value)
    return value


def load_cached(kind: str, key: str) -> Any:
    """The kept value of a key; None where there is none that is whole."""
    try:
        digest, _, content = _path_of(kind, key).read_bytes().partition(b"\n")
        return json.loads(content) if digest.decode() == _digest_of(kind, key, content) else None
    except (OSError, RuntimeError, ValueError):
        return None


def save_cached(kind: str, key: str, value: Any) -> None:
    """Keep a value, and remove those of its kind that were kept for a month."""
    content = json.dumps(value).encode()
    stored = f"{_digest_of(kind, key, content)}\n".encode() + content
    with suppress(OSError, RuntimeError):
        path = _path_of(kind, key)
        write_atomically(path, lambda file: file.write(stored))
        for other in path.parent.iterdir():
            if time.time() - other.stat().st_mtime > KEPT_SECONDS:
                other.unlink(missing_ok=True)


def _digest_of(kind: str, key: str, content: bytes) -> str:
    """Of the value and what it is of: a file that was renamed is not that of another key."""
    return hash_bytes(f"{kind}\n{key}\n".encode() + content)


def _path_of(kind: str, key: str) -> Path:
    return user_cache_folder() / "computed" / kind / f"{hash_bytes(key.encode())[:32]}.json"
