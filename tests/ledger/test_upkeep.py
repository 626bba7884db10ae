"""What dead processes left is found and removed; what a living one uses is not touched."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_claims import write_claim

from capsweep import cli
from capsweep.ledger import lease, upkeep
from capsweep.ledger.ledger import Ledger
from capsweep.storage import scratch

SIGNATURE = "0123456789abcdef"

# Makes all that a driver, a cell and a program that fails make, and stays.
OWNER = f"""
import sys, tempfile, time
from pathlib import Path
from capsweep.cli import program
from capsweep.ledger import lease
from capsweep.storage.scratch import make_scratch_prefix
storage = Path(sys.argv[1])
for folder in ("ray", "scratch"):
    (storage / folder).mkdir(parents=True)
tempfile.mkdtemp(dir=storage / "ray", prefix=make_scratch_prefix("sweep"))
tempfile.mkdtemp(dir=storage / "scratch", prefix=make_scratch_prefix("{SIGNATURE}"))
for kind in ("code", "wandb"):
    tempfile.mkdtemp(prefix=make_scratch_prefix(f"capsweep-{{kind}}"))
program._keep_traceback(RuntimeError("a fault"))
lease.take_lease(storage / "ledger", "{SIGNATURE}")
print("made", flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen]:
    """A process with scratch of every kind, of the storage and the temporary folder of the test."""
    for name in ("temporary", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "storage")],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"made\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def list_all(folder: Path) -> set[str]:
    """Names below the storage and the temporary folder."""
    names = (path for name in ("storage", "temporary") for path in (folder / name).rglob("*"))
    return {str(path.relative_to(folder)) for path in names}


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_stays(
    owner: subprocess.Popen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, command = list_all(tmp_path), ["ledger", "gc", f"STORAGE={tmp_path / 'storage'}"]
    assert cli.main(command) == 0
    assert "0 leftovers" in capsys.readouterr().out
    assert list_all(tmp_path) == before
    owner.kill()
    owner.wait()
    assert cli.main([*command, "--dry-run"]) == 0
    assert "6 leftovers" in capsys.readouterr().out
    assert list_all(tmp_path) == before
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    for text in ("storage/ray/sweep-", "/scratch/0123", "-wandb-", "-code-", "-error-"):
        assert text in printed
    assert f"claims/{SIGNATURE}.000001: claim of process {owner.pid} on" in printed
    empty = {"storage/ray", "storage/scratch", "storage/ledger", "storage/ledger/claims"}
    assert list_all(tmp_path) == empty
    cli.main(command)
    assert "0 leftovers" in capsys.readouterr().out


def test_scratch_of_earlier_code_and_of_other_machines_goes_when_nobody_touched_it_for_a_week(
    tmp_path: Path,
) -> None:
    names = ("sweep-abc123", "sweep-77-0123456701230123-abc", "sweep-77-01234567abcd-abc", "mine")
    for name in names:
        (tmp_path / name / "inside").mkdir(parents=True)
    assert list(scratch.find_abandoned(tmp_path, "sweep-")) == []
    old = time.time() - scratch.UNTOUCHED_SECONDS - 60
    for name in names:
        for path in (tmp_path / name / "inside", tmp_path / name):
            os.utime(path, (old, old))
    left = [path.name for path in scratch.find_abandoned(tmp_path, "sweep-")]
    assert left == sorted(names[:3])


def test_a_claim_of_another_machine_goes_when_no_beat_came_for_long(tmp_path: Path) -> None:
    path = write_claim(tmp_path, SIGNATURE, generation=3)
    assert list(upkeep.find_garbage(Ledger(tmp_path))) == []
    old = time.time() - lease.SETTLED_SECONDS - 60
    os.utime(path, (old, old))
    (item,) = upkeep.find_garbage(Ledger(tmp_path))
    assert item.why == "claim of process 1 on far, which has ended"
    path.write_text(path.read_text().replace('"beat": 3', '"beat": 4'))  # it is not gone
    item.remove()
    assert path.exists()
    assert lease.read_claims(tmp_path)[SIGNATURE].beat == 4
