"""Ctrl-C, SIGTERM and MAX_HOURS: checkpoints are kept, no failure is in the ledger, no process
is left, and the same command continues.
"""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import commands
import processes
import pytest
import shard_folders
from commands import Process

pytestmark = pytest.mark.slow

# So many epochs that none ends by itself.
LONG = ["epochs=100000", "limit_batches=1", "logger=csv"]
ALWAYS = "trainer.checkpoint_interval=0"  # a checkpoint at every epoch
LEAVING = "trainer.checkpoint_interval=86400"  # none but that of a cell that leaves
HOURS = ("0.004", "0.01", "0.04")  # a busy machine may take most of the first to start

Environment = dict[str, str]


@contextmanager
def running(words: Sequence[str], environment: Environment) -> Iterator[Process]:
    """`capsweep WORDS`, which a test that fails does not leave behind."""
    with commands.start(*words, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def read_epochs(storage: Path) -> dict[str, list[int]]:
    """The epochs in each cell's metrics.jsonl."""
    epochs = {}
    for path in storage.glob("ledger/*/*/metrics.jsonl"):
        lines = path.read_text().splitlines()
        epochs[path.parent.name] = [json.loads(line)["epoch"] for line in lines]
    return epochs


def count_epochs(storage: Path) -> int:
    """Epochs of all cells together."""
    return sum(map(len, read_epochs(storage).values()))


def count_checkpoints(storage: Path) -> int:
    return len(list(storage.glob("ledger/*/*/resume.ckpt")))


def check_unfinished(storage: Path) -> None:
    """No failure, no result, no epoch twice."""
    assert not list(storage.glob("ledger/*/*/error.txt"))
    assert not list(storage.glob("ledger/*/*/result.json"))
    for rows in read_epochs(storage).values():
        assert rows == list(range(len(rows)))


@pytest.mark.parametrize(
    ("executor", "number"),
    [("ray", signal.SIGINT), ("ray", signal.SIGTERM), ("local", signal.SIGINT)],
)
def test_a_signal_ends_a_sweep_and_nothing_is_left(
    small_sweep: Path,
    tmp_path: Path,
    clean_environment: Environment,
    executor: str,
    number: signal.Signals,
) -> None:
    words = ["sweep", str(small_sweep), "ROUTING=3", "SEEDS=1", f"EXECUTOR={executor}"]
    words += [f"STORAGE={tmp_path}", *LONG, ALWAYS]
    with running(words, clean_environment) as process:
        processes.wait_until(lambda: count_checkpoints(tmp_path) > 0, 200)
        family = [process.pid, *processes.descendants(process.pid)]
        send = os.killpg if number == signal.SIGINT else os.kill  # as a terminal, and as `kill`
        send(process.pid, number)
        output = commands.read_to_end(process, 130, seconds=60)
    assert "type the same command again to continue" in output
    assert "Traceback" not in output
    assert "SIGTERM received" not in output
    processes.wait_until(lambda: not any(processes.is_alive(pid) for pid in family), 60)
    assert count_checkpoints(tmp_path) > 0
    assert not any(tmp_path.glob("ledger/*/*/result.json"))


SHARDS = """question: Does it leave in order?
base: [model=capsnet_small]
seeds: [0]
baseline: capsnet
arms: {capsnet: {fixed: []}}
table: {rows: [arm], columns: [], metric: test/error}
"""


@pytest.mark.parametrize("is_sent_to_all", [False, True])
def test_a_sigterm_to_a_job_is_no_failure_of_its_cell(
    tmp_path: Path, clean_environment: Environment, is_sent_to_all: bool
) -> None:
    (tmp_path / "shards.yaml").write_text(SHARDS)
    words = ["sweep", str(tmp_path / "shards.yaml"), "EXECUTOR=array", "SHARD=1/1"]
    words += [f"STORAGE={tmp_path}", *shard_folders.declare_small(tmp_path / "shards")]
    words += [LEAVING, LONG[0], LONG[2]]
    words += ["trainer.accelerator=cpu", "model.conv.channels=8", "model.decoder.hidden=[16]"]
    with running(words, clean_environment) as process:
        processes.wait_until(lambda: count_epochs(tmp_path) > 2, 200)
        send = os.killpg if is_sent_to_all else os.kill
        send(process.pid, signal.SIGTERM)
        output = commands.read_to_end(process, 130, seconds=60)
    assert "ended early after an epoch" in output
    assert "a second SIGTERM ends it at once" in output
    # Where all processes have the signal, an epoch may not come to its end.
    assert is_sent_to_all or count_checkpoints(tmp_path) == 1
    check_unfinished(tmp_path)


def test_a_bounded_sweep_ends_at_an_epoch_and_the_same_command_goes_on(
    capsweep, small_sweep: Path, tmp_path: Path
) -> None:
    words = ["sweep", str(small_sweep), "SEEDS=1", "ROUTING=3", "RECON=off"]
    words += ["EXECUTOR=local", f"STORAGE={tmp_path}", *LONG, LEAVING]
    for _ in range(2):
        output, before, bounds = "", count_epochs(tmp_path), iter(HOURS)
        while count_epochs(tmp_path) == before:
            bound = next(bounds)
            ended = capsweep(*words, f"MAX_HOURS={bound}")
            output = ended.stdout + ended.stderr
            assert ended.returncode == 3, output
        assert "ended early after an epoch; its checkpoint is kept" in output
        assert "MAX_HOURS is reached: 0 of 2 cells are finished; type the same command" in output
        assert "Traceback" not in output
        check_unfinished(tmp_path)
        assert count_checkpoints(tmp_path) == 1
