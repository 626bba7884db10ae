"""Shards as tasks of a real Ray of two nodes: the files of the local engine, whatever dies."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from disturbed_jobs import disturb, making_importable

from capsweep.cli.data import prepare_job
from capsweep.shards import ray_tasks
from capsweep.shards.layout import ShardJob
from capsweep.shards.making import WANTED, MakingPlan, TaskRunner, make_shard
from capsweep.shards.manifest import STATE, ShardPart

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its sockets and its files of logs to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SHARD = 3000  # examples: three stretches


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Two nodes on this machine, of one core each, that work in a folder of their own."""
    with making_importable(), pytest.MonkeyPatch.context() as patch:
        from ray.cluster_utils import Cluster

        folder = tmp_path_factory.mktemp("nodes")
        patch.chdir(folder)
        nodes = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False},
        )
        nodes.add_node(num_cpus=1, num_gpus=0)
        nodes.wait_for_nodes()
    nodes.folder = folder
    yield nodes
    nodes.shutdown()


@pytest.fixture(scope="module")
def job() -> ShardJob:
    return prepare_job("multimnist", ["dataset.source=digits"], None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of shards, beside one for notes."""
    (tmp_path / "notes").mkdir()
    return begin(tmp_path / "shards")


PARTS = [ShardPart(f"train-{i:05}.h5", "train", i * SHARD, SHARD) for i in range(4)]


@pytest.fixture
def run_tasks(cluster) -> TaskRunner:
    return partial(ray_tasks.run_on_ray, address=cluster.address)


def begin(folder: Path) -> Path:
    """As the driver leaves a folder for its workers."""
    (folder / STATE).mkdir(parents=True)
    (folder / STATE / WANTED).touch()
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(job: ShardJob, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a process makes by itself."""
    folder = begin(tmp_path_factory.mktemp("local"))
    assert all(make_shard(job, folder, part).is_made for part in PARTS)
    return read_files(folder)


def test_the_shards_are_those_of_the_local_engine_to_the_byte(
    run_tasks: TaskRunner, job: ShardJob, folder: Path, undisturbed: dict[str, bytes]
) -> None:
    outcomes = list(run_tasks(MakingPlan(job, folder, PARTS)))
    assert sorted(outcome.part.name for outcome in outcomes) == sorted(undisturbed)
    assert all(outcome.is_made and outcome.shard for outcome in outcomes)
    assert read_files(folder) == undisturbed


def test_a_shard_whose_worker_is_killed_is_made_by_another(
    run_tasks: TaskRunner, job: ShardJob, folder: Path, undisturbed: dict[str, bytes]
) -> None:
    notes = folder.parent / "notes"
    killed = disturb(job, notes, at=SHARD + 1500)
    outcomes = list(run_tasks(MakingPlan(killed, folder, PARTS)))
    assert [outcome.cause for outcome in outcomes] == [""] * 4
    assert len(list(notes.iterdir())) == 1
    assert read_files(folder) == undisturbed


def test_a_shard_that_kills_each_worker_is_given_up_and_the_others_are_made(
    run_tasks: TaskRunner, job: ShardJob, folder: Path
) -> None:
    notes = folder.parent / "notes"
    killed = disturb(job, notes, at=SHARD + 1500, times=99)
    outcomes = list(run_tasks(MakingPlan(killed, folder, PARTS)))
    [lost] = [outcome for outcome in outcomes if outcome.shard is None]
    assert lost.part.name == "train-00001.h5"
    assert "the worker was lost (WorkerCrashedError" in lost.cause
    assert "type the same command again to continue" in lost.cause
    assert len(list(notes.iterdir())) == 1 + ray_tasks.RETRIES
    assert len(outcomes) == 4


def test_a_node_that_does_not_see_the_folder_is_a_fault_of_the_folder(
    run_tasks: TaskRunner, job: ShardJob, cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that is another folder on each node, as a disk of its own would be."""
    (cluster.folder / "shards").mkdir()
    begin(tmp_path / "shards")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="this node does not see the driver's folder"):
        list(run_tasks(MakingPlan(job, Path("/proc/self/cwd/shards"), PARTS[:1])))
    assert read_files(cluster.folder / "shards") == {}
