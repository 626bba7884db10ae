"""How a watcher ends where the driver of a sweep did not end by itself."""

import io
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from capsweep.cli import attach
from capsweep.cluster.client import SweepJob
from capsweep.cluster.job_names import Name

NAME = Name("ablation", "01234567")
JOB = SweepJob(str(NAME), NAME, "RUNNING", "exec python", "", 0.0, None, None)


class Head:
    """A job server whose job has ended so."""

    address = "http://127.0.0.1:8265"

    def __init__(self, status: int) -> None:
        self.status = status

    def of(self, submission_id: str) -> SweepJob:
        return replace(JOB, state="FAILED", status=self.status)

    def log(self, submission_id: str) -> str:
        return "plan\n"

    async def follow(self, submission_id: str) -> AsyncIterator[str]:
        yield "plan\n"


@pytest.mark.parametrize(
    ("status", "said", "shell"),
    [
        (-9, "its driver was killed (SIGKILL); the same command goes on", 137),
        (-40, "its driver was killed (signal 40); the same command goes on", 168),
        (1, None, 1),
    ],
)
def test_a_driver_that_was_killed_is_told(status: int, said: str | None, shell: int) -> None:
    out = io.StringIO()
    head: Any = Head(status)
    assert attach.watch(head, JOB, Console(file=out, width=200), lambda *found: None) == shell
    assert (said or "attached to") in out.getvalue()
    assert ("killed" in out.getvalue()) == (said is not None)
