"""`capsweep attach`, and how a sweep is watched that was submitted."""

import argparse
import signal
import sys
from typing import TYPE_CHECKING

from capsweep import terminal
from capsweep.cli import remote_status, report
from capsweep.cli.command import Commands, add_command
from capsweep.cluster import job_server
from capsweep.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.cli.remote_status import Chosen, Report
    from capsweep.cluster.client import Jobs, SweepJob

TEXT = "watch a sweep that runs as a job of a cluster; Ctrl-C detaches, and the sweep goes on"
# As Ctrl-C of a sweep that runs here: what waits for its end is not to go on as if it had ended.
DETACHED = STOPPED = 130
KILLED = 128  # and the number of the signal, as a shell says it


def add_parser(commands: Commands) -> None:
    """Add `attach` to the parser."""
    command = add_command(commands, "attach", _attach, TEXT)
    command.add_argument("sweep", help="a sweep's name, or the id of its job")
    job_server.add(command)


def _attach(parsed: argparse.Namespace) -> int:
    from capsweep.cluster import submit

    jobs = job_server.jobs_of(parsed)
    return watch(
        jobs, submit.find(jobs, parsed.sweep), terminal.make_console(), report.write_report
    )


def watch(
    jobs: "Jobs",
    job: "SweepJob",
    console: "Console",
    make_report: "Report",
    chosen: "Chosen | None" = None,
) -> int:
    """Print what a job prints, to its end; its driver's exit status. chosen: what it runs, where
    that was typed here.
    """
    from capsweep.cluster.watch import Watch

    def say(text: str) -> None:
        terminal.print_line(console, f"[{job.id}] {text}")

    try:
        say(f"attached to {jobs.address}; Ctrl-C detaches")
        if (other := other_code(job)) is not None:
            say(other)
        ended = Watch(jobs, _write_through, say).to_the_end(job)
    except KeyboardInterrupt:
        say(f"detached; the sweep goes on: capsweep attach | status | stop {job.name.sweep}")
        return DETACHED
    if ended.state == "STOPPED":
        say("it was stopped; the same command goes on")
        return STOPPED
    _check_begun(jobs, ended)
    remote_status.report(ended, chosen, console, make_report)
    status = ended.status or 0
    if status < 0:
        say(f"its driver was killed ({_signal(-status)}); the same command goes on")
        return KILLED - status
    return status


def _write_through(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def other_code(job: "SweepJob") -> str | None:
    """What is to be said of a job that runs other code than that here; None for any other."""
    from capsweep.cluster import submit

    if job.has_ended or job.code is None or job.code == submit.code_here():
        return None
    return (
        "it runs other code than that here; to run this, stop it (capsweep stop "
        f"{job.name.sweep}) and submit again"
    )


def _signal(number: int) -> str:
    known = {one.value: one.name for one in signal.Signals}
    return known.get(number, f"signal {number}")


def _check_begun(jobs: "Jobs", job: "SweepJob") -> None:
    """Raise ConfigError for a job whose driver could not start, with the cure."""
    from capsweep.cluster import job_faults

    if (fault := job_faults.of(job, jobs)) is not None:
        raise ConfigError(f"{job.id}: {fault}")
