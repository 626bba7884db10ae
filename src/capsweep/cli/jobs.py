"""`capsweep attach`, `status` and `stop`: sweeps that run as jobs of a cluster."""

import argparse
import shlex
import time
from collections import Counter
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep.cli import sweep_options
from capsweep.cli.parser import parse_arguments
from capsweep.cluster import job_server
from capsweep.config import compose, places
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger

if TYPE_CHECKING:  # they import Ray
    from capsweep.cluster.client import Jobs, SweepJob

# As Ctrl-C of a sweep that runs here: what waits for its end is not to go on as if it had ended.
DETACHED = STOPPED = 130
KILLED = 128  # and the number of the signal, as a shell says it


def _open_named_jobs(parsed: argparse.Namespace) -> "Jobs":
    if parsed.address is not None:
        return job_server.open_jobs({}, parsed.address)
    config = compose.cell([f"cluster={parsed.cluster or 'address'}"]).config
    return job_server.open_jobs(config["cluster"])


def run_attach(parsed: argparse.Namespace) -> int:
    """Print what a job prints, to its end."""
    jobs = _open_named_jobs(parsed)
    from capsweep.cluster import submit  # it imports Ray

    return watch_job(jobs, submit.find_job(jobs, parsed.sweep))


def run_stop(parsed: argparse.Namespace) -> None:
    """End a job."""
    jobs = _open_named_jobs(parsed)
    from capsweep.cluster import submit

    job = submit.find_job(jobs, parsed.sweep)
    if job.has_ended:
        print(f"{job.id} has ended already: {job.state.lower()}")
        return
    print(f"stopping {job.id}; it is killed after {submit.STOP_SECONDS} s", flush=True)
    ended = submit.stop_job(jobs, job)
    print(f"{ended.id}: {ended.state.lower()}; the same command goes on")


def print_other_code(jobs: "Jobs", job: "SweepJob", sweep: Path | None = None) -> None:
    """Print that a job runs other code than that here, if it does. sweep: its file, if known."""
    from capsweep.cluster import submit

    if submit.has_other_code(jobs, job, sweep):
        text = "it runs other code than that here, or another configuration or sweep"
        print(f"[{job.id}] {text}; to run this: capsweep stop {job.id}", flush=True)


def watch_job(jobs: "Jobs", job: "SweepJob", sweep: Path | None = None) -> int:
    """Print what a job prints, to its end; its driver's exit status. sweep: its file, if known."""
    from capsweep.cluster import submit

    def say(text: str) -> None:
        print(f"[{job.id}] {text}", flush=True)

    try:
        say(f"attached to {jobs.address}; Ctrl-C detaches")
        print_other_code(jobs, job, sweep)
        ended = submit.follow_job(jobs, job, partial(print, end="", flush=True), say)
    except KeyboardInterrupt:
        say(f"detached; the sweep goes on: capsweep attach | status | stop {job.sweep}")
        return DETACHED
    if ended.state == "STOPPED":
        say("it was stopped; the same command goes on")
        return STOPPED
    submit.check_started(ended)
    status = ended.status or 0
    if status < 0:
        say(f"its driver was killed (signal {-status}); the same command goes on")
        return KILLED - status
    return status


def run_status(parsed: argparse.Namespace) -> None:
    """Print what a cluster has, and a line for each job."""
    jobs = _open_named_jobs(parsed)
    from capsweep.cluster import submit
    from capsweep.cluster.client import UnreachableError

    chosen = jobs.list_jobs() if parsed.sweep is None else [submit.find_job(jobs, parsed.sweep)]
    try:
        print(f"cluster: {_describe_nodes(jobs.read_nodes())}")
    except UnreachableError:
        raise
    except ConfigError as error:
        print(f"cluster: it does not tell its nodes ({error})")
    for job in chosen:
        print(_describe_job(job))
    if not chosen:
        print(f"no sweep runs or ran as a job of {jobs.address}")


def _describe_nodes(nodes: dict[str, Any]) -> str:
    texts = [f"{nodes['nodes']} node{'' if nodes['nodes'] == 1 else 's'}"]
    for key, name in (("gpus", "GPUs"), ("cpus", "CPUs")):
        total, in_use = nodes[key]["total"], nodes[key]["in_use"]
        texts.append(f"{total:g} {name}" + (f", {in_use:g} in use" if in_use is not None else ""))
    return ", ".join(texts)


def _describe_job(job: "SweepJob") -> str:
    when = ""
    if job.since is not None:
        when = time.strftime(" since %Y-%m-%d %H:%M", time.localtime(job.since))
    state = job.state.lower() + (f" (exit status {job.status})" if job.status else "")
    counts = count_cells(job)
    cells = f"its ledger cannot be read here; capsweep attach {job.sweep} shows its lines"
    if counts is not None:
        cells = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{job.id}: {state}{when}; cells: {cells}"


def count_cells(job: "SweepJob") -> Counter[str] | None:
    """How many cells the ledger has in each status; None where it cannot be read from here, also
    for a search, and for a sweep that this checkout does not have.
    """
    words = shlex.split(job.command)
    try:
        with redirect_stderr(None):  # what a parser says of the options of another version
            parsed = parse_arguments(words[words.index("sweep") :])
        _, points = sweep_options.load_points(parsed)
        ledger = points[0].cell.config["places"]["ledger"]
        # A folder without any cell of them is another machine's, of the same name.
        if not places.is_url(ledger) and not Path(ledger).is_dir():
            return None
        entries = Ledger(ledger).entries(point.cell.signature for point in points)
    except (OSError, ValueError, SystemExit):
        return None
    counts = Counter(entry.status for entry in entries.values())
    return None if set(counts) == {"missing"} and not places.is_url(ledger) else counts
