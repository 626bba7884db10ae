"""Nothing is lost and nothing half-made is named as a shard, whatever happens to the command; the
same command again makes the rest."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_disks
from made_folders import LARGER, Make, hashes, started, times, wait_until

from capsweep import cli
from capsweep.shards import making_plan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What LARGER makes."""
    folder = tmp_path_factory.mktemp("undisturbed") / "pairs"
    assert cli.main(["data", "make", "multimnist", *LARGER, f"--storage={folder}"]) == 0
    return hashes(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_ends_early(
    folder: Path, undisturbed: dict[str, str], number: signal.Signals
) -> None:
    process = started(folder)
    wait_until(process, (folder / "train-00003.h5").exists)
    process.send_signal(number)
    said, _ = process.communicate()
    there, written = hashes(folder), times(folder)
    whole = {name: sha256 for name, sha256 in there.items() if name.endswith(".h5")}
    assert "train-00003.h5" in whole
    assert whole.items() <= undisturbed.items()
    assert "index.json" not in there
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "interrupted" in said
        assert "run the same command again" in said
        assert set(there) == set(whole)
    again = started(folder)
    said, _ = again.communicate()
    assert again.returncode == 0, said
    assert hashes(folder) == undisturbed
    after = times(folder)
    recorded = [name for name in whole if after[name] == written[name]]
    assert len(recorded) >= len(whole) - 1  # one may not have been recorded any more


def test_two_drivers_at_once(folder: Path, undisturbed: dict[str, str]) -> None:
    first = started(folder)
    wait_until(first, (folder / "train-00000.h5").exists)
    first.send_signal(signal.SIGSTOP)  # it still has the folder when the second comes
    second = started(folder)
    _, refused = second.communicate()
    first.send_signal(signal.SIGCONT)
    said, _ = first.communicate()
    assert first.returncode == 0, said
    assert second.returncode == 2
    assert f"STORAGE={folder}: is being filled by process {first.pid} on {os.uname().nodename}" in (
        refused
    )
    assert hashes(folder) == undisturbed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    with small_disks.small_disk(tmp_path / "disk", 4) as place:
        yield place


def test_a_disk_that_becomes_full(
    small_disk: Path, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_disk / "pairs"
    assert make(f"--storage={folder}", "--dry-run") == 2  # seen beforehand
    assert "bytes are to be written and" in capsys.readouterr().err


def test_a_disk_that_another_fills_meanwhile(
    small_disk: Path,
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = small_disk / "pairs"
    with monkeypatch.context() as patched:  # the disk was larger when it was asked
        usage = making_plan.shutil.disk_usage(small_disk)
        patched.setattr(making_plan.shutil, "disk_usage", lambda path: usage._replace(free=2**40))
        assert make(f"--storage={folder}") == 1
    said = capsys.readouterr().out
    assert f"{folder}: No space left on device; free space there, or set STORAGE" in said
    assert "FAILED 1: train-0000" in said  # no other was begun
    assert "run the same command again" in said
    assert not (folder / "index.json").exists()
    assert not list(folder.glob(".*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert make(f"--storage={folder}") == 0
    assert make(f"--storage={tmp_path / 'elsewhere'}") == 0
    assert hashes(folder) == hashes(tmp_path / "elsewhere")


def test_what_a_killed_worker_left_takes_no_room(small_disk: Path, make: Make) -> None:
    subprocess.run(["mount", "-o", "remount,size=6m", str(small_disk)], check=True)
    folder = small_disk / "pairs"
    folder.mkdir()
    (folder / ".train-00000.h5.77.tmp").write_bytes(bytes(3_000_000))
    assert make(f"--storage={folder}", "--pairs=1") == 0
    assert not list(folder.glob(".*.tmp"))


def test_a_folder_that_cannot_be_written(
    small_disk: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert make(f"--storage={small_disk / 'pairs'}") == 2
    said = capsys.readouterr().err
    assert f"STORAGE={small_disk}" in said
    assert f"{small_disk} cannot be written" in said
    assert "set STORAGE to another folder" in said


def test_a_whole_folder_becomes_read_only(
    small_disk: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert make(f"--storage={small_disk / 'pairs'}") == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert make(f"--storage={small_disk / 'pairs'}") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_shards_and_manifest_of_another_seed_copied_into_a_begun_folder(
    make: Make, folder: Path, tmp_path: Path
) -> None:
    """Their hashes are right; only what is recorded of this data set tells that they are wrong."""
    other = tmp_path / "other"
    assert make("dataset.batches.seed=1", f"--storage={other}") == 0
    assert make() == 0
    before = hashes(folder)
    (folder / ".making" / "made.jsonl").unlink()
    for path in other.glob("[!.]*"):
        (folder / path.name).write_bytes(path.read_bytes())
    assert make() == 0
    assert hashes(folder) == before
