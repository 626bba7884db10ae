"""What is told while shards are made, on a terminal and in a log."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from capsweep.data.shards.manifest import Shard
from capsweep.data_prep.making import progress
from capsweep.data_prep.making.progress import ShardProgress, duration
from capsweep.data_prep.making.shard import Part
from capsweep.data_prep.making.work import Outcome, Work


def works(count: int) -> list[Work]:
    return [Work(Path("/x"), Part(f"train-{n:05d}.h5", "train", n * 10, 10)) for n in range(count)]


def outcome(work: Work, made: bool = True, cause: str | None = None) -> Outcome:
    there = None if cause else Shard(work.part.name, "train", work.part.first, 10, 99, "0" * 64)
    return Outcome(work.part, there, made and cause is None, "node", 1.0, cause)


def test_a_line_counts_what_is_made_kept_and_failed() -> None:
    todo = works(4)
    with ShardProgress(Console(file=io.StringIO()), todo, rate=1.0) as shown:
        assert "0 made, 0 kept, 0 failed of 4 shards, about 40 s left" in shown.status()
        shown.ended(outcome(todo[0]))
        shown.ended(outcome(todo[1], made=False))
        shown.ended(outcome(todo[2], cause="full"))
        assert shown.status().startswith("1 made, 1 kept, 1 failed of 4 shards, ")
        assert "examples/s, about 0 s left" in shown.status()


def test_a_log_gets_whole_lines_and_not_one_for_every_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    todo, log = works(50), io.StringIO()
    with ShardProgress(Console(file=log, width=300), todo, rate=1.0) as shown:
        for work in todo[:25]:
            shown.ended(outcome(work))
        assert log.getvalue() == ""
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
        shown.ended(outcome(todo[25]))
    (line,) = log.getvalue().splitlines()
    assert line.startswith("26 made, 0 kept, 0 failed of 50 shards")
    assert "\x1b" not in line


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    todo, screen = works(2), io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with ShardProgress(console, todo, rate=1.0) as shown:
        for work in todo:
            shown.ended(outcome(work))
    assert "2 made, 0 kept, 0 failed of 2 shards" in screen.getvalue()


def test_durations_are_for_people() -> None:
    assert [duration(s) for s in (1, 119, 121, 7300)] == ["1 s", "119 s", "2 min", "2.0 h"]
