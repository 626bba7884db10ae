"""`capsweep status`: the sweeps that run or ran as jobs of a cluster."""

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cluster_doors import seen, where
from capsweep.command import Commands, add_command
from capsweep.errors import ConfigError

if TYPE_CHECKING:
    from capsweep.submission.client import Jobs, SweepJob

TEXT = "what sweeps of a cluster are doing: state, since when, cells"


def add(doors: Commands) -> None:
    """Add the door."""
    door = add_command(doors, "status", _status, TEXT)
    door.add_argument("sweep", nargs="?", help="a sweep's name, or the id of its job; default: all")
    where.add(door)
    door.add_argument("--json", action="store_true", help="for programs")


def _status(parsed: argparse.Namespace) -> int:
    from capsweep.submission import run

    jobs = where.jobs_of(parsed)
    chosen = jobs.all() if parsed.sweep is None else [run.find(jobs, parsed.sweep)]
    known = [_record(job, jobs) for job in chosen]
    if parsed.json:
        print(json.dumps(known, indent=2))
        return 0
    console = terminal.console()
    for record in known:
        terminal.line(console, _line(record))
    if not known:
        terminal.line(console, f"no sweep runs or ran as a job of {jobs.address}")
    return 0


def _record(job: "SweepJob", jobs: "Jobs") -> dict[str, Any]:
    counts = seen.cells(job)
    return {
        "id": job.id,
        "sweep": job.name.sweep,
        "state": job.state.lower(),
        "since": job.since,
        "until": job.until,
        "exit_status": job.status,
        "cells": None if counts is None else dict(counts),
        "progress": _progress(job, jobs),
        "command": job.command,
    }


def _progress(job: "SweepJob", jobs: "Jobs") -> str | None:
    try:
        return seen.progress(job, jobs)
    except ConfigError:
        return None  # a job that never started, or whose node is gone, has no log


def _line(record: dict[str, Any]) -> str:
    since = record["since"]
    when = "" if since is None else time.strftime(" since %Y-%m-%d %H:%M", time.localtime(since))
    ended = record["exit_status"]
    state = record["state"] + (f" (exit status {ended})" if ended else "")
    counts = record["cells"]
    if counts is not None:
        about = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    else:
        about = record["progress"] or "no cell yet; its ledger is not seen from here"
    return f"{record['id']}: {state}{when}; cells: {about}"
