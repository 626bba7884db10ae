"""The command that makes shards ends early: nothing of it goes on, and the same command makes the
rest."""

import signal
from pathlib import Path

import processes
import pytest
from commands import read_to_end
from shard_folders import hashes, run_until, start_making, times

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Ten shards of 43,110 examples and three of test digits: some tenths of a second each.
COMMAND = ["dataset.source=digits", "PAIRS=300", "SHARDS=10"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process makes."""
    folder = tmp_path_factory.mktemp("undisturbed") / "pairs"
    read_to_end(start_making(folder, *COMMAND, "EXECUTOR=local"))
    return hashes(folder)


@pytest.mark.parametrize("executor", ["local", "ray"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_ends_early(
    tmp_path: Path, undisturbed: dict[str, str], number: signal.Signals, executor: str
) -> None:
    folder = tmp_path / "pairs"
    process = start_making(folder, *COMMAND, f"EXECUTOR={executor}")
    run_until(process, (folder / "train-00002.h5").exists)
    ours = processes.descendants(process.pid)
    tasks = [pid for pid in ours if processes.command(pid).startswith("ray::make_shard")]
    process.send_signal(number)
    output, _ = process.communicate(timeout=200)  # they have its pipes, too
    if executor == "ray" and number == signal.SIGKILL:
        ours = tasks  # two agents of Ray, which write nothing, end a minute later
    assert ours or executor == "local"
    # Agents of a Ray that had no time to end them go by themselves after about a minute.
    processes.wait_until(lambda: not any(processes.is_alive(pid) for pid in ours), 120)
    there, written = hashes(folder), times(folder)
    whole = {name: sha256 for name, sha256 in there.items() if name.endswith(".h5")}
    assert whole.items() <= undisturbed.items()
    assert "index.json" not in there
    if number != signal.SIGKILL:
        assert process.returncode == 130, output
        assert "type the same command again to continue" in output
        assert not list(folder.glob(".*.tmp"))
    read_to_end(start_making(folder, *COMMAND, f"EXECUTOR={executor}"))
    assert hashes(folder) == undisturbed
    assert not list(folder.glob(".*.tmp"))
    assert all(times(folder)[name] == written[name] for name in whole)
