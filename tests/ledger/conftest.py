"""Ledgers with finished cells that never ran."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger, folder_of

Finish = Callable[..., Cell]


@pytest.fixture(params=["disk", "bucket"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    """A ledger on a disk, and one in an object store."""
    if request.param == "disk":
        return Ledger(tmp_path / "ledger")
    return Ledger(request.getfixturevalue("store").url("bucket/ledger"))


@pytest.fixture
def finish() -> Finish:
    """Writes a finished cell into a ledger; overrides of the cell as arguments."""

    def write(ledger: Ledger, *overrides: str, error: float = 0.25) -> Cell:
        cell = compose.cell(list(overrides))
        folder = folder_of(cell.signature)
        result = stored_files.with_digests({"metrics": {"test/error": error}}, {})
        files = {
            "config.yaml": yaml.safe_dump(cell.science),
            "provenance.json": json.dumps({"overrides": list(overrides), "code": {}}),
            "metrics.jsonl": '{"epoch": 0}\n',
            "weights.ckpt": "weights",
            "result.json": json.dumps(result),
        }
        for name, text in files.items():
            ledger.store.write(f"{folder}/{name}", text.encode())
        return cell

    return write
