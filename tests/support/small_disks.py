"""File systems of a few megabytes, that soon are full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, megabytes: float) -> Iterator[Path]:
    """A tmpfs mounted at `place`; skips the test visibly where none can be."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={int(1024 * megabytes)}k", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.strip()}")
    try:
        yield place
    finally:  # lazily: a test that failed may still have a file open there
        subprocess.run(["umount", "--lazy", str(place)], check=True)
