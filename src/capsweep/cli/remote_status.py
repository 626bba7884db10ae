"""What is seen here of a sweep that runs elsewhere: its cells, where its ledger is in sight."""

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from capsweep.cli import sweep_options
from capsweep.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.cluster.client import Jobs, SweepJob
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep

Chosen: TypeAlias = "tuple[Sweep, Sequence[Point]]"
Report: TypeAlias = "Callable[[Sweep, Sequence[Point], Console], object]"
PROGRESS = re.compile(r"[0-9]+ done, [0-9]+ running, [0-9]+ failed[^\[\]\n]*")


def cells(job: "SweepJob") -> Counter[str] | None:
    """How many cells the ledger has in each status; None where it is not in sight."""
    found = _chosen(job)
    return None if found is None else _counted(found[1])


def progress(job: "SweepJob", jobs: "Jobs") -> str | None:
    """The newest line that says how far a job is."""
    lines = PROGRESS.findall(jobs.end_of_log(job))
    return lines[-1].strip() if lines else None


def report(job: "SweepJob", chosen: "Chosen | None", console: "Console", make: Report) -> None:
    """Make the files of the report here, where the ledger of an ended job is in sight.

    chosen: as typed here; None: as the job's driver was told.
    """
    found = chosen or _chosen(job)
    if found is not None and _counted(found[1]) is not None:
        make(*found, console)


def _chosen(job: "SweepJob") -> "Chosen | None":
    """The sweep as the job's driver chose it; None for a search, and for files of elsewhere."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    sweep_options.add_options(parser)
    words = shlex.split(job.command)
    try:
        parsed, rest = parser.parse_known_args(words[words.index("sweep") + 1 :])
        parsed.overrides += [word for word in rest if not word.startswith("-")]
        cluster = [word for word in rest if word.startswith("--cluster=")]
        parsed.overrides += [word.removeprefix("--") for word in cluster]
        return sweep_options.load_points(parsed)
    except (UserError, ValueError):
        return None  # a sweep that this checkout does not have, or of another version


def _counted(points: "Sequence[Point]") -> Counter[str] | None:
    """Statuses of cells. A folder in which there is none of them is another machine's, by name; a
    ledger that may not be read from here, or does not answer, is not in sight.
    """
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger

    ledger = points[0].cell.config["places"]["ledger"]
    try:
        if not places.is_url(ledger) and not Path(ledger).is_dir():
            return None
        entries = Ledger(ledger).entries(point.cell.signature for point in points)
    except (OSError, UserError):
        return None
    found = Counter(entry.status for entry in entries.values())
    return None if set(found) == {"missing"} and not places.is_url(ledger) else found
