"""Whatever W&B does, a cell ends as it would without it, and pays at most 5 s."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import processes
import pytest
import tracking_processes
from offline_runs import epochs, runs
from wandb_server import KEY, Mode, WandbServer

from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content
from capsweep.tracking import tracker as trackers
from capsweep.tracking.child import KILL_SECONDS, Child, TrackingError
from capsweep.tracking.labels import Labels
from capsweep.tracking.tracker import PATIENCE, PAUSE_SECONDS, Tracker, TrackerPool

pytestmark = pytest.mark.slow

Train = Callable[..., dict[str, Any]]
ONLINE, OFFLINE = "logger.mode=online", "logger.mode=offline"
MAX_SECONDS = 5.0  # as conf/logger has it
SLOW: tuple[Mode, ...] = ("broken", "dead", "full")
# Of a machine that does other things too: what waits for W&B without a limit waits longer, and
# that the limits add up to the budget, a test by a clock of its own says.
SLACK_SECONDS = 2.5


def is_whole(result: dict[str, Any], storage: Path) -> bool:
    """Whether the ledger has every metric of a cell of two epochs, and W&B is said to have none."""
    found = content.read_content(Ledger(storage / "ledger"), result["signature"])
    assert result["status"] == found.status == "finished"
    assert result["tracking_fault"].endswith("capsweep wandb sync uploads it")
    assert 0 < result["tracking_seconds"] <= MAX_SECONDS + SLACK_SECONDS
    assert not list(storage.glob("wandb/synced/*"))
    return [row["epoch"] for row in found.rows] == [0, 1] and "test/error" in found.summary


@contextlib.contextmanager
def byte_by_byte() -> Iterator[int]:
    """A port at which an answer comes, one byte in a while: it never ends."""
    ended = threading.Event()

    def serve(listening: socket.socket) -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                client, _ = listening.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not ended.wait(0.2):
                client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("mode", ["refuse", "hang", *SLOW])
def test_a_server_that_does_not_work_costs_five_seconds_at_most(
    mode: Mode, train: Train, storage: Path, server: WandbServer
) -> None:
    server.mode = mode
    result = train(ONLINE)
    assert is_whole(result, storage)
    assert server.requests
    if mode == "refuse":
        assert "401" in result["tracking_fault"]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield closed.getsockname()[1]


@pytest.mark.parametrize("opened", [byte_by_byte, closed_port])
def test_an_answer_that_does_not_come_costs_five_seconds_at_most(
    opened: Callable[[], contextlib.AbstractContextManager[int]],
    train: Train,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with opened() as port:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        assert is_whole(train(ONLINE), storage)


def test_a_server_that_stops_answering_in_the_middle_leaves_the_run_to_the_sync(
    train: Train, storage: Path, server: WandbServer
) -> None:
    server.later(4, "hang")
    assert is_whole(train(ONLINE), storage)


def test_the_calls_of_training_return_at_once_while_a_server_hangs(
    small_cell: Callable[..., Cell], storage: Path, server: WandbServer, pool: TrackerPool
) -> None:
    server.mode = "hang"
    storage.mkdir()
    taken = []

    def timed(call: Callable[[], object]) -> object:
        started = time.monotonic()
        found = call()
        taken.append(time.monotonic() - started)
        return found

    cell = small_cell("logger=wandb", ONLINE)
    tracker = timed(lambda: Tracker(content.spec_of_cell(cell, storage, Labels()), pool))
    assert isinstance(tracker, Tracker)
    for epoch in range(1000):
        timed(lambda epoch=epoch: tracker.log({"epoch": epoch, "train/loss": 1.0}))
    timed(lambda: tracker.summarise({"params": 1}))
    assert max(taken[1:]) < SLACK_SECONDS
    assert tracker.fault is None
    timed(lambda: tracker.close(0))
    assert sum(taken) <= MAX_SECONDS + SLACK_SECONDS
    assert "in time" in str(tracker.fault)


class Silent(Child):
    """A process that is slow to start and never answers; its time is that of `clock`."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        clock[0] += 1.5

    def send(self, do: str, **what: Any) -> None:
        self.clock[0] += 0.01

    def raise_fault(self) -> None:
        self.clock[0] += 0.01

    def wait_for_answer(self, deadline: float) -> Mapping[str, Any]:
        self.clock[0] = max(self.clock[0], deadline)
        raise TrackingError("nothing")

    def kill(self) -> None:
        self.clock[0] += KILL_SECONDS


@pytest.mark.parametrize(("spent", "allowed"), [(0.0, 5.0), (3.0, 5.0), (0.0, 30.0)])
def test_all_that_is_waited_for_adds_up_to_what_is_allowed(
    spent: float,
    allowed: float,
    small_cell: Callable[..., Cell],
    storage: Path,
    pool: TrackerPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1e6]
    cell = small_cell("logger=wandb", ONLINE, f"logger.max_seconds={allowed}")
    opened = content.spec_of_cell(cell, storage, Labels())
    monkeypatch.setattr(trackers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(pool, "take", lambda: Silent(clock))
    tracker = Tracker(opened, pool, spent=spent)
    for epoch in range(10):
        tracker.log({"epoch": epoch})
        clock[0] += 60  # the training of an epoch is not paid by W&B
    tracker.close(0)
    assert tracker.fault is not None
    assert tracker.seconds == pytest.approx(allowed, abs=0.25)


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    """Processes that are started from here on find this code where they look for wandb."""
    first = folder / "first"
    first.mkdir()
    (first / "wandb.py").write_text(f"{code}\n")
    monkeypatch.setenv("PYTHONPATH", f"{first}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def test_without_wandb_the_cell_says_so_and_ends(
    train: Train, storage: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "raise ModuleNotFoundError(\"No module named 'wandb'\")")
    result = train(OFFLINE)
    assert is_whole(result, storage)
    assert "No module named 'wandb'" in result["tracking_fault"]


def test_a_tracking_process_that_cannot_be_started_is_a_fault(
    train: Train, storage: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    result = train(OFFLINE)
    assert is_whole(result, storage)
    assert "No such file" in result["tracking_fault"]


def test_a_tracking_process_that_is_killed_ends_nothing_but_tracking(
    train: Train, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill(row: dict[str, Any]) -> None:
        if row["epoch"] == 0:
            (pid,) = tracking_processes.of(os.getpid())
            os.kill(pid, signal.SIGKILL)

    result = train(OFFLINE, on_epoch=kill)
    assert is_whole(result, storage)
    assert "ended" in result["tracking_fault"]
    assert capsys.readouterr().err.count("W&B: ") == 1


def test_a_tracking_process_that_stands_still_is_killed(train: Train, storage: Path) -> None:
    stopped: list[int] = []

    def stop(row: dict[str, Any]) -> None:
        if row["epoch"] == 0:
            stopped.extend(tracking_processes.of(os.getpid()))
            os.kill(stopped[0], signal.SIGSTOP)

    assert is_whole(train(OFFLINE, on_epoch=stop), storage)
    assert processes.has_ended(stopped[0], seconds=5)
    assert train(OFFLINE, "seed=1")["tracking_fault"] is None


def test_after_faults_in_a_row_cells_do_not_pay_any_more(
    train: Train, storage: Path, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.mode = "refuse"
    for seed in range(PATIENCE):
        assert is_whole(train(ONLINE, f"seed={seed}"), storage)
    asked = len(server.requests)
    result = train(ONLINE, f"seed={PATIENCE}")
    assert result["tracking_fault"] is None
    assert len(server.requests) == asked
    assert epochs(runs(storage)[result["signature"]]) == [0, 1]
    assert "offline for a while" in capsys.readouterr().err


def test_patience_comes_back_with_time_and_is_one_fault_long_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1e6
    monkeypatch.setattr(trackers.time, "monotonic", lambda: now)
    pool = TrackerPool()
    pool.count_fault("online")
    assert pool.allowed_mode("online") == "online"
    pool.count_fault("online")
    assert (pool.allowed_mode("online"), pool.allowed_mode("offline")) == ("offline", "offline")
    now += PAUSE_SECONDS
    assert pool.allowed_mode("online") == "online"
    pool.count_fault("online")
    assert pool.allowed_mode("online") == "offline"
    for _ in range(PATIENCE):
        pool.count_fault("offline")
    assert (pool.allowed_mode("online"), pool.allowed_mode("offline")) == ("none", "none")


def test_a_cell_that_is_not_tracked_at_all_says_so(
    small_cell: Callable[..., Cell], storage: Path, pool: TrackerPool
) -> None:
    for _ in range(PATIENCE):
        pool.count_fault("offline")
    tracker = Tracker(
        content.spec_of_cell(small_cell("logger=wandb", OFFLINE), storage, Labels()), pool
    )
    tracker.log({"epoch": 0})
    tracker.close(0)
    assert "capsweep wandb sync uploads it" in str(tracker.fault)
    assert tracker.seconds < SLACK_SECONDS
    assert tracking_processes.of(os.getpid()) == []


@pytest.mark.parametrize("login", ["environment", "netrc"])
def test_no_file_has_the_key(
    login: str,
    train: Train,
    storage: Path,
    server: WandbServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if login == "netrc":
        netrc = tmp_path / "netrc"
        netrc.write_text(f"machine {server.url[7:]} login user password {KEY}\n")
        netrc.chmod(0o600)
        monkeypatch.setenv("NETRC", str(netrc))
        monkeypatch.delenv("WANDB_API_KEY")
    assert train(ONLINE)["tracking_fault"] is None
    server.mode = "refuse"
    assert train(ONLINE, "seed=1")["tracking_fault"] is not None
    with pytest.raises(Exception, match="stop_accuracy"):
        train(OFFLINE, "stop_accuracy=1.0", "dataset.validation=9")
    files = [path for path in storage.rglob("*") if path.is_file()]
    assert {"debug.log", "debug-internal.log", "provenance.json"} <= {path.name for path in files}
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
