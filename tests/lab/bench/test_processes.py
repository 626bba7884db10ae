"""Calls in processes of their own. Nothing here is a test of speed."""

import operator
import os
import time
from functools import partial
from pathlib import Path

import pytest
from processes import wait_until

from capsweep.lab.bench.comparison import CandidateError
from capsweep.lab.bench.processes import ask_each, start_calls


def test_a_process_computes_when_it_is_asked() -> None:
    with start_calls({"sleeps": (partial, time.sleep, 0.05)}) as calls:
        sleeps = calls["sleeps"]
        assert sleeps.seconds == []
        seconds = sleeps()
        assert seconds >= 0.05
        assert sleeps.seconds == [seconds]
        assert sleeps.peak > 10**7
        assert sleeps.process.pid != os.getpid()


def test_processes_that_are_asked_together_compute_at_the_same_time(tmp_path: Path) -> None:
    names = ("one", "two")
    with start_calls({name: (partial, meet, tmp_path, name, *names) for name in names}) as calls:
        answers = ask_each(list(calls.values()), operator.call)
    assert answers == ["met", "met"]


def meet(folder: Path, own: str, *names: str) -> str:
    """Come, and wait for all others."""
    (folder / own).touch()
    wait_until(lambda: all((folder / name).exists() for name in names), 60)
    return "met"


def test_all_processes_end_when_one_fails(capfd: pytest.CaptureFixture[str]) -> None:
    started = []

    def ask_all() -> None:
        candidates = {"sleeps": (partial, time.sleep, 0.05), "fails": (partial, divmod, 1, 0)}
        with start_calls(candidates) as calls:
            started.extend(calls.values())
            for call in started:
                call()

    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError: "):
        ask_all()
    assert [call.process.is_alive() for call in started] == [False, False]
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_process_that_dies_or_cannot_begin_says_so_when_it_is_asked() -> None:
    candidates = {"dies": (partial, time.sleep, 0), "cannot begin": (divmod, 1, 0)}
    with start_calls(candidates, is_awaited=False) as calls:
        with pytest.raises(CandidateError, match=r"^ZeroDivisionError: "):
            calls["cannot begin"]()
        with pytest.raises(CandidateError, match="its process ended"):
            calls["dies"].ask(kill_process)


def kill_process(_: object) -> None:
    """As a crash in native code ends it."""
    os.kill(os.getpid(), 9)


def test_repeated_calls_are_timed_together() -> None:
    with start_calls({"sleeps": (partial, time.sleep, 0.05)}) as calls:
        started = time.monotonic()
        seconds = calls["sleeps"](repeats=5)  # of one
        assert seconds >= 0.05
        assert time.monotonic() - started > 5 * seconds
