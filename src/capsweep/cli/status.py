"""`capsweep status`: what a cluster has, and the sweeps that run or ran as jobs of it."""

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli import remote_status
from capsweep.cli.command import Commands, add_command
from capsweep.cluster import job_server
from capsweep.errors import ConfigError

if TYPE_CHECKING:
    from capsweep.cluster.client import Jobs, SweepJob

TEXT = "what a cluster has, and what its sweeps are doing: state, since when, cells"
RUNNING = "running"
SHOWN = {"gpus": "GPU", "cpus": "CPU"}  # what is told of nodes, and Ray's name of it


def add_parser(commands: Commands) -> None:
    """Add `status` to the parser."""
    command = add_command(commands, "status", _status, TEXT)
    command.add_argument(
        "sweep", nargs="?", help="a sweep's name, or the id of its job; default: all"
    )
    job_server.add(command)
    command.add_argument("--json", action="store_true", help="for programs")


def _status(parsed: argparse.Namespace) -> int:
    jobs = job_server.jobs_of(parsed)
    from capsweep.cluster import submit  # it imports Ray

    chosen = jobs.all() if parsed.sweep is None else [submit.find(jobs, parsed.sweep)]
    known = [_record(job, jobs) for job in chosen]
    cluster = _cluster(jobs)
    if parsed.json:
        print(json.dumps({"cluster": cluster, "sweeps": known}, indent=2))
        return 0
    console = terminal.make_console()
    terminal.print_line(console, f"cluster: {_in_words(cluster)}")
    for record in known:
        terminal.print_line(console, _line(record))
    if not known:
        terminal.print_line(console, f"no sweep runs or ran as a job of {jobs.address}")
    return 0


def _cluster(jobs: "Jobs") -> dict[str, Any] | None:
    """Its nodes and what they have, in all and in use; None where it does not tell."""
    try:
        nodes = jobs.nodes()
    except ConfigError:
        return None
    used = nodes.used
    return {"nodes": nodes.count} | {
        key: {
            "total": nodes.total.get(name, 0.0),
            "in_use": None if used is None else used.get(name, 0.0),
        }
        for key, name in SHOWN.items()
    }


def _in_words(cluster: dict[str, Any] | None) -> str:
    if cluster is None:
        return "it does not tell its nodes"
    nodes = f"{cluster['nodes']} node{'' if cluster['nodes'] == 1 else 's'}"
    if cluster["cpus"]["in_use"] is None:
        amounts = (f"{cluster[key]['total']:g} {name}s" for key, name in SHOWN.items())
        return f"{nodes}, {', '.join(amounts)}; it does not tell what is in use"
    amounts = (
        f"{cluster[key]['in_use']:g} of {cluster[key]['total']:g} {name}s in use"
        for key, name in SHOWN.items()
    )
    return f"{nodes}, {', '.join(amounts)}"


def _record(job: "SweepJob", jobs: "Jobs") -> dict[str, Any]:
    counts = remote_status.cells(job)
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
        return remote_status.progress(job, jobs)
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
        if record["state"] == RUNNING and record["progress"] is not None:
            about += f"; now {record['progress']}"
    else:
        about = record["progress"] or "no cell yet; its ledger is not seen from here"
    return f"{record['id']}: {state}{when}; cells: {about}"
