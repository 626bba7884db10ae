"""`capsweep attach`, `status` and `stop`: sweeps that run as jobs of a cluster."""

import argparse
import json
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from capsweep import terminal
from capsweep.cli import report, sweep_options
from capsweep.cli.command import Commands, add_command, add_json, add_options
from capsweep.cluster import job_server
from capsweep.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.cluster.client import Jobs, SweepJob
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep

ChosenCells: TypeAlias = "tuple[Sweep, Sequence[Point]]"
TEXTS = {
    "attach": "watch a sweep that runs as a job of a cluster; Ctrl-C detaches, and it goes on",
    "status": "what a cluster has, and what its sweeps are doing: state, since when, cells",
    "stop": "end a sweep that runs as a job of a cluster; finished cells and checkpoints stay",
}
OPTIONS = {
    "--cluster": "a file of conf/cluster: address",
    "--address": "where Ray takes jobs; default: cluster.jobs, http://127.0.0.1:8265",
}
# As Ctrl-C of a sweep that runs here: what waits for its end is not to go on as if it had ended.
DETACHED = STOPPED = 130
KILLED = 128  # and the number of the signal, as a shell says it


def add_parser(commands: Commands) -> None:
    """Add the commands."""
    for name, run in (("attach", _attach), ("status", _print_status), ("stop", _stop)):
        command = add_command(commands, name, run, TEXTS[name])
        text = "a sweep's name, or the id of its job"
        if name == "status":
            command.add_argument("sweep", nargs="?", help=f"{text}; default: all")
            add_json(command)
        else:
            command.add_argument("sweep", help=text)
        add_options(command, OPTIONS)


def _open_named_jobs(parsed: argparse.Namespace) -> "Jobs":
    from capsweep.config import compose

    if parsed.address is not None:
        return job_server.open_jobs({}, parsed.address)
    name = parsed.cluster or "address"
    return job_server.open_jobs(compose.cell([f"cluster={name}"]).config["cluster"])


def _attach(parsed: argparse.Namespace) -> int:
    jobs = _open_named_jobs(parsed)
    from capsweep.cluster import submit  # it imports Ray

    return watch_job(jobs, submit.find_job(jobs, parsed.sweep), terminal.make_console())


def _stop(parsed: argparse.Namespace) -> int:
    jobs, console = _open_named_jobs(parsed), terminal.make_console()
    from capsweep.cluster import submit

    job = submit.find_job(jobs, parsed.sweep)
    if job.has_ended:
        terminal.print_line(console, f"{job.id} has ended already: {job.state.lower()}")
        return 0
    text = f"stopping {job.id}; it is killed if it has not ended in {submit.STOP_SECONDS} s"
    terminal.print_line(console, text)
    ended = submit.stop_job(jobs, job)
    terminal.print_line(console, f"{ended.id}: {ended.state.lower()}; the same command goes on")
    return 0


def watch_job(
    jobs: "Jobs", job: "SweepJob", console: "Console", chosen: "ChosenCells | None" = None
) -> int:
    """Print what a job prints, to its end; its driver's exit status. chosen: what it runs, where
    that was typed here.
    """
    from capsweep.cluster import submit

    def say(text: str) -> None:
        terminal.print_line(console, f"[{job.id}] {text}")

    try:
        say(f"attached to {jobs.address}; Ctrl-C detaches")
        warn_of_other_code(job, say)
        ended = submit.follow_job(jobs, job, _write_through, say)
    except KeyboardInterrupt:
        say(f"detached; the sweep goes on: capsweep attach | status | stop {job.sweep}")
        return DETACHED
    if ended.state == "STOPPED":
        say("it was stopped; the same command goes on")
        return STOPPED
    submit.check_started(ended)
    _write_report(ended, chosen, console)
    status = ended.status or 0
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(-status, f"signal {-status}")
        say(f"its driver was killed ({name}); the same command goes on")
        return KILLED - status
    return status


def warn_of_other_code(job: "SweepJob", say: Callable[[str], object]) -> None:
    """Say it where a job runs other code than that here."""
    from capsweep.cluster import submit

    if submit.has_other_code(job):
        say(
            "it runs other code than that here; to run this, stop it (capsweep stop "
            f"{job.sweep}) and submit again"
        )


def _write_through(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_report(job: "SweepJob", chosen: "ChosenCells | None", console: "Console") -> None:
    """Write the report here, where the ledger of an ended job can be read."""
    cells = chosen or _read_chosen(job)
    if cells is not None and _count_statuses(cells[1]) is not None:
        report.write_report(*cells, console)


def _print_status(parsed: argparse.Namespace) -> int:
    jobs = _open_named_jobs(parsed)
    from capsweep.cluster import submit

    chosen = jobs.list_jobs() if parsed.sweep is None else [submit.find_job(jobs, parsed.sweep)]
    records = [_make_record(job) for job in chosen]
    try:
        nodes = jobs.read_nodes()
    except ConfigError:
        nodes = None
    if parsed.json:
        print(json.dumps({"cluster": nodes, "sweeps": records}, indent=2))
        return 0
    console = terminal.make_console()
    terminal.print_line(console, f"cluster: {_describe_nodes(nodes)}")
    for record in records:
        terminal.print_line(console, _describe_record(record))
    if not records:
        terminal.print_line(console, f"no sweep runs or ran as a job of {jobs.address}")
    return 0


def _describe_nodes(nodes: dict[str, Any] | None) -> str:
    if nodes is None:
        return "it does not tell its nodes"
    texts = [f"{nodes['nodes']} node{'' if nodes['nodes'] == 1 else 's'}"]
    for key, name in (("gpus", "GPUs"), ("cpus", "CPUs")):
        total, in_use = nodes[key]["total"], nodes[key]["in_use"]
        use = "" if in_use is None else f"{in_use:g} of "
        texts.append(f"{use}{total:g} {name}{'' if in_use is None else ' in use'}")
    return ", ".join(texts)


def _make_record(job: "SweepJob") -> dict[str, Any]:
    counts = count_cells(job)
    return {
        "id": job.id,
        "sweep": job.sweep,
        "state": job.state.lower(),
        "since": job.since,
        "until": job.until,
        "exit_status": job.status,
        "cells": None if counts is None else dict(counts),
        "command": job.command,
    }


def _describe_record(record: dict[str, Any]) -> str:
    since, status, counts = record["since"], record["exit_status"], record["cells"]
    when = "" if since is None else time.strftime(" since %Y-%m-%d %H:%M", time.localtime(since))
    state = record["state"] + (f" (exit status {status})" if status else "")
    cells = (
        f"its ledger cannot be read from here; capsweep attach {record['sweep']} shows its lines"
    )
    if counts is not None:
        cells = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{record['id']}: {state}{when}; cells: {cells}"


def count_cells(job: "SweepJob") -> Counter[str] | None:
    """How many cells the ledger has in each status; None where it cannot be read from here."""
    chosen = _read_chosen(job)
    return None if chosen is None else _count_statuses(chosen[1])


def _read_chosen(job: "SweepJob") -> "ChosenCells | None":
    """The sweep as the job's driver chose it; None for a search, and for files of elsewhere."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    sweep_options.add_options(parser)
    parser.add_argument("--cluster")
    words = shlex.split(job.command)
    try:
        parsed, rest = parser.parse_known_args(words[words.index("sweep") + 1 :])
        parsed.overrides += [word for word in rest if not word.startswith("-")]
        return sweep_options.load_points(parsed)
    except (UserError, ValueError):
        return None  # a sweep that this checkout does not have, or of another version


def _count_statuses(points: "Sequence[Point]") -> Counter[str] | None:
    """Statuses of cells. A folder without any of them is another machine's, of the same name; None
    also for a ledger that may not be read from here, or does not answer.
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
    counts = Counter(entry.status for entry in entries.values())
    return None if set(counts) == {"missing"} and not places.is_url(ledger) else counts
