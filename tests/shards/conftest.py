"""A folder of shards that tests read, one that they may spoil, and one that is not made yet."""

import os
import shutil
import time
from pathlib import Path

import pytest
import shard_folders
from shard_folders import Folder

from capsweep.shards import manifest


@pytest.fixture(scope="session")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Three shards of the training split and one of test. To be read only."""
    folder = tmp_path_factory.mktemp("pixels")
    return folder, shard_folders.make(folder)


@pytest.fixture
def spoiled(pixels: Folder, tmp_path: Path) -> Folder:
    """The same, to be altered, its files old enough to be remembered."""
    folder = tmp_path / "shards"
    shutil.copytree(pixels[0], folder)
    then = time.time() - 60
    for path in folder.iterdir():
        os.utime(path, (then, then))
    return folder, manifest.read_manifest(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a data set that is not made yet."""
    return tmp_path / "data" / "pairs"
