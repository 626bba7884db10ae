"""Nothing is lost and nothing half-made is named as a shard, whatever happens to the command; the
same command again makes the rest."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_disks
from shard_folders import LARGER, Make, hashes, run_until, start_making, times

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
    process = start_making(folder)
    run_until(process, (folder / "train-00003.h5").exists)
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
    again = start_making(folder)
    said, _ = again.communicate()
    assert again.returncode == 0, said
    assert hashes(folder) == undisturbed
    after = times(folder)
    kept = [name for name in whole if after[name] == written[name]]
    assert len(kept) == len(whole)


def test_two_drivers_at_once(folder: Path, undisturbed: dict[str, str]) -> None:
    first = start_making(folder)
    run_until(first, (folder / "train-00000.h5").exists)
    first.send_signal(signal.SIGSTOP)  # it still has the folder when the second comes
    second = start_making(folder)
    _, refused = second.communicate()
    first.send_signal(signal.SIGCONT)
    said, _ = first.communicate()
    assert first.returncode == 0, said
    assert second.returncode == 2
    assert f"STORAGE={folder}: is being filled by another process" in refused
    assert hashes(folder) == undisturbed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    with small_disks.small_disk(tmp_path / "disk", 4) as place:
        yield place


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
    assert f"{folder}: No space left on device; free space there, correct" in said
    assert "FAILED 1: train-0000" in said  # no other was begun
    assert "run the same command again" in said
    assert not (folder / "index.json").exists()
    assert not list(folder.glob(".*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert make(f"--storage={folder}") == 0
    assert make(f"--storage={tmp_path / 'elsewhere'}") == 0
    assert hashes(folder) == hashes(tmp_path / "elsewhere")
