"""Sweeps as jobs of a real cluster: submitted, watched, found again, stopped, refused."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
import ray_nodes
import shard_folders
from processes import listen_to_ctrl_c
from ray_nodes import Node

from capsweep.shards.reader import declare_data_set

pytestmark = pytest.mark.slow
SMALL = [
    *["logger=csv", "trainer.accelerator=cpu", "model.conv.channels=8", "model.primary.types=2"],
    "model.decoder.hidden=[16]",
]
FILE = """question: Does it run?
base: [{base}]
seeds: [0, 1]
baseline: capsnet
arms: {{capsnet: {{fixed: [model=capsnet_small]}}}}
table: {{rows: [arm], columns: [], metric: test/error}}
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A head that takes jobs. Its workers and jobs see no checkout on their path."""
    with ray_nodes.head(tmp_path_factory.mktemp("head"), dashboard=True) as found:
        processes.wait_until(lambda: _listens(str(found.jobs)), 60)  # the dashboard starts last
        yield found


@pytest.fixture
def laptop(head: Node, tmp_path: Path) -> "Laptop":
    return Laptop(head, tmp_path)


class Laptop:
    """The command, typed on a machine that reaches the head's job server alone."""

    def __init__(self, head: Node, folder: Path) -> None:
        self.head, self.folder, self.storage = head, folder, folder / "out"
        self.environment = {**head.driver(), "RAY_ADDRESS": "10.255.255.1:6379"}  # decides nothing

    def file(self, name: str, *base: str) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(FILE.format(base=", ".join(json.dumps(text) for text in base)))
        return path

    def submitting(self, file: Path) -> list[str]:
        """Words that submit, where a plain `sweep` does so too."""
        where = [f"cluster.jobs={self.head.jobs}", f"cluster.python={sys.executable}"]
        where += ["cluster=address", "cluster.submit=true", f"--storage={self.storage}"]
        return ["sweep", str(file), *where]

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "capsweep", *words],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=listen_to_ctrl_c,
        )

    def run(self, *words: str) -> "tuple[int, str]":
        process = self.start(*words)
        said, _ = process.communicate(timeout=120)
        return process.returncode, said

    def jobs(self, door: str, *words: str) -> "tuple[int, str]":
        return self.run(door, *words, "--address", str(self.head.jobs))


def _listens(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


def _read_to(process: "subprocess.Popen[str]", text: str) -> str:
    """What a process prints, to the first line that has a text."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"{text!r} is not in:\n{said}")


def test_a_sweep_whose_submitter_is_killed_goes_on_to_its_end(laptop: Laptop) -> None:
    file = laptop.file("mine", *SMALL, "dataset=digits", "epochs=3", "limit_batches=4")
    submitter = laptop.start(*laptop.submitting(file))
    _read_to(submitter, "2 cells: 0 done, 2 missing")
    submitter.kill()
    submitter.communicate()

    status, said = laptop.run(*laptop.submitting(file), "--detach")
    assert (status, "this command runs already: capsweep-mine-" in said) == (0, True)
    watcher = laptop.start("attach", "mine", "--address", str(laptop.head.jobs))
    _read_to(watcher, "attached to")
    watcher.send_signal(signal.SIGINT)
    said, _ = watcher.communicate()
    assert (watcher.returncode, "detached; the sweep goes on" in said) == (130, True)

    # Typed again: attached to the one that runs, else a driver that finds nothing to do.
    status, said = laptop.run(*laptop.submitting(file))
    assert status == 0, said
    assert f"report: {laptop.storage}/reports/mine/index.html" in said
    assert "other code" not in said
    status, said = laptop.jobs("attach", "mine")
    assert status == 0
    assert "cells are finished" in said or "every cell is finished" in said
    assert "capsnet" in said
    assert "\x1b" not in said
    assert len(list(laptop.storage.glob("ledger/*/*/result.json"))) == 2

    status, said = laptop.jobs("status", "mine", "--json")
    found = json.loads(said)
    (record,) = found["sweeps"]
    assert (found["cluster"]["nodes"], found["cluster"]["cpus"]["total"]) == (1, 2)
    assert (record["state"], record["exit_status"], record["sweep"]) == ("succeeded", 0, "mine")
    assert laptop.head.token.read_text() not in said


def test_stopping_leaves_no_process_behind(laptop: Laptop) -> None:
    whole = shard_folders.make(laptop.folder / "shards")
    file = laptop.file(
        "long",
        *["dataset=multimnist_shards", *declare_data_set(whole.content), "batch_size=16"],
        f"dataset.shards.folders=[{laptop.folder / 'shards'}]",
        *["dataset.batches.epoch_examples=60", "dataset.batches.test_examples=50"],
        *["dataset.batches.workers=1", "epochs=100000", *SMALL[1:]],
        *["logger=wandb", "logger.mode=offline"],
    )
    before = set(laptop.head.processes())
    status, said = laptop.run(*laptop.submitting(file), "--detach")
    assert status == 0, said
    processes.wait_until(
        lambda: len(list(laptop.storage.glob("ledger/*/*/metrics.jsonl"))) == 2, 120
    )
    during = {pid: processes.command(pid) for pid in set(laptop.head.processes()) - before}
    trackers = [pid for pid, words in during.items() if "capsweep.tracking.process" in words]
    trials = [pid for pid, words in during.items() if "ray::" in words]
    assert len(trackers) == 2
    assert len(trials) >= 3  # the job's supervisor and two trials
    assert any("capsweep sweep long --here" in words for words in during.values())

    status, said = laptop.jobs("stop", "long")
    assert (status, ": stopped; the same command goes on" in said) == (0, True)
    processes.wait_until(lambda: not any(processes.is_alive(pid) for pid in during), 15)

    def left() -> list[str]:
        """Ray's own idle workers aside, what the job started, after we looked too."""
        later = set(laptop.head.processes()) - before
        return [words for pid in later if "capsweep" in (words := processes.command(pid))]

    # W&B's monitor of the machine looks every three seconds whether W&B's core is still there.
    processes.wait_until(lambda: not left(), 15)
    assert not list(laptop.storage.glob("ledger/*/*/result.json"))
    status, said = laptop.jobs("attach", "long")
    assert status == 130
    assert "stopped: 0 of 2 cells are finished; the same command goes on" in said


def test_faults_are_one_line_with_the_cure(laptop: Laptop) -> None:
    file = laptop.file("mine", *SMALL, "dataset=digits", "epochs=1", "limit_batches=1")
    assert "no job of" in _refused(laptop.jobs("attach", "nothing"))
    nowhere = f"http://127.0.0.1:{ray_nodes.free_port()}"
    assert "open the tunnel" in _refused(laptop.run("status", "--address", nowhere))
    assert "has no job server" in _refused(laptop.run("sweep", str(file), "--detach"))
    wrong = [word for word in laptop.submitting(file) if "cluster.python" not in word]
    said = _refused(laptop.run(*wrong, "cluster.python=no-such-python"), last=True)
    assert "the head has no program no-such-python; set cluster.python" in said
    laptop.environment = laptop.head.driver("0" * 64)
    said = _refused(laptop.jobs("status"))
    assert "the cluster refuses the token of RAY_AUTH_TOKEN" in said


def _refused(ended: "tuple[int, str]", last: bool = False) -> str:
    """The one line of a refusal."""
    status, said = ended
    lines = said.splitlines()
    assert status == 2, said
    assert lines[-1].startswith("error: ")
    assert last or len(lines) == 1, said
    return lines[-1]
