"""What a worker is, and what it does with one shard."""

import errno
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import shard_folders

from capsweep.data_prep import jobs
from capsweep.data_prep.making import shard, worker
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.making.sink import LateSignals
from capsweep.data_prep.making.work import Work

UNPICKLE = """
import pickle, sys
job = pickle.load(sys.stdin.buffer)
from capsweep.data_prep.making import worker
names = sorted({name.partition(".")[0] for name in sys.modules})
print(*names, *[name for name in sys.modules if name.startswith("capsweep.")])
"""
HEAVY = {"hydra", "omegaconf", "pytorch_lightning", "torchvision", "sklearn", "scipy", "ray"}
PART = Part("train-00000.h5", "train", 0, 1200)


def test_a_job_is_unpickled_without_what_composes_and_trains() -> None:
    """It would cost every worker seconds and hundreds of megabytes."""
    given = pickle.dumps(jobs.kind("multimnist").prepare(["dataset.source=digits"]))
    command = [sys.executable, "-c", UNPICKLE]
    loaded = set(
        subprocess.run(command, input=given, capture_output=True, check=True)
        .stdout.decode()
        .split()
    )
    assert "capsweep.data_prep.multimnist" in loaded
    assert not HEAVY & loaded
    assert not {name for name in loaded if name.startswith("capsweep.config")}


def test_what_is_known_and_whole_is_kept_and_anything_else_made(tmp_path: Path) -> None:
    job = shard_folders.job()
    made = worker.do(job, Work(tmp_path, PART))
    assert (made.made, made.cause) == (True, None)
    kept = worker.do(job, Work(tmp_path, PART, known=made.shard))
    assert (kept.made, kept.shard) == (False, made.shard)
    (tmp_path / PART.name).write_bytes(b"x" * made.shard.bytes)
    again = worker.do(job, Work(tmp_path, PART, known=made.shard))
    assert (again.made, again.shard) == (True, made.shard)


def test_a_folder_that_is_not_there_is_a_cause_and_no_exception(tmp_path: Path) -> None:
    outcome = worker.do(shard_folders.job(), Work(tmp_path / "none", PART))
    assert outcome.shard is None
    assert outcome.number == errno.ENOENT
    assert f"{tmp_path / 'none'}: No such file or directory; " in str(outcome.cause)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_shard_ends_it_without_a_trace(
    tmp_path: Path, number: signal.Signals
) -> None:
    """HDF5 is not interrupted, but told to end after a block."""
    job, asked = shard_folders.job(), []
    make = job.maker("train")

    def interrupted(start: int, stop: int):
        asked.append(start)
        signal.raise_signal(number)
        return make(start, stop)

    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            shard.write(tmp_path, job, PART, interrupted)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert asked == [0]
    assert list(tmp_path.iterdir()) == []


def test_a_handler_that_lets_a_signal_pass_does_not_name_a_part_of_a_shard(tmp_path: Path) -> None:
    job = shard_folders.job()
    make = job.maker("train")

    def interrupted(start: int, stop: int):
        signal.raise_signal(signal.SIGTERM)
        return make(start, stop)

    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with pytest.raises(KeyboardInterrupt):
            shard.write(tmp_path, job, PART, interrupted)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(tmp_path.iterdir()) == []


def test_signals_of_a_quiet_block_are_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with LateSignals() as signals:
        assert not signals.asked
    assert signal.getsignal(signal.SIGINT) is before


def test_what_was_refused_is_told_by_the_system_or_in_words_by_hdf5() -> None:
    assert worker.number_of(OSError(errno.ENOSPC, "full")) == errno.ENOSPC
    assert worker.number_of(RuntimeError("write failed: time = ..., errno = 28, error")) == 28
    assert worker.number_of(RuntimeError("something else")) is None
