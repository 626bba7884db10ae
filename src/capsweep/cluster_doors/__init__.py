"""The doors `capsweep cluster`, `attach`, `status` and `stop`."""

from typing import TYPE_CHECKING

from capsweep.cli.command import Commands
from capsweep.cluster_doors import attach, launching, status, stop

if TYPE_CHECKING:
    from capsweep.cluster_doors.seen import Report


def add(doors: Commands, report: "Report") -> None:
    """Add the doors to the parser. report: makes a report's files."""
    launching.add(doors)
    attach.add(doors, report)
    status.add(doors)
    stop.add(doors)
