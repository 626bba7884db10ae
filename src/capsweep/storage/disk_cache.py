"""Small values that took long to compute, kept in the user's cache on this machine.

Each value depends on its key alone, so nothing here is ever out of date. A damaged file counts as
absent; where there is no home, or it cannot be written, values are computed each time.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from capsweep.storage.files import hash_bytes, user_cache_folder, write_atomically

KEPT_SECONDS = 30 * 24 * 3600.0


def compute_once(kind: str, key: str, compute: Callable[[], Any]) -> Any:
    """The value of a key, plain JSON data: from the cache, else computed and kept there."""
    value = load(kind, key)
    if value is None:
        value = compute()
        save(kind, key, value)
    return value


def load(kind: str, key: str) -> Any:
    """The kept value of a key; None where there is none that is whole."""
    try:
        digest, _, content = _path_of(kind, key).read_bytes().partition(b"\n")
        return json.loads(content) if digest.decode() == _digest_of(kind, key, content) else None
    except (OSError, RuntimeError, ValueError):
        return None


def save(kind: str, key: str, value: Any) -> None:
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
