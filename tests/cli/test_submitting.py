"""What is said of a sweep that was submitted before."""

from typing import Any

import pytest

from capsweep import cli
from capsweep.cluster import job_names, job_server, submit
from capsweep.cluster.client import SweepJob


class Head:
    """Where a job would be submitted to."""

    address = "http://127.0.0.1:8265"


def _submitted(code: str) -> SweepJob:
    name = job_names.of("ablation", ["sweep", "ablation"])
    return SweepJob(str(name), name, "RUNNING", "exec python", "", 0.0, None, None, code)


@pytest.mark.parametrize("is_other", [False, True])
def test_a_job_that_runs_already_with_other_code_is_named_as_that(
    is_other: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "another" if is_other else submit.code_here()

    def running(*asked: Any) -> tuple[SweepJob, bool]:
        return _submitted(code), False

    monkeypatch.setattr(job_server, "jobs_at", lambda cluster: Head())
    monkeypatch.setattr(submit, "submit", running)
    assert cli.main(["sweep", "ablation", "--seeds=1", "--cluster=address", "--detach"]) == 0
    said = capsys.readouterr().out
    assert "this command runs already" in said
    assert ("it runs other code than that here; to run this, stop it" in said) == is_other
