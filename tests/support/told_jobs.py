"""A job of a real cluster that tells its progress as the driver of a sweep does, and ends when it
is told to: `python told_jobs.py URL FOLDER` submits it. It takes seconds, and no core."""

import shlex
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

DRIVE = "drive"
GO = "go"  # a file in its folder, upon which it ends
PLAN, TABLE = "9 cells: 0 done, 9 missing, 0 failed", "a table"


def submit(url: str, folder: str) -> None:
    """Start it, with the code that is here."""
    from capsweep.cluster.client import JobName, Jobs
    from capsweep.config import package_files

    command = f"exec {shlex.join([sys.executable, __file__, DRIVE, folder])}"
    with tempfile.TemporaryDirectory() as staged:
        package = str(package_files.stage_packages(Path(staged)))
        Jobs(url).submit_job(
            JobName.for_command("told", [folder]), command, {"py_modules": [package]}, "another"
        )


def drive(folder: Path) -> None:
    """A tenth of a cell in each fifth of a second, as far as the eighth."""
    print(PLAN)
    for tenth in count():
        cells = min(tenth / 10, 8)
        text = f"{int(cells)} done, 1 running, 0 failed of 9, about {90 - 10 * cells:.0f} s left"
        if tenth % 10 == 9 and cells < 8:
            print(f"cell {int(cells)}: test/error 1.25 %  [{text}]", flush=True)
        if (folder / GO).exists():
            print(f"[{text}]", flush=True)  # as for a log, at most every minute
            break
        time.sleep(0.2)
    print(TABLE)


if __name__ == "__main__":
    drive(Path(sys.argv[2])) if sys.argv[1] == DRIVE else submit(*sys.argv[1:])
