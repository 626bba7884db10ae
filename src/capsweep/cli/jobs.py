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
from capsweep.config import compose, package_files, places
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.runtime import terminal

if TYPE_CHECKING:  # they import Ray
    from capsweep.cluster.client import Jobs, SweepJob

# As Ctrl-C of a sweep that runs here: what waits for its end is not to go on as if it had ended.
DETACHED = STOPPED = 130
KILLED = 128  # and the number of the signal, as a shell says it


def _open_named_jobs(parsed: argparse.Namespace) -> "Jobs":
    overrides = sweep_options.choose_cluster(parsed) or ["cluster=address"]
    return job_server.open_jobs(compose.cell(overrides).config["cluster"])


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
        print(*_describe_job(job, parsed.sweep), sep="\n")
    if not chosen:
        print(f"no sweep runs or ran as a job of {jobs.address}")


def _describe_nodes(nodes: dict[str, Any]) -> str:
    texts = [terminal.count_of(nodes["nodes"], "node")]
    for key, name in (("gpus", "GPU"), ("cpus", "CPU")):
        total, in_use = nodes[key]["total"], nodes[key]["in_use"]
        text = terminal.count_of(total, name)
        texts.append(text if in_use is None else f"{text}, {in_use:g} in use")
    return ", ".join(texts)


def _describe_job(job: "SweepJob", typed: str | None) -> list[str]:
    """A line for a job, and one for the cause of its failure. typed: its sweep, as named."""
    from capsweep.cluster import submit

    when = ""
    if job.since is not None:
        when = time.strftime(", submitted %Y-%m-%d %H:%M", time.localtime(job.since))
    state = job.state.lower() + (f" (exit status {job.status})" if job.status else "")
    line = f"{job.id}: {state}{when}; cells: {describe_cells(job, typed)}"
    if job.state != "FAILED":
        return [line]
    return [line, f"  {submit.find_obstacle(job) or _find_last_words(job)}"]


def _find_last_words(job: "SweepJob") -> str:
    """What a failed job said last, which Ray keeps: its error, else its last line."""
    lines = [line.strip() for line in job.message.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["Ray does not say why"])[-1][:300]


def describe_cells(job: "SweepJob", typed: str | None = None) -> str:
    """How many cells the ledger has in each status, or why they are not counted.

    typed: the job's sweep as it was named: a file of elsewhere counts if it is named so.
    """
    name = typed if typed is not None and typed.endswith(".yaml") else job.sweep
    if name == job.sweep and not (package_files.find_folder("sweeps") / f"{name}.yaml").is_file():
        return f"not counted: sweeps/ has no {name}.yaml here; name it: SWEEP=path/to/it.yaml"
    try:
        command = shlex.split(job.command)
        words = ["sweep", name, *command[command.index("capsweep") + 3 :]]
        with redirect_stderr(None):  # what a parser says of the options of another version
            parsed = parse_arguments(words)
        sweep, points = sweep_options.load_points(parsed)
        ledger = points[0].cell.config["places"]["ledger"]
        entries = Ledger(ledger).entries(point.cell.signature for point in points)
    except (OSError, ValueError, SystemExit) as error:
        return f"not counted: {' '.join(str(error).split())[:200]}"
    counts = Counter(entry.status for entry in entries.values())
    text = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    text += f" of {', '.join(sweep.words)}" if sweep.words else ""
    if set(counts) == {"missing"} and not places.is_url(ledger):  # it may be another machine's
        return f"{text}, as {ledger} is seen from here; make attach shows its lines"
    return text
