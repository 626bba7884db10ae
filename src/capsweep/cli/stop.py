"""`capsweep stop`: end a sweep that runs as a job; what has finished stays."""

import argparse

from capsweep import terminal
from capsweep.cli.command import Commands, add_command
from capsweep.cluster import job_server

TEXT = "end a sweep that runs as a job of a cluster; finished cells and checkpoints stay"


def add_parser(commands: Commands) -> None:
    """Add `stop` to the parser."""
    command = add_command(commands, "stop", _stop, TEXT)
    command.add_argument("sweep", help="a sweep's name, or the id of its job")
    job_server.add(command)


def _stop(parsed: argparse.Namespace) -> int:
    from capsweep.cluster import submit

    jobs, console = job_server.jobs_of(parsed), terminal.make_console()
    job = submit.find(jobs, parsed.sweep)
    if job.has_ended:
        terminal.print_line(console, f"{job.id} has ended already: {job.state.lower()}")
        return 0
    told = f"stopping {job.id}; it is killed if it has not ended in {submit.STOP_SECONDS} s"
    terminal.print_line(console, told)
    ended = submit.stop(jobs, job)
    terminal.print_line(console, f"{ended.id}: {ended.state.lower()}; the same command goes on")
    return 0
