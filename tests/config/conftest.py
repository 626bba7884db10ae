"""Configurations taken apart."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from caches import forget

from capsweep.config import compose, overrides, package_files


@pytest.fixture
def conf_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Puts a copy of conf/, to be changed, in the place of conf/, and returns its folder."""
    find_folder, copy = package_files.find_folder, tmp_path / "conf"

    def copied() -> Path:
        shutil.copytree(find_folder("conf"), copy)
        # The code stays where it is: `code_identity` reads it once in a process, whoever asks.
        monkeypatch.setattr(
            package_files, "find_folder", lambda name: copy if name == "conf" else find_folder(name)
        )
        forget(compose, overrides)
        return copy

    yield copied
    monkeypatch.undo()
    forget(compose, overrides)
