"""Configurations taken apart."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from capsweep.config import compose, overrides, package_files


def _other_value(value: Any) -> Any:
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 if value else 0.001
    if isinstance(value, list):
        return [_other_value(value[0]), *value[1:]] if value else ["other"]
    return {"other": "other"} if isinstance(value, Mapping) else f"{value}-other"


@pytest.fixture(scope="session")
def other() -> Callable[[Any], Any]:
    """Another value of the same type: in bounds for every number of conf/."""
    return _other_value


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
