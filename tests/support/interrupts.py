"""Processes that are interrupted: how they hear it, and what is left of them."""

import signal
import time
from collections.abc import Callable
from pathlib import Path


def listen_to_ctrl_c() -> None:
    """As in a terminal; a background job, as a test run may be, hands down an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def descendants(root: int) -> set[int]:
    """The process and all below it, by id."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that still run; a zombie does not."""
    running = set()
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
            running.add(pid)
    return running


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Poll a condition; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.05)
