"""`capsweep ledger ...` where nothing can be written: a line that names the place."""

import json
import subprocess
from pathlib import Path

import pytest
from small_disks import small_disk

from capsweep import cli
from capsweep.ledger import lease, transfer
from capsweep.ledger.ledger import Ledger, folder_of


def read_only(place: Path) -> None:
    """From here on nothing can be written there."""
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


def test_a_read_only_ledger_is_told(
    finish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Ledger(tmp_path / "there")
    new = finish(there, "seed=4").signature
    transfer.export_cells(there, [new], tmp_path / "new.tar")
    with small_disk(tmp_path / "disk", 4) as place:
        ledger = Ledger(place / "ledger")
        signature = finish(ledger, "seed=3").signature
        dead = {"owner": lease.get_current_owner().model_dump() | {"started": "0"}, "beat": 1}
        ledger.store.write(f"claims/{signature}.000001", json.dumps(dead).encode())
        ledger.store.write(f"{folder_of(signature)}/resume.ckpt", b"1")
        read_only(place)
        transfers = ["export", str(place / "x.tar")], ["import", str(tmp_path / "new.tar")]
        for words in (["rm", signature], ["release", signature], ["gc"], *transfers):
            assert cli.main(["ledger", *words, f"STORAGE={place}"]) == 2, words
            said = capsys.readouterr().err
            assert said.startswith(f"error: {place}"), words
            assert "Read-only file system" in said
            assert said.count("\n") == 1
