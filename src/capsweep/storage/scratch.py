"""Make the names of scratch files and folders, and find scratch files of ended processes.

The name of a scratch file identifies the process that created the file. So the scratch files of
killed processes can be found and removed, and the scratch files of running processes are kept.
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
# If a scratch file was created on another machine, before the last boot or by earlier code, we
# cannot check whether its process still runs. The file then counts as abandoned if nothing was
# written to it for a week. Our processes write more often.
UNTOUCHED_SECONDS = 7 * 24 * 3600.0


@cache
def identify_machine() -> str:
    """Return a text that identifies the machine's current boot and namespace of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"


def read_start_time(pid: int) -> str | None:
    """Read when a process of this machine was started, in clock ticks since the boot.

    Args:
        pid: Id of the process.

    Returns:
        The number of clock ticks, as a text; None if the process has ended or is a zombie.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def make_scratch_prefix(prefix: str) -> str:
    """Return the beginning of a name for a scratch file of this process.

    The caller completes the name with a text that contains no hyphen.

    Args:
        prefix: The kind of the scratch file. The name begins with this text.
    """
    return f"{prefix}-{_name_process(os.getpid())}-"


def _name_process(pid: int) -> str:
    machine, start = identify_machine(), read_start_time(pid) or ""
    return f"{pid}-{hash_bytes(machine.encode())[:8]}{hash_bytes(start.encode())[:4]}"


def find_abandoned(folder: Path, kinds: str) -> Iterator[Path]:
    """Find the abandoned scratch files and folders of this user.

    A scratch file is abandoned if the process that created the file has ended. If we cannot check
    this, the file is abandoned if nothing was written to it for UNTOUCHED_SECONDS.

    Args:
        folder: The folder to search. If the folder cannot be read, nothing is found.
        kinds: Regular expression for the beginning of the names.

    Yields:
        The files and folders, sorted by name.
    """
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if re.match(kinds, path.name) and _is_abandoned(path):
                yield path


def _is_abandoned(path: Path) -> bool:
    status = path.lstat()
    if status.st_uid != os.getuid() or path.is_symlink():
        return False
    owned = OWNED.fullmatch(path.stem)
    machine = hash_bytes(identify_machine().encode())[:8]
    if owned is None or owned["machine"] != machine:
        times = [status.st_mtime, *(each.lstat().st_mtime for each in path.rglob("*"))]
        return time.time() - max(times) > UNTOUCHED_SECONDS
    return not path.stem.rpartition("-")[0].endswith(_name_process(int(owned["pid"])))
