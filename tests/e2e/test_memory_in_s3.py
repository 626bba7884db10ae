"""A sweep's memory in an object store: machines come and go, and its table stays the same."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import s3_server
from s3_server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = """\
question: Does {name} outlive its driver?
base: [model=cnn_small, epochs={epochs}, limit_batches=2, batch_size=16, trainer.accelerator=cpu,
       logger=csv]
"""
ROWS = """\
seeds: [0, 1, 2]
baseline: narrow
arms: {narrow: {fixed: ["model.hidden=8"]}, wide: {fixed: ["model.hidden=9"]}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""
SEARCH = """\
kind: search
seeds: [0]
search: {metric: val/error, trials: 4, scheduler: none}
arms: {cnn: {space: {optim.optimizer.lr: "tag(log, interval(0.00001, 0.03))"}}}
"""


class Machine:
    """A folder of its own, where commands are typed with STORAGE in one store."""

    def __init__(self, folder: Path, store: S3Server, environment: dict[str, str]) -> None:
        self.folder = folder
        folder.mkdir()
        own = {"STORAGE": store.url("bucket/x"), **s3_server.CREDENTIALS}
        self.environment = {**environment, **own}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "capsweep", *words],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, status: int = 0) -> str:
        process = self.start(*words)
        said, _ = process.communicate(timeout=240)
        assert process.returncode == status, said
        return said

    def table(self, name: str) -> str:
        return (self.folder / "outputs" / "reports" / name / "table.md").read_text()


Machines = Callable[[str], Machine]


@pytest.fixture
def machine(tmp_path: Path, store: S3Server, clean_environment: dict[str, str]) -> Machines:
    return lambda name: Machine(tmp_path / name, store, clean_environment)


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., str]:
    """A sweep file: what it asks for, and how long a cell takes."""

    def write(name: str, asks: str, epochs: int = 1) -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(SMALL.format(name=name, epochs=epochs) + asks)
        return str(path)

    return write


def test_added_seeds_are_in_a_table_that_is_made_elsewhere(
    machine: Machines, sweep: Callable[..., str], store: S3Server
) -> None:
    head, laptop, file = machine("head"), machine("laptop"), sweep("more", ROWS)
    words = ["--executor", "local", "--more-seeds", "5"]
    said = head.run("sweep", file, *words)
    assert "undecided" in said
    assert "(Bonferroni)" in head.table("more")
    assert "bucket/x/sweeps/more.seeds.json" in store.objects
    assert not (head.folder / "outputs" / "sweeps").exists()
    laptop.run("report", file)
    assert laptop.table("more") == head.table("more")
    again = laptop.run("sweep", file, *words)
    assert again.count("nothing to run: every cell is finished") == 1
    assert laptop.table("more") == head.table("more")


def cells_with(store: S3Server, name: str) -> set[str]:
    """Signatures of the cells that have a file of this name."""
    paths = (path.split("/") for path in list(store.objects) if path.endswith(f"/{name}"))
    return {part for path in paths for part in path if len(part) == 16}


def is_between(store: S3Server) -> bool:
    """Whether a trial is complete and the next one runs."""
    complete = cells_with(store, "result.json")
    return bool(complete) and cells_with(store, "config.yaml") > complete


def test_a_search_goes_on_when_its_driver_and_its_disk_are_gone(
    machine: Machines, sweep: Callable[..., str], store: S3Server
) -> None:
    head, other, laptop = machine("head"), machine("other"), machine("laptop")
    words = ["sweep", sweep("find", SEARCH, epochs=4), "--executor", "local"]
    lost = head.start(*words)
    try:
        processes.wait_until(lambda: is_between(store) or lost.poll() is not None, 240)
    finally:
        lost.kill()
        lost.communicate()
    assert lost.returncode == -signal.SIGKILL
    said = other.run(*words)
    assert f"4 trials, {seen(said)} seen before" in said
    assert seen(said) >= 1
    assert "4 of 4 trials seen, 4 complete" in said
    before = dict(store.objects)
    laptop.run("report", words[1])
    assert laptop.table("find") == other.table("find")
    assert {name: store.objects[name] for name in before} == before


def seen(said: str) -> int:
    """How many trials a search began with."""
    return int(said.partition(" seen before")[0].rpartition(" ")[2])


def test_two_drivers_of_one_ledger_at_once_end_with_the_same_table(
    machine: Machines, sweep: Callable[..., str], store: S3Server
) -> None:
    file = sweep("both", ROWS.replace("[0, 1, 2]", "[0]"), epochs=3)
    both = [machine("one"), machine("two")]
    drivers = [each.start("sweep", file, "--executor", "local") for each in both]
    said = [driver.communicate(timeout=240)[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], said
    assert both[0].table("both") == both[1].table("both")
    results = [name for name in store.objects if name.endswith("/result.json")]
    folders = [name.removesuffix("/result.json") for name in results]
    assert len(folders) == 2
    for folder in folders:
        attempt = json.loads(store.objects[f"{folder}/result.json"])["attempt"]
        assert f"{folder}/{attempt}/weights.ckpt" in store.objects
    begun = [store.asked["PUT", f"{folder}/config.yaml"] for folder in folders]
    assert max(begun) == 2  # both drivers ran it
    assert not [name for name in store.objects if name.endswith("/resume.ckpt")]
    fresh = machine("laptop")
    fresh.run("report", file)
    assert fresh.table("both") == both[0].table("both")
