"""Programs in the place of those that have no server here."""

from pathlib import Path

import pytest
from fake_programs import Programs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A folder in front of PATH."""
    return Programs(tmp_path / "programs", monkeypatch)
