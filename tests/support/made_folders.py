"""Folders that `capsweep data make` fills: what they hold, and the command in a process."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from interrupts import listen_to_ctrl_c

Make = Callable[..., int]

# 57,480 examples in forty shards and 14,400 in eleven, of the embedded digits: after the first ones
# there is time to see that they are there.
LARGER = ["dataset.source=digits", "--pairs=40", "--shards=40", "--executor=local"]


def hashes(folder: Path) -> dict[str, str]:
    """sha256 of every file that is the data set's, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def times(folder: Path) -> dict[str, int]:
    """When every file of the data set was written, in nanoseconds."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.is_file()}


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """`capsweep data make multimnist`, of LARGER unless told otherwise, in its own process."""
    told = [*(arguments or LARGER), f"--storage={folder}"]
    command = [sys.executable, "-m", "capsweep", "data", "make", "multimnist", *told]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_ctrl_c,
    )


def wait_until(process: "subprocess.Popen[str]", holds: Callable[[], bool]) -> None:
    """Return when it holds; the process must still run then."""
    while not holds():
        try:
            said, faults = process.communicate(timeout=0.005)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"it ended before: {said}{faults}")
