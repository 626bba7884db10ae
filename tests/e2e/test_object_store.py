"""Everything in an object store: machines come and go, and a sweep's table stays the same."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import commands
import processes
import pytest
import s3_server
from commands import Process
from s3_server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEARCH = """\
question: Does it outlive its driver?
base: [model=cnn_small, epochs=4, limit_batches=2, batch_size=16, trainer.accelerator=cpu,
       logger=csv]
kind: search
seeds: [0]
search: {metric: val/error, trials: 4, scheduler: none}
arms: {cnn: {space: {optim.optimizer.lr: "tag(log, interval(0.00001, 0.03))"}}}
"""


class Machine:
    """A folder and a cache of its own, where commands are typed with STORAGE in one store."""

    def __init__(self, folder: Path, store: S3Server, environment: dict[str, str]) -> None:
        self.folder = folder / "here"
        self.folder.mkdir(parents=True)
        own = {"STORAGE": store.url("bucket/x"), "XDG_CACHE_HOME": str(folder / "cache")}
        self.environment = {**environment, **own, **s3_server.CREDENTIALS}

    def start(self, *words: str) -> Process:
        return commands.start(*words, env=self.environment, folder=self.folder)

    def run(self, *words: str) -> str:
        return commands.read_to_end(self.start(*words))

    def write_search(self) -> str:
        path = self.folder / "find.yaml"
        path.write_text(SEARCH)
        return str(path)

    def read_table(self, name: str) -> str:
        return (self.folder / "outputs" / "reports" / name / "table.md").read_text()


Machines = Callable[[str], Machine]


@pytest.fixture
def machine(tmp_path: Path, store: S3Server, clean_environment: dict[str, str]) -> Machines:
    return lambda name: Machine(tmp_path / name, store, clean_environment)


def list_cells(store: S3Server, name: str) -> set[str]:
    """The folders of the cells that have a file of this name."""
    paths = [path for path in list(store.objects) if path.startswith("bucket/x/ledger/")]
    return {"/".join(path.split("/")[:5]) for path in paths if path.endswith(f"/{name}")}


def test_a_cell_is_trained_from_the_store_into_the_store(
    machine: Machines, store: S3Server, data_folder: Path
) -> None:
    for path in (data_folder / "mnist").glob("*.gz"):
        store.objects[f"bucket/x/data/mnist/{path.name}"] = path.read_bytes()
    host = machine("host")
    words = ["train", "dataset=mnist", "debug=fast", "model=cnn_small", "logger=csv"]
    assert "results: s3://bucket/x/ledger/" in host.run(*words)
    (cell,) = list_cells(store, "result.json")
    assert json.loads(store.objects[f"{cell}/result.json"])["steps"] == 2
    assert [path.name for path in host.folder.iterdir()] == ["outputs"]
    host.run(*words, "seed=1")
    assert store.count("GET", ".gz") == 4  # the second cell finds them in the cache
    _, *cells = host.run("ledger", "ls").splitlines()
    assert len(cells) == 2


def test_a_search_goes_on_when_its_driver_and_its_disk_are_gone(
    machine: Machines, store: S3Server
) -> None:
    head, other, laptop = machine("head"), machine("other"), machine("laptop")
    words = ["sweep", head.write_search(), "EXECUTOR=local"]

    def is_between_trials() -> bool:
        """Whether a trial is complete and the next one runs."""
        complete = list_cells(store, "result.json")
        return bool(complete) and list_cells(store, "config.yaml") > complete

    lost = head.start(*words)
    try:
        processes.wait_until(lambda: is_between_trials() or lost.poll() is not None, 240)
    finally:
        lost.kill()
    commands.read_to_end(lost, -signal.SIGKILL)
    output = other.run(*words)
    known = int(output.partition(" ended before")[0].rpartition(" ")[2])
    assert known >= 1
    assert f"4 trials, {known} ended before" in output
    assert "4 of 4 trials seen, 4 complete" in output
    before = dict(store.objects)
    laptop.run("report", words[1])
    assert laptop.read_table("find") == other.read_table("find")
    assert {name: store.objects[name] for name in before} == before
