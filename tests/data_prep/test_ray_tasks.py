"""Shards as tasks of a real Ray of two nodes: the files of the local engine, whatever dies."""

from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
import small_disks
from disturbed_jobs import Disturbed, importable
from waiting import until

from capsweep.data_prep import multimnist
from capsweep.data_prep.making import worker
from capsweep.data_prep.making.ray_tasks import RayTasks
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.making.work import Outcome, Work
from capsweep.data_prep.multimnist import MultiMnist

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its sockets and its files of logs to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SHARD = 3000  # examples: three stretches


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Two nodes on this machine, of one core each, that work in a folder of their own."""
    with importable(), pytest.MonkeyPatch.context() as patch:
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
def job() -> MultiMnist:
    return multimnist.prepare(["dataset.source=digits"], with_sources=True)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "shards"
    made.mkdir()
    return made


@pytest.fixture
def lines() -> list[str]:
    """What the engine told while it ran."""
    return []


@pytest.fixture
def engine(cluster, lines: list[str]) -> RayTasks:
    return RayTasks(cluster.address, lines.append, seen_within=0.5)


def works(folder: Path, count: int = 4) -> list[Work]:
    parts = [Part(f"train-{i:05}.h5", "train", i * SHARD, SHARD) for i in range(count)]
    return [Work(folder, part) for part in parts]


def never() -> bool:
    return False


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(job: MultiMnist, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a process makes by itself."""
    folder = tmp_path_factory.mktemp("local")
    assert all(worker.do(job, work).made for work in works(folder))
    return contents(folder)


def test_the_shards_are_those_of_the_local_engine_to_the_byte(
    engine: RayTasks, job: MultiMnist, folder: Path, undisturbed: dict[str, bytes]
) -> None:
    assert engine.cores() == 2
    outcomes = list(engine.run(job, works(folder), never))
    assert sorted(outcome.part.name for outcome in outcomes) == sorted(undisturbed)
    assert all(outcome.made and outcome.shard for outcome in outcomes)
    assert contents(folder) == undisturbed
    known = {outcome.part.name: outcome.shard for outcome in outcomes}
    again = [Work(work.folder, work.part, known[work.part.name]) for work in works(folder)]
    assert not any(outcome.made for outcome in engine.run(job, again, never))


def test_a_shard_whose_worker_is_killed_is_made_by_another(
    engine: RayTasks,
    job: MultiMnist,
    folder: Path,
    notes: Path,
    lines: list[str],
    undisturbed: dict[str, bytes],
) -> None:
    killed = Disturbed(job, notes, at=(SHARD + 1500,), fault="kill")
    outcomes = list(engine.run(killed, works(folder), never))
    assert len(outcomes) == 4
    assert [outcome.cause for outcome in outcomes] == [None] * 4
    assert len(killed.victims()) == 1
    [line] = lines
    assert "train-00001.h5: failed on" in line
    assert "tried again on another node, 2 of 3 times" in line
    whole = contents(folder)
    [left] = whole.keys() - undisturbed.keys()  # for the next run to take away
    assert left.startswith(".train-00001.h5.")
    del whole[left]
    assert whole == undisturbed


def test_a_shard_that_kills_every_worker_is_given_up_and_the_others_are_made(
    engine: RayTasks, job: MultiMnist, folder: Path, notes: Path, lines: list[str]
) -> None:
    killed = Disturbed(job, notes, at=(SHARD + 1500,), fault="kill", times=99)
    outcomes = list(engine.run(killed, works(folder), never))
    [lost] = [outcome for outcome in outcomes if outcome.shard is None]
    assert lost.part.name == "train-00001.h5"
    assert "the worker process is gone" in (lost.cause or "")
    assert "run the same command again" in (lost.cause or "")
    assert not lost.is_common
    first, second, _ = (node for _, node in killed.victims())
    assert first != second
    assert "another node" in lines[0]
    assert "any node, since no other has room" in lines[1]
    assert len(outcomes) == 4


def test_an_error_of_the_code_is_told_and_not_repeated(
    engine: RayTasks, job: MultiMnist, folder: Path, notes: Path
) -> None:
    wrong = Disturbed(job, notes, at=(0,), fault="error", times=99)
    [outcome] = engine.run(wrong, works(folder, 1), never)
    assert outcome.cause.startswith("ValueError: no such example")
    assert outcome.is_common
    assert len(wrong.victims()) == 1
    assert contents(folder) == {}


def test_a_full_disk_is_told_once_and_nothing_more_is_begun(
    engine: RayTasks, job: MultiMnist, small_disk: Path, lines: list[str]
) -> None:
    outcomes: list[Outcome] = []
    for outcome in engine.run(job, works(small_disk, 40), lambda: bool(outcomes)):
        outcomes.append(outcome)
    assert len(outcomes) <= 4
    assert all(
        "No space left" in (outcome.cause or "") and outcome.is_common for outcome in outcomes
    )
    assert lines == []
    assert contents(small_disk) == {}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    with small_disks.small_disk(tmp_path / "disk", 2) as folder:
        yield folder


def test_a_shard_that_is_not_seen_here_is_a_fault_of_the_folder(
    engine: RayTasks, job: MultiMnist, cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that is another folder on each node, as a disk of its own would be."""
    for node in (tmp_path, cluster.folder):
        (node / "shards").mkdir()
    monkeypatch.chdir(tmp_path)
    [outcome] = engine.run(job, works(Path("/proc/self/cwd/shards"), 1), never)
    assert outcome.shard is None
    assert outcome.is_common
    assert "STORAGE must be a folder that all nodes share" in (outcome.cause or "")
    assert len(contents(cluster.folder / "shards")) == 1


def test_shards_of_a_node_that_dies_are_made_on_others(
    engine: RayTasks,
    job: MultiMnist,
    cluster,
    folder: Path,
    notes: Path,
    undisturbed: dict[str, bytes],
) -> None:
    with importable():
        node = cluster.add_node(num_cpus=1, num_gpus=0)
    cluster.wait_for_nodes()
    starts = tuple(work.part.first for work in works(folder))
    paused = Disturbed(job, notes, at=starts, fault="wait", times=3)
    dead: list[int] = []

    def kill_it_when_all_are_at_work() -> bool:
        if not dead and len(paused.victims()) == 3:
            dead.extend(pid for pid, where in paused.victims() if where == node.node_id)
            cluster.remove_node(node, allow_graceful=False)
        if dead and not processes.is_alive(dead[0]):
            paused.go()
        return False

    outcomes = list(engine.run(paused, works(folder), kill_it_when_all_are_at_work))
    assert [outcome.cause for outcome in outcomes] == [None] * 4
    assert len(dead) == 1
    assert undisturbed.items() <= contents(folder).items()


def test_ctrl_c_leaves_neither_a_worker_nor_a_temporary_file(
    engine: RayTasks, job: MultiMnist, folder: Path, notes: Path
) -> None:
    paused = Disturbed(job, notes, at=(0,), fault="wait")
    seconds_long = [Work(folder, Part("train-00000.h5", "train", 0, 1_000_000))]

    def interrupted() -> bool:
        if paused.victims():
            paused.go()
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        list(engine.run(paused, seconds_long, interrupted))
    assert contents(folder) == {}
    [(pid, _)] = paused.victims()
    until(lambda: not processes.is_alive(pid), 60)
