"""Processes of this machine, as /proc tells of them. Any may end while it is looked at."""

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path


def command(pid: int) -> str:
    """The words that it was started with, or what it calls itself; none when it has ended."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def is_alive(pid: int) -> bool:
    """Whether there is a process of that id that is more than a zombie."""
    return _read_stat(pid)[:1] not in ([], ["Z"])


def trackers(pid: int) -> list[int]:
    """The processes that speak to W&B for one that has started them."""
    return sorted(
        other
        for other, parent in _list_parents().items()
        if parent == pid and "capsweep.tracking.tracker" in command(other)
    )


def descendants(root: int) -> list[int]:
    """All that it started, and what those did."""
    parents = _list_parents()
    family = [root]
    for member in family:
        family += [pid for pid, its in parents.items() if its == member]
    return family[1:]


def with_variable(variable: str) -> list[int]:
    """Those that were started with a variable in their environment, written NAME=value."""
    return [
        pid for pid in _list_parents() if variable.encode() in _read(pid, "environ").split(b"\0")
    ]


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


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    """Poll a condition; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.05)


def _list_parents() -> dict[int, int]:
    """The process that each one belongs to."""
    stats = {int(path.name): _read_stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    return {pid: int(stat[1]) for pid, stat in stats.items() if stat}


def _read_stat(pid: int) -> list[str]:
    """What stands behind its name: state, parent and numbers."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def _read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""  # it has ended
