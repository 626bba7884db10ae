"""What is seen of a job's cells from a machine that does not see its ledger."""

import shlex
from pathlib import Path

import pytest
from s3_objects import S3Server

from capsweep.cli import remote_status
from capsweep.cluster import job_names
from capsweep.cluster.client import SweepJob

SWEEP = """\
question: How?
base: [experiment=digits, model=cnn_small]
seeds: [0]
baseline: cnn
arms: {cnn: {}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    file = tmp_path / "how.yaml"
    file.write_text(SWEEP)
    return str(file)


def _job(sweep: str, storage: str) -> SweepJob:
    words = ["sweep", sweep, "--here", f"--storage={storage}"]
    name = job_names.of("how", words)
    command = f"exec {shlex.join(['python', '-m', 'capsweep', *words])}"
    return SweepJob(str(name), name, "RUNNING", command, "", 0.0, None, None)


def test_cells_of_a_ledger_in_sight_are_counted(sweep: str, store: S3Server) -> None:
    assert remote_status.cells(_job(sweep, store.url("bucket/x"))) == {"missing": 1}


def test_an_object_store_that_refuses_this_machine_is_not_in_sight(
    sweep: str, store: S3Server
) -> None:
    """A laptop may watch what only the machines of the cluster may read."""
    job = _job(sweep, store.url("bucket/x"))
    store.refuses = 403
    assert remote_status.cells(job) is None
    remote_status.report(job, None, None, lambda *found: pytest.fail("made of nothing"))


def test_a_folder_that_may_not_be_read_is_not_in_sight(
    sweep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger").mkdir()

    def refused(*asked: object) -> None:
        raise PermissionError(13, "Permission denied", "ledger")

    monkeypatch.setattr("capsweep.ledger.ledger.Ledger.entries", refused)
    assert remote_status.cells(_job(sweep, str(tmp_path))) is None
