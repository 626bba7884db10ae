"""Claims: no two living processes run one cell; the dead are taken over, by one alone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
from clock import Clock
from foreign_claims import write_claim

from capsweep.ledger import lease
from capsweep.ledger.lease import LEASE_SECONDS, Claim, ClaimedElsewhereError, LeaseMonitor

SIGNATURE = "0123456789abcdef"
HOLDS = """
import sys
from pathlib import Path
from capsweep.ledger import lease
lease.take_lease(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()  # until it is killed, or the test ends
"""


@pytest.fixture
def other(tmp_path: Path):
    """Another process that holds the claim."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path), SIGNATURE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def foreign(tmp_path: Path, generation: int = 1, beat: int = 3, pid: int = 1) -> Claim:
    """A claim of a process on another machine."""
    write_claim(tmp_path, SIGNATURE, generation, beat, pid)
    found = lease.read_claim(tmp_path, SIGNATURE)
    assert found is not None
    return found


def test_a_living_process_keeps_its_claim(tmp_path: Path, other: subprocess.Popen) -> None:
    with pytest.raises(ClaimedElsewhereError, match=f"run by process {other.pid} on "):
        lease.take_lease(tmp_path, SIGNATURE)


def test_a_killed_process_is_taken_over_while_it_is_a_zombie(
    tmp_path: Path, other: subprocess.Popen
) -> None:
    os.kill(other.pid, signal.SIGKILL)
    stat = Path(f"/proc/{other.pid}/stat")
    while ") Z" not in stat.read_text():
        time.sleep(0.01)
    with lease.take_lease(tmp_path, SIGNATURE) as mine:
        assert mine.generation == 2
    assert list((tmp_path / "claims").iterdir()) == []


def test_a_number_used_again_is_another_process() -> None:
    me = lease.get_current_owner()
    assert not me.is_dead
    assert me.model_copy(update={"started": "0"}).is_dead


def test_a_beat_that_stands_still_for_a_lease_is_a_dead_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", clock := Clock())
    watch = LeaseMonitor()
    assert not watch.is_dead(foreign(tmp_path, beat=3))
    clock.now += LEASE_SECONDS
    assert not watch.is_dead(foreign(tmp_path, beat=4)), "it has beaten meanwhile"
    clock.now += LEASE_SECONDS
    dead = foreign(tmp_path, beat=4)
    assert watch.is_dead(dead)
    with lease.take_lease(tmp_path, SIGNATURE, dead_claim=dead.last_sign) as mine:
        assert mine.generation == 2


def test_a_lease_is_its_owners_and_not_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", clock := Clock())
    watch = LeaseMonitor()
    first = foreign(tmp_path, pid=1)
    assert not watch.is_dead(first)
    clock.now += LEASE_SECONDS  # meanwhile it ended, and another claimed the cell as the first did
    second = foreign(tmp_path, pid=2)
    assert not watch.is_dead(second)
    clock.now += LEASE_SECONDS - 1
    assert not watch.is_dead(second)
    clock.now += 1
    assert watch.is_dead(second)
    for other in (first.last_sign, foreign(tmp_path, pid=3).last_sign):
        foreign(tmp_path, pid=2)
        with pytest.raises(ClaimedElsewhereError):
            lease.take_lease(tmp_path, SIGNATURE, dead_claim=other)
    foreign(tmp_path, pid=2, beat=4)  # it beats just before it is taken over
    with pytest.raises(ClaimedElsewhereError):
        lease.take_lease(tmp_path, SIGNATURE, dead_claim=second.last_sign)


def test_a_clock_set_back_breaks_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", clock := Clock())
    watch = LeaseMonitor()
    watch.is_dead(foreign(tmp_path))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    os.utime(tmp_path / "claims" / f"{SIGNATURE}.000001", (2**31, 2**31))
    assert not watch.is_dead(foreign(tmp_path))
    clock.now += LEASE_SECONDS
    assert watch.is_dead(foreign(tmp_path))


def contend(ledger: Path, ready, won) -> None:
    """Take the claim at the same moment as the others; hold it until the end."""
    ready.wait()
    try:
        lease.take_lease(ledger, SIGNATURE, dead_claim="1 3 another boot 1 1")
    except ClaimedElsewhereError:
        won.put(0)
    else:
        won.put(1)
    ready.wait()  # who won holds it until all have tried


def test_of_many_that_take_over_at_once_one_wins(tmp_path: Path) -> None:
    foreign(tmp_path)
    context = multiprocessing.get_context("fork")
    ready, won = context.Barrier(8), context.Queue()
    contenders = [context.Process(target=contend, args=(tmp_path, ready, won)) for _ in range(8)]
    for process in contenders:
        process.start()
    assert sum(won.get(timeout=60) for _ in contenders) == 1
    for process in contenders:
        process.join()


def test_a_claim_beats_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    with lease.take_lease(tmp_path, SIGNATURE):
        first = lease.read_claim(tmp_path, SIGNATURE)
        assert first is not None

        def has_beaten() -> bool:
            later = lease.read_claim(tmp_path, SIGNATURE)
            return later is not None and later.beat > first.beat

        processes.wait_until(has_beaten, 60)


def test_who_was_taken_over_learns_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    with lease.take_lease(tmp_path, SIGNATURE) as mine:
        mine.raise_if_lost()
        foreign(tmp_path, generation=2)
        processes.wait_until(lambda: mine.is_lost, 60)
        with pytest.raises(lease.ClaimLostError, match="taken over"):
            mine.raise_if_lost()
    assert [path.name for path in (tmp_path / "claims").iterdir()] == [f"{SIGNATURE}.000002"]
