"""Scratch folders and files whose names say which process made them, so that what a killed process
left is told from what a living one uses.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from capsweep.storage.files import hash_bytes

OWNED = re.compile(r".*-(?P<pid>[0-9]+)-(?P<machine>[0-9a-f]{8})(?P<start>[0-9a-f]{4})-[^-]*")
# What cannot be judged, of another machine or of earlier code, is left when nobody touched it for a
# week: no process of ours goes so long without a write.
UNTOUCHED_SECONDS = 7 * 24 * 3600.0


@cache
def identify_machine() -> str:
    """Return what names this boot of this kernel and this namespace of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"


def read_start_time(pid: int) -> str | None:
    """Return when a process of this machine was started; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def own_prefix(prefix: str) -> str:
    """Return how the name of a scratch folder of this process begins: with `prefix` and who it is.

    The rest of the name, which the caller adds, has no hyphen.
    """
    return f"{prefix}-{_name_process(os.getpid())}-"


def _name_process(pid: int) -> str:
    machine, start = identify_machine(), read_start_time(pid) or ""
    return f"{pid}-{hash_bytes(machine.encode())[:8]}{hash_bytes(start.encode())[:4]}"


def find_left(folder: Path, kinds: str) -> Iterator[Path]:
    """Yield the scratch of dead processes of this user in a folder, of names that begin as `kinds`,
    a regular expression, says.
    """
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if re.match(kinds, path.name) and _is_left(path):
                yield path


def _is_left(path: Path) -> bool:
    status = path.lstat()
    if status.st_uid != os.getuid() or path.is_symlink():
        return False
    owned = OWNED.fullmatch(path.stem)
    machine = hash_bytes(identify_machine().encode())[:8]
    if owned is None or owned["machine"] != machine:
        times = [status.st_mtime, *(each.lstat().st_mtime for each in path.rglob("*"))]
        return time.time() - max(times) > UNTOUCHED_SECONDS
    return not path.stem.rpartition("-")[0].endswith(_name_process(int(owned["pid"])))
