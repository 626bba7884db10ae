"""A split is divided into shards without a gap; a shard is written whole or not at all."""

import json
import pickle
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import shard_folders
from hypothesis import given
from hypothesis import strategies as st

from capsweep.data.batches import Field
from capsweep.errors import ConfigError
from capsweep.shards import manifest, write
from capsweep.shards.job import Maker
from capsweep.shards.making import ShardTask, run_task
from capsweep.shards.manifest import Content, Origin, Shard
from capsweep.shards.write import Part


@dataclass(frozen=True)
class CountedJob:
    """A job of so many examples of one byte, which are never made."""

    splits: dict[str, int]

    @property
    def content(self) -> Content:
        return Content("counted", 1, {}, Origin("none", "0" * 64), self.splits)

    def fields(self) -> list[Field]:
        return [Field("images", "uint8", (1,))]

    def maker(self, split: str) -> Maker:
        raise NotImplementedError


def divide(splits: dict[str, int], shards: int | None) -> tuple[Part, ...]:
    return write.divide_into_parts(CountedJob(splits), shards)


@given(st.integers(1, 5000), st.integers(0, 5000), st.data())
def test_every_example_is_in_one_shard(train: int, test: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, train))
    splits = {"train": train, "test": test} if test else {"train": train}
    parts = divide(splits, shards)
    assert len({part.name for part in parts}) == len(parts)
    assert sum(part.split == "train" for part in parts) == shards
    for split, examples in splits.items():
        mine = [part for part in parts if part.split == split]
        places = [k for part in mine for k in range(part.first, part.first + part.examples)]
        assert places == list(range(examples))
        sizes = {part.examples for part in mine}
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= -(-train // shards)


def test_the_data_set_of_the_paper_is_cut_as_it_is_asked() -> None:
    parts = divide({"train": 60_000_000, "test": 10_000_000}, 600)
    assert len(parts) == 700
    assert {part.examples for part in parts} == {100_000}
    assert (parts[0].name, parts[-1].name) == ("train-00000.h5", "test-00099.h5")
    assert parts == divide({"train": 60_000_000, "test": 10_000_000}, None)


@pytest.mark.parametrize("shards", [0, -1, 11])
def test_more_shards_than_examples_or_none(shards: int) -> None:
    with pytest.raises(ConfigError, match=rf"SHARDS={shards}: must be 1 to 10"):
        divide({"train": 10}, shards)


@pytest.mark.parametrize(("train", "shards"), [(10**9, 190_000), (10**11, None)])
def test_more_shards_than_a_manifest_has_room_for(train: int, shards: int | None) -> None:
    with pytest.raises(ConfigError, match=r"^SHARDS=\d+: .* set SHARDS to fewer"):
        divide({"train": train, "test": train // 10}, shards)


def test_the_longest_manifest_is_one_that_is_read() -> None:
    digest, most = "0" * 64, 2**50  # examples and bytes
    line = json.dumps(asdict(Shard("validation-000000.h5", "validation", most, most, most, digest)))
    assert (len(line) + 4) * write.MOST < manifest.LARGEST


def test_a_shard_that_does_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^SHARDS=1: must be \d+ or more, since a shard is made"):
        divide({"train": 10**9}, 1)


UNPICKLE = """
import pickle, sys
job = pickle.load(sys.stdin.buffer)
import capsweep.shards.making
print(*{name.partition(".")[0] for name in sys.modules}, *sys.modules)
"""
HEAVY = {"hydra", "omegaconf", "pytorch_lightning", "torchvision", "sklearn", "scipy", "ray"}
PART = Part("train-00000.h5", "train", 0, 1200)


def test_a_job_is_unpickled_without_what_composes_and_trains() -> None:
    """It would cost each worker seconds and hundreds of megabytes."""
    command = [sys.executable, "-c", UNPICKLE]
    job = pickle.dumps(shard_folders.job())
    done = subprocess.run(command, input=job, capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    assert "data_prep.multimnist" in loaded
    assert not HEAVY & loaded


def test_what_is_known_and_whole_is_kept_and_anything_else_made(tmp_path: Path) -> None:
    job = shard_folders.job()
    made = run_task(job, ShardTask(tmp_path, PART))
    assert made.shard is not None
    assert made.is_made
    kept = run_task(job, ShardTask(tmp_path, PART, known=made.shard))
    assert (kept.is_made, kept.shard) == (False, made.shard)
    (tmp_path / PART.name).write_bytes(b"x" * made.shard.bytes)
    again = run_task(job, ShardTask(tmp_path, PART, known=made.shard))
    assert (again.is_made, again.shard) == (True, made.shard)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_shard_ends_it_without_a_trace(
    tmp_path: Path, number: signal.Signals
) -> None:
    job, starts = shard_folders.job(), []
    make = job.maker("train")

    def interrupt(start: int, stop: int):
        starts.append(start)
        signal.raise_signal(number)
        return make(start, stop)

    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            write.write_shard(tmp_path, job, PART, interrupt)
    finally:
        signal.signal(number, before)
    assert starts == [0]
    assert list(tmp_path.iterdir()) == []
