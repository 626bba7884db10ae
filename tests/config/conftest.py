"""Configurations taken apart."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsweep.config import compose, overrides, package_files


def _forget_conf() -> None:
    for module in (compose, overrides):
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


@pytest.fixture
def conf_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Puts a copy of conf/, to be changed, in the place of conf/, and returns its folder."""
    original = package_files.find_folder("conf")

    def copied() -> Path:
        shutil.copytree(original, tmp_path / "conf")
        monkeypatch.setattr(package_files, "PACKAGE", tmp_path)
        _forget_conf()
        return tmp_path / "conf"

    yield copied
    monkeypatch.undo()
    _forget_conf()
