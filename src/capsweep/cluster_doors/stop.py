"""`capsweep stop`: end a sweep that runs as a job; what has finished stays."""

import argparse

from capsweep import terminal
from capsweep.cli.command import Commands, add_command
from capsweep.cluster_doors import where

TEXT = "end a sweep that runs as a job of a cluster; finished cells and checkpoints stay"


def add(doors: Commands) -> None:
    """Add the door."""
    door = add_command(doors, "stop", _stop, TEXT)
    door.add_argument("sweep", help="a sweep's name, or the id of its job")
    where.add(door)


def _stop(parsed: argparse.Namespace) -> int:
    from capsweep.submission import run

    jobs, console = where.jobs_of(parsed), terminal.console()
    job = run.find(jobs, parsed.sweep)
    if job.has_ended:
        terminal.line(console, f"{job.id} has ended already: {job.state.lower()}")
        return 0
    told = f"stopping {job.id}; it is killed if it has not ended in {run.STOP_SECONDS} s"
    terminal.line(console, told)
    ended = run.stop(jobs, job)
    terminal.line(console, f"{ended.id}: {ended.state.lower()}; the same command goes on")
    return 0
