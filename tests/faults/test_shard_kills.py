"""The command that makes shards on a Ray of its own ends early: nothing of it goes on, and the same
command makes the rest."""

import signal
from pathlib import Path

import pytest
from disturbed_jobs import lives, wait_until
from made_folders import hashes, is_writing, started, times
from made_folders import wait_until as wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Ten shards of 43,110 examples and three of test digits: some tenths of a second each.
COMMAND = ["dataset.source=digits", "--pairs=300", "--shards=10"]


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
    said, faults = process.communicate(timeout=200)  # they have its pipes, too
    if number == signal.SIGKILL:  # two agents of Ray, which write nothing, end a minute later
        ours = [pid for pid, name in ours.items() if name.startswith("ray::_task")]
    assert ours
    wait_until(lambda: not any(lives(pid) for pid in ours))
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


def descendants(pid: int) -> dict[int, str]:
    """The names of all processes that it started, and of those that they did, by their ids."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(folder.name)] = (folder / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(folder.name)] = parent
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return {child: names[child] for child in found[1:]}
