"""Attached over connections that come and go: every line once, and the sweep's end as it was."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from capsweep.cluster import watch
from capsweep.cluster.client import SweepJob, UnreachableError
from capsweep.cluster.job_names import Name
from capsweep.cluster.watch import Watch

NAME = Name("ablation", "01234567")
JOB = SweepJob(str(NAME), NAME, "RUNNING", "exec python", "", 0.0, None, None)
LOG = "plan\none: 1 %\ntwo: 2 %\ntable\n"


class Flaky:
    """A job server whose log comes in pieces, one list of pieces for each connection."""

    address = "http://127.0.0.1:8265"

    def __init__(self, *connections: list[str], silent: int = 0) -> None:
        self.connections: Iterator[list[str]] = iter(connections)
        self.silent = silent  # how often nobody answers once the log has broken off
        self.is_over = False

    def of(self, submission_id: str) -> SweepJob:
        if self.silent and not self.is_over:
            self.silent -= 1
            raise UnreachableError("nobody")
        return replace(JOB, state="SUCCEEDED", status=0) if self.is_over else JOB

    def log(self, submission_id: str) -> str:
        return LOG

    async def follow(self, submission_id: str) -> AsyncIterator[str]:
        pieces = next(self.connections)
        for piece in pieces:
            yield piece
        self.is_over = "".join(pieces) in (LOG, LOG[:-6])
        if not self.is_over:
            raise UnreachableError("the socket is gone")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "AGAIN", 0.0)


def _watched(jobs: Flaky, patience: float = 60.0) -> tuple[str, list[str], SweepJob]:
    written: list[str] = []
    said: list[str] = []
    ended = Watch(jobs, written.append, said.append, patience).to_the_end(JOB)
    return "".join(written), said, ended


def test_the_log_is_printed_whole() -> None:
    text, said, ended = _watched(Flaky([LOG[:7], LOG[7:]]))
    assert (text, said, ended.status) == (LOG, [], 0)


def test_lines_that_come_after_the_end_are_printed() -> None:
    assert _watched(Flaky([LOG[:-6]]))[0] == LOG


def test_after_a_lost_connection_what_was_seen_is_not_printed_again() -> None:
    text, said, ended = _watched(Flaky([LOG[:9]], [LOG[:5], LOG[5:]], silent=3))
    assert (text, ended.status) == (LOG, 0)
    assert "is lost; the sweep goes on there" in said[0]
    assert said[1:] == ["connected again"]


def test_a_server_that_stays_away_ends_the_watch_and_not_the_sweep() -> None:
    with pytest.raises(
        UnreachableError, match=r"the sweep goes on there.*capsweep attach capsweep-"
    ):
        _watched(Flaky([LOG[:9]], silent=10**6), patience=0.05)
