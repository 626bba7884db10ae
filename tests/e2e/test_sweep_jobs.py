"""Sweeps as jobs of a real cluster: submitted, watched, found again, stopped, refused."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import commands
import processes
import pytest
import ray_nodes
import shard_folders
from commands import Process
from ray_nodes import Node

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
    with ray_nodes.running_head(tmp_path_factory.mktemp("head"), dashboard=True) as node:
        port = int(str(node.jobs).rpartition(":")[2])

        def is_listening() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        processes.wait_until(is_listening, 60)  # the dashboard starts last
        yield node


@pytest.fixture
def laptop(head: Node, tmp_path: Path) -> "Laptop":
    return Laptop(head, tmp_path)


class Laptop:
    """The command, typed on a machine that reaches the head's job server alone."""

    def __init__(self, head: Node, folder: Path) -> None:
        self.head, self.folder, self.storage = head, folder, folder / "out"
        self.address = [f"RAY_ADDRESS={head.jobs}"]
        self.environment = {
            **head.make_environment(),
            "RAY_ADDRESS": "10.255.255.1:6379",
        }  # decides nothing

    def write_sweep(self, name: str, *base: str) -> list[str]:
        """The words that submit a new sweep, where a plain `sweep` does so too."""
        path = self.folder / f"{name}.yaml"
        path.write_text(FILE.format(base=", ".join(json.dumps(text) for text in base)))
        where = [*self.address, "CLUSTER=address", f"STORAGE={self.storage}"]
        return ["sweep", str(path), *where, "cluster.submit=true"]

    def start(self, *words: str) -> Process:
        return commands.start(*words, env=self.environment, folder=self.folder)

    def run(self, *words: str, status: int = 0) -> str:
        return commands.read_to_end(self.start(*words), status, seconds=120)


def test_a_sweep_whose_submitter_is_killed_goes_on_to_its_end(laptop: Laptop) -> None:
    submit = laptop.write_sweep("mine", *SMALL, "dataset=digits", "epochs=3", "limit_batches=4")
    submitter = laptop.start(*submit)
    commands.read_to(submitter, "2 cells: 0 done, 2 missing")
    submitter.kill()
    submitter.communicate()

    assert "this command runs already: capsweep-mine-" in laptop.run(*submit, "--detach")
    watcher = laptop.start("attach", "mine", *laptop.address)
    commands.read_to(watcher, "attached to")
    watcher.send_signal(signal.SIGINT)
    assert "detached; the sweep continues" in commands.read_to_end(watcher, 0)

    # Typed again: attached to the one that runs, else a driver that finds nothing to do.
    output = laptop.run(*submit)
    assert f"report: {laptop.storage}/reports/mine/index.html" in output
    assert "other code" not in output
    assert "could not be renewed" not in output
    output = laptop.run("attach", "mine", *laptop.address)
    assert "cells are finished" in output or "every cell is finished" in output
    assert "capsnet" in output
    assert "\x1b" not in output
    assert len(list(laptop.storage.glob("ledger/*/*/result.json"))) == 2

    output = laptop.run("status", submit[1], f"RAY_ADDRESS={laptop.head.address}")
    assert "succeeded, submitted " in output
    assert "cell" in output.splitlines()[-1]
    assert laptop.head.token.read_text() not in output


def test_stopping_leaves_no_process_behind(laptop: Laptop) -> None:
    endless = ["epochs=100000", *SMALL[1:], "logger=wandb", "logger.mode=offline"]
    dataset = shard_folders.declare_small(laptop.folder / "shards")
    submit = laptop.write_sweep("long", *dataset, *endless)
    before = set(laptop.head.list_processes())
    laptop.run(*submit, "--detach")
    processes.wait_until(
        lambda: len(list(laptop.storage.glob("ledger/*/*/metrics.jsonl"))) == 2, 120
    )
    during = {pid: processes.command(pid) for pid in set(laptop.head.list_processes()) - before}
    trackers = [pid for pid, words in during.items() if "capsweep.tracking.tracker" in words]
    trials = [pid for pid, words in during.items() if "ray::" in words]
    assert len(trackers) == 2
    assert len(trials) >= 3  # the job's supervisor and two trials
    assert any("capsweep sweep long --here" in words for words in during.values())

    output = laptop.run("stop", "long", *laptop.address)
    assert ": stopped; type the same command again to continue" in output
    processes.wait_until(lambda: not any(processes.is_alive(pid) for pid in during), 60)

    def list_left() -> list[str]:
        """Ray's own idle workers aside, what the job started, after we looked too."""
        later = set(laptop.head.list_processes()) - before
        return [words for pid in later if "capsweep" in (words := processes.command(pid))]

    # W&B's monitor of the machine looks every three seconds whether W&B's core is still there.
    processes.wait_until(lambda: not list_left(), 60)
    assert not list(laptop.storage.glob("ledger/*/*/result.json"))
    output = laptop.run("attach", "long", *laptop.address, status=130)
    assert "stopped: 0 of 2 cells are finished; type the same command again to continue" in output


def test_faults_are_one_line_with_the_cure(laptop: Laptop) -> None:
    submit = laptop.write_sweep("mine", *SMALL, "dataset=digits", "epochs=1", "limit_batches=1")
    output = laptop.run(*submit, "cluster.python=no-such-python", status=2)
    message = "the head has no program no-such-python; set cluster.python"
    assert message in output.splitlines()[-1]
    assert message in laptop.run("status", *laptop.address)
    nowhere = f"http://127.0.0.1:{ray_nodes.free_port()}"
    faults = {
        "no job of this sweep": ["attach", "nothing", *laptop.address],
        "open the tunnel": ["status", f"RAY_ADDRESS={nowhere}"],
        "has no job server": [*submit[:2], "--detach"],
        "the cluster refuses the token, which is read": ["status", *laptop.address],
    }
    for message, words in faults.items():
        if "token" in message:
            laptop.environment = laptop.head.make_environment("0" * 64)
        lines = laptop.run(*words, status=2).splitlines()
        assert [line for line in lines if not line.endswith(" ...")] == lines[-1:]  # what it does
        assert lines[-1].startswith("error: ")
        assert message in lines[-1]
    output = laptop.run("status", f"RAY_ADDRESS={laptop.head.address}", status=2)
    assert "the cluster refuses the token, which is read from RAY_AUTH_TOKEN" in output
