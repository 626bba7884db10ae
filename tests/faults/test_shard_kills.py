"""The command that makes shards on a Ray of its own ends early: nothing of it goes on, and the same
command makes the rest."""

import signal
from pathlib import Path

import pytest
from disturbed_jobs import lives, wait_until
from made_folders import hashes, is_writing, started, times
from made_folders import wait_until as wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Ten shards of 100,590 examples and three of test digits: half a second each.
COMMAND = ["dataset.source=digits", "--pairs=700", "--shards=10"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process makes."""
    folder = tmp_path_factory.mktemp("undisturbed") / "pairs"
    process = started(folder, *COMMAND, "--executor=local")
    said, faults = process.communicate()
    assert process.returncode == 0, said + faults
    return hashes(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_driver_with_a_ray_of_its_own_that_ends_early(
    tmp_path: Path, undisturbed: dict[str, str], number: signal.Signals
) -> None:
    folder = tmp_path / "pairs"
    process = started(folder, *COMMAND, "--executor=ray")
    wait_for(process, lambda: is_writing(folder, "train-00004.h5"))
    ours = descendants(process.pid)
    process.send_signal(number)
    said, faults = process.communicate(timeout=60)  # they have its pipes, too
    wait_until(lambda: not any(lives(pid) for pid in ours))
    assert len(ours) > 3
    there, written = hashes(folder), times(folder)
    whole = {name: sha256 for name, sha256 in there.items() if name.endswith(".h5")}
    assert whole.items() <= undisturbed.items()
    assert "index.json" not in there
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "run the same command again" in said + faults
        assert not list(folder.glob(".*.tmp"))
    again = started(folder, *COMMAND, "--executor=ray")
    said, faults = again.communicate()
    assert again.returncode == 0, said + faults
    assert hashes(folder) == undisturbed
    assert not list(folder.glob(".*.tmp"))
    kept = [name for name in whole if times(folder)[name] == written[name]]
    assert len(kept) >= len(whole) - 2  # of each worker one may not have been recorded any more


def descendants(pid: int) -> list[int]:
    """All processes that it started, and those that they did."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
