"""Processes of this machine, as /proc tells of them. Any may end while it is looked at."""

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

PROC = Path("/proc")


def command(pid: int) -> str:
    """The words that it was started with, or what it calls itself; none when it has ended."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def parent(pid: int) -> int | None:
    """The process that it belongs to; None when it has ended."""
    stat = _read_stat(pid)
    return int(stat[1]) if stat else None


def is_alive(pid: int) -> bool:
    """Whether there is a process of that id that is more than a zombie."""
    return _read_stat(pid)[:1] not in ([], ["Z"])


def trackers(trainer: int) -> list[int]:
    """The processes that speak to W&B for one that trains."""
    return started_by(trainer, "capsweep.tracking.tracker")


def started_by(pid: int, module: str) -> list[int]:
    """The processes of a Python module that a process has started."""
    return sorted(
        other for other in _list_all() if parent(other) == pid and module in command(other)
    )


def descendants(root: int) -> list[int]:
    """All that it started, and what those did."""
    parents = {pid: parent(pid) for pid in _list_all()}
    family = [root]
    for member in family:
        family += [pid for pid, its in parents.items() if its == member]
    return family[1:]


def with_variable(variable: str) -> list[int]:
    """Those that were started with a variable in their environment, written NAME=value."""
    return [pid for pid in _list_all() if variable.encode() in _read(pid, "environ").split(b"\0")]


def has_ended(pid: int, seconds: float) -> bool:
    """Wait for a process that need not be our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], max(seconds, 0))[0])
    finally:
        os.close(handle)


def kill(pid: int) -> None:
    """End a process that may have ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def listen_to_ctrl_c() -> None:
    """As in a terminal; a background job, as a test run may be, hands down an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    """Poll a condition; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.05)


def _list_all() -> list[int]:
    return [int(path.name) for path in PROC.glob("[0-9]*")]


def _read_stat(pid: int) -> list[str]:
    """What stands behind its name: state, parent and numbers."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def _read(pid: int, file: str) -> bytes:
    try:
        return (PROC / str(pid) / file).read_bytes()
    except OSError:
        return b""  # it has ended
