"""`capsweep attach`, `status` and `stop`: sweeps that run as jobs of a cluster."""

import argparse
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from capsweep.cli import sweep_options
from capsweep.config import compose
from capsweep.errors import ConfigError

if TYPE_CHECKING:  # they import Ray
    from capsweep.cluster.client import Jobs, SweepJob

# As Ctrl-C of a sweep that runs here: what waits for its end is not to go on as if it had ended.
DETACHED = STOPPED = 130
KILLED = 128  # and the number of the signal, as a shell says it


def open_jobs(cluster: Mapping[str, Any]) -> "Jobs":
    """Return the jobs of a cluster. Raises ConfigError where it has none, or Ray is not here."""
    try:
        from capsweep.cluster import client
    except ImportError as error:
        raise ConfigError(f"jobs of a cluster: {error}; install 'capsweep[ray]'") from error
    return client.open_jobs(cluster)


def _open_named_jobs(parsed: argparse.Namespace) -> "Jobs":
    overrides = sweep_options.choose_cluster(parsed) or ["cluster=address"]
    return open_jobs(compose.cell(overrides).config["cluster"])


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


def watch_job(jobs: "Jobs", job: "SweepJob") -> int:
    """Print what a job prints, to its end. Returns its driver's exit status."""
    from capsweep.cluster import submit

    def say(text: str) -> None:
        print(f"[{job.id}] {text}", flush=True)

    try:
        say(f"attached to {jobs.address}; Ctrl-C detaches")
        ended = submit.follow_job(jobs, job, partial(print, end="", flush=True), say)
    except KeyboardInterrupt:
        say("detached; the sweep goes on: make attach, status or stop")
        return DETACHED
    if ended.state == "STOPPED":
        say("it was stopped; the same command goes on")
        return STOPPED
    if (obstacle := submit.find_obstacle(ended)) is not None:
        raise ConfigError(f"{ended.id}: {obstacle}")
    status = ended.status or 0
    if status < 0:
        say(f"its driver was killed (signal {-status}); the same command goes on")
        return KILLED - status
    return status


def run_status(parsed: argparse.Namespace) -> None:
    """Print two lines for each job: its state, and how far it is."""
    jobs = _open_named_jobs(parsed)
    from capsweep.cluster import submit

    chosen = jobs.list_jobs() if parsed.sweep is None else [submit.find_job(jobs, parsed.sweep)]
    for job in chosen:
        print(*_describe_job(jobs, job), sep="\n")
    if not chosen:
        print(f"no sweep runs or ran as a job of {jobs.address}")


def _describe_job(jobs: "Jobs", job: "SweepJob") -> tuple[str, str]:
    """Return a line for a job, and what kept it from running, or the last line that it printed."""
    from capsweep.cluster import submit

    when = ""
    if job.since is not None:
        when = time.strftime(", submitted %Y-%m-%d %H:%M", time.localtime(job.since))
    state = job.state.lower() + (f" (exit status {job.status})" if job.status else "")
    lines = [line.strip() for line in jobs.read_log(job.id).splitlines() if line.strip()]
    last = submit.find_obstacle(job) or (lines or ["it has printed nothing"])[-1][:300]
    return f"{job.id}: {state}{when}", f"  {last}"
