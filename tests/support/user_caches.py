"""Caches of users: empty, but for what follows from code and configuration alone."""

from pathlib import Path


def make(folder: Path, computed: Path) -> str:
    """A new folder for XDG_CACHE_HOME. computed: where all tests keep what is computed once."""
    (folder / "capsweep").mkdir(parents=True)
    (folder / "capsweep" / "computed").symlink_to(computed)
    return str(folder)
