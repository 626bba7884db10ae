"""The token without which nobody may speak to a cluster: a file, never its content."""

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from capsweep.errors import ConfigError
from capsweep.storage.files import write_atomically

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def file_of(place: str) -> Path:
    """The absolute path of `cluster.token`, without touching the disk."""
    return Path(os.path.abspath(os.path.expanduser(place)))


def ensure(place: str, say: Callable[[str], None]) -> Path:
    """The token's file: made when there is none, and readable by its owner alone, as Ray's own is
    not.

    Raises ConfigError naming cluster.token when it is empty or cannot be written.
    """
    path = file_of(place)
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(path, lambda file: _fill(file.fileno()))
            say(f"made a token in {path}: who can read it can use the cluster")
        elif path.stat().st_mode & OTHERS:
            path.chmod(0o600)
            say(f"others could read the token in {path}: now its owner alone can")
        if not path.read_text(errors="replace").strip():
            raise ConfigError(f"cluster.token={path}: is empty; remove it, and it is made anew")
    except OSError as error:
        raise ConfigError(f"cluster.token={place}: {error.strerror}; name another file") from error
    return path


def _fill(descriptor: int) -> None:
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, secrets.token_hex(32).encode())
