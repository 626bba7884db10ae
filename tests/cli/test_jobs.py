"""Jobs of a cluster as commands see them: their cells, nodes, ends, and other code."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server

pytest.importorskip("ray")

from capsweep import cli
from capsweep.cli import jobs as commands
from capsweep.cluster import job_server, submit
from capsweep.cluster.client import Jobs, SweepJob

SWEEP = """\
question: How?
base: [experiment=digits, model=cnn_small]
seeds: [0]
baseline: cnn
arms: {cnn: {}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""
NAME = "capsweep-ablation-01234567"
JOB = SweepJob(f"{NAME}-1", NAME, "ablation", 1, "RUNNING", "exec python", "", 0.0, None, None)


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    file = tmp_path / "how.yaml"
    file.write_text(SWEEP)
    return str(file)


def make_job(sweep: str, storage: str) -> SweepJob:
    words = ["python", "-m", "capsweep", "sweep", sweep, "--here", f"--storage={storage}"]
    return replace(JOB, command=f"exec {shlex.join(words)}")


def test_cells_are_counted_where_the_ledger_can_be_read(sweep: str, store: S3Server) -> None:
    job = make_job(sweep, store.url("bucket/x"))
    assert commands.count_cells(job) == {"missing": 1}
    store.refuses = 403  # a laptop may watch what only the machines of the cluster may read
    assert commands.count_cells(job) is None


class Head:
    """A job server, and a client that gets its answers."""

    address = "http://127.0.0.1:8265"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def read_json(self, endpoint: str) -> Any:
        return self.answers["nodes" if "nodes" in endpoint else "cluster_status"]

    def read_job(self, job_id: str) -> SweepJob:
        return replace(JOB, state="FAILED", status=self.answers["status"])

    def read_log(self, job_id: str) -> str:
        return "plan\n"


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (
            {"loadMetricsReport": {"usage": {"CPU": [10.0, 64.0], "GPU": [2.5, 4.0]}}},
            "2 nodes, 2.5 of 4 GPUs in use, 10 of 64 CPUs in use",
        ),
        ({"loadMetricsReport": {"usage": {}}}, "2 nodes, 4 GPUs, 64 CPUs"),
        (None, "2 nodes, 4 GPUs, 64 CPUs"),
    ],
)
def test_status_has_what_the_living_nodes_have(report: Any, text: str) -> None:
    head = {"state": "ALIVE", "resources_total": {"CPU": 4.0, "memory": 1e9}}
    worker = {"state": "ALIVE", "resources_total": {"CPU": 60.0, "GPU": 4.0}}
    nodes = {"data": {"result": {"result": [head, worker, {**worker, "state": "DEAD"}]}}}
    server = Jobs.__new__(Jobs)
    answers: Any = Head(nodes=nodes, cluster_status={"data": {"clusterStatus": report}})
    server.address, server._client = "", answers
    assert commands._describe_nodes(server.read_nodes()) == text


@pytest.mark.parametrize(
    ("status", "text", "shell"),
    [(-9, "its driver was killed (signal 9)", 137), (1, "attached to", 1)],
)
def test_a_driver_that_was_killed_is_reported(
    status: int, text: str, shell: int, capsys: pytest.CaptureFixture[str]
) -> None:
    server: Any = Head(status=status)
    assert commands.watch_job(server, JOB) == shell
    printed = capsys.readouterr().out
    assert text in printed
    assert ("killed" in printed) == (status < 0)
    assert "other code" not in printed


def test_a_job_that_runs_other_code_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    server: Any = Head(status=0)
    commands.watch_job(server, replace(JOB, code="another"))
    assert "it runs other code than that here" in capsys.readouterr().out


def test_a_command_that_runs_already_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_server, "open_jobs", lambda cluster: Head())
    monkeypatch.setattr(submit, "submit_sweep", lambda *arguments: (JOB, False))
    assert cli.main(["sweep", "ablation", "--seeds=1", "--cluster=address", "--detach"]) == 0
    assert "this command runs already" in capsys.readouterr().out


def test_credentials_in_an_address_are_refused_and_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["status", "--address=https://me:secret@head:8265"]) == 2
    printed = capsys.readouterr()
    assert "set RAY_AUTH_TOKEN" in printed.err
    assert "secret" not in printed.err + printed.out
