"""Files of a folder that may be opened: what its manifest names must not lead anywhere else."""

import os
import stat
from pathlib import Path

from capsweep.errors import DataError

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def regular(folder: Path, name: str) -> os.stat_result:
    """What the disk knows of a file of the folder, so that to open it is to read just that.

    Raises DataError for a name that is a path, a link that leads out of the folder, and whatever is
    no file: to open a pipe is to wait for ever. Raises OSError, FileNotFoundError among them.
    """
    path = folder / name
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise DataError(f"{folder}: {name!r} is a path, and no name of a file of it")
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(os.path.realpath(folder)):
            raise DataError(
                f"{path}: a link to {target}, out of the folder; put the file itself there"
            )
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise DataError(f"{path}: {kind}, where a file is to be; move it away")
    return found
