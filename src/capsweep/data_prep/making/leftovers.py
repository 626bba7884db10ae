"""Names of ours in a folder of shards, beside shards and `index.json`; what killed processes left.

Only what has exactly such a name is ever removed.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

STATE = ".making"  # a folder in the data set's own; see `folder`
CALIBRATION = ".calibration-"  # begins the name of a folder of trial shards
TEMPORARY = re.compile(r"\.([a-z0-9][a-z0-9_-]*\.h5\..+|index\.json|wanted\.json)\.\d+\.tmp")


def remove(folder: Path) -> None:
    """Remove all of it; the caller alone fills the folder. Raises OSError."""
    for path in _left(folder):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def size(folder: Path) -> int:
    """Bytes of the files that `remove` would: of shards that were begun."""
    try:
        return sum(path.stat().st_size for path in _left(folder) if path.is_file())
    except FileNotFoundError:  # removed meanwhile
        return 0


def _left(folder: Path) -> Iterator[Path]:
    for place in (folder, folder / STATE):
        for path in list(place.iterdir()) if place.is_dir() else []:
            is_trial = path.name.startswith(CALIBRATION) and path.is_dir()
            is_part = TEMPORARY.fullmatch(path.name) and path.is_file()
            if (is_trial or is_part) and not path.is_symlink():
                yield path
