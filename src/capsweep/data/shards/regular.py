"""Files of a folder that may be opened: what its manifest names must not lead anywhere else."""

import os
import stat
from pathlib import Path

from capsweep.errors import DataError

KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def regular(folder: Path, name: str) -> os.stat_result:
    """What the disk knows of a file of the folder, so that to open it is to read just that.

    Raises DataError for a name that is a path, a link, and whatever is no file: to open a pipe is
    to wait for ever. Raises OSError, FileNotFoundError among them.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise DataError(f"{folder}: {name!r} is a path, and no name of a file of it")
    found = (folder / name).lstat()
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise DataError(
            f"{folder / name}: {kind}, where a file of this folder is to be; move it away"
        )
    return found
