"""A folder of shards that tests read, and one that they may spoil."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import shard_folders

from capsweep.data.shards import manifest
from capsweep.data.shards.manifest import Manifest

Folder = tuple[Path, Manifest]


@pytest.fixture(scope="session")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Three shards a split, with the digits alone. To be read only."""
    folder = tmp_path_factory.mktemp("pixels")
    return folder, shard_folders.make(folder, shard_folders.job(with_sources=True))


@pytest.fixture
def spoiled(pixels: Folder, tmp_path: Path) -> Folder:
    """The same, to be altered, its files old enough to be remembered."""
    folder = tmp_path / "shards"
    shutil.copytree(pixels[0], folder)
    for path in folder.iterdir():
        age(path)
    return folder, manifest.read(folder)


@pytest.fixture
def aged() -> Callable[[Path], None]:
    """Makes a file look as if it was written a minute ago."""
    return age


def age(path: Path) -> None:
    """As if a file was written a minute ago."""
    then = time.time() - 60
    os.utime(path, (then, then))
