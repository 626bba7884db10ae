"""Programs in the place of those that have no server here."""

from pathlib import Path

import pytest
from fake_programs import Programs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A folder in front of PATH."""
    return Programs(tmp_path / "programs", monkeypatch)
