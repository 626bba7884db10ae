"""`capsweep sweep`: run the missing cells of a sweep, then print its table.

A sweep runs here or as a job of a cluster. The commands `attach`, `status` and `stop` are for
sweeps that run as jobs.
"""

import argparse
import re
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from capsweep.cluster import driver
from capsweep.config import compose, places
from capsweep.config.words import split_words
from capsweep.errors import ConfigError, UserError
from capsweep.report.live import LivePage, locate_page
from capsweep.runtime import terminal
from capsweep.sweep import choices, drive, estimates, expand
from capsweep.sweep.drive import RunOptions
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

if TYPE_CHECKING:  # it imports Ray
    from capsweep.cluster.client import Jobs, SweepJob

STOPPED = 130  # exit status of Ctrl-C, so that a script that waits for the sweep stops too
KILLED = 128  # plus the number of the signal, as in a shell
LONGEST = 300  # most characters of a printed line of a job's output
COUNTS = re.compile(r"\[\d+ done, .*?\]|^\d+ (?:cell|trial)s?[:,] .*", re.MULTILINE)


def run_sweep(parsed: argparse.Namespace) -> int:
    """Run a sweep here, or submit the sweep to its cluster, and return the exit status."""
    sweep, points, config = _load(parsed)
    for note in () if parsed.here else sweep.notes:  # printed once, where the command was typed
        print(note, flush=True)
    words = _list_words(parsed)
    if parsed.here and (there := driver.use_node_places(words, config)) is not None:
        parsed.words, parsed.overrides = split_words("sweep", there)
        sweep, points, config = _load(parsed)
    options = _read_options(parsed)  # read before a job is submitted, to print errors here
    cluster = config["cluster"]
    is_driven_here = parsed.here or parsed.shard is not None or parsed.executor == "local"
    if cluster.get("launcher") is not None and not is_driven_here:
        _submit_to_slurm(parsed, config, options)
        return 0
    if (parsed.executor == "array") != (parsed.shard is not None):
        raise UserError("EXECUTOR=array and SHARD=i/n belong together; type both or neither")
    if parsed.dry_run:
        raise ConfigError("--dry-run is only for Slurm clusters; `capsweep plan` prints the cells")
    if not parsed.here and (parsed.detach or cluster["submit"]):
        return _submit_job(parsed, sweep, config)
    if str(cluster["address"]).startswith("http"):
        raise ConfigError(
            f"RAY_ADDRESS={cluster['address']}: this is a job server; add --detach to submit a "
            "job, or type the address of Ray itself, such as head:6379"
        )
    with driver.interrupted_by_sigterm():
        return _run_here(parsed, sweep, points, options)


def _load(parsed: argparse.Namespace) -> tuple[Sweep, list[Point], Mapping[str, Any]]:
    """Read a sweep and its points.

    Returns:
        The sweep, its points (`expand.list_points`), and the configuration of the first point. This
        configuration says where the sweep runs.
    """
    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides, parsed.here)
    points = expand.list_points(sweep)
    return sweep, points, points[0].cell.config


def _list_words(parsed: argparse.Namespace) -> list[str]:
    return [*(f"{name}={value}" for name, value in parsed.words.items()), *parsed.overrides]


def _read_options(parsed: argparse.Namespace) -> RunOptions:
    """Read the words that say how the cells are run.

    Raises:
        UserError: The value of a word is wrong; the message names the word.
    """
    if parsed.retry not in (None, "failed"):
        raise UserError(f"RETRY={parsed.retry}: must be failed; leave RETRY out for no retry")
    return RunOptions(
        parsed.executor,
        estimates.read_limits(parsed.budget, parsed.max_hours),
        None if parsed.shard is None else drive.parse_part(parsed.shard),
        parsed.retry is not None,
    )


def _run_here(
    parsed: argparse.Namespace, sweep: Sweep, points: list[Point], options: RunOptions
) -> int:
    """Run a sweep or a search on this machine, print its table, and return the exit status.

    The page of the sweep is renewed as cells end; of the jobs of an array, only the first renews
    it.
    """
    console, config = terminal.make_console(), points[0].cell.config
    words = driver.make_report_command(parsed.sweep, _list_words(parsed), config)
    page = LivePage(locate_page(places.resolve(config["places"]), sweep), words, console)
    if options.part is None or options.part[0] == 1:
        options = replace(options, renew=page.renew)
    with closing(page):
        if sweep.search is None:
            ended = drive.run_in_order(sweep, points, options, console)
        else:
            from capsweep.sweep import search  # imports Optuna, which takes time

            ended = search.run(sweep, options, console)
    from capsweep.cli import report  # imported after training, because it takes time

    report.write_and_print(report.make_report(sweep, points), console)
    for line in ended.lines:
        print(line)
    return ended.status


def _submit_to_slurm(
    parsed: argparse.Namespace, config: Mapping[str, Any], options: RunOptions
) -> None:
    """Write and submit the script of a Slurm job; with --dry-run, only print the script."""
    from capsweep.cluster import slurm

    cluster, is_array = config["cluster"], parsed.executor == "array"
    if options.limits.has_bounds or config["rerun"] == "always":
        # A requeued job would count its hours from zero, or run its finished cells again.
        print("# with a time limit or RERUN=always, the job is not requeued if it loses its nodes")
        cluster = {**cluster, "requeues": 0, "retries": 0}
    if not is_array:
        _check_executor(parsed, cluster)
    words = driver.make_inner_command(parsed.sweep, _list_words(parsed), config, staged=False)
    folder = places.resolve(config["places"]).storage / "clusters" / cluster["name"]
    name, text = slurm.render_script(cluster, parsed.sweep, words, folder, is_array)
    if parsed.dry_run:
        print(f"# ---- {folder / name}, for sbatch --parsable\n{text}")
    else:
        slurm.submit_script(cluster, name, text, folder)


def _submit_job(parsed: argparse.Namespace, sweep: Sweep, config: Mapping[str, Any]) -> int:
    """Submit a sweep as a job, or find the job that runs the same command already.

    Then print the output of the job until it ends, unless --detach was typed.

    Returns:
        The exit status: 0 with --detach, else that of `watch_job`.
    """
    # Any executor but `ray` would train on the head node, or lose the results there.
    _check_executor(parsed, config["cluster"])
    jobs = open_jobs(config["cluster"])
    words = driver.make_inner_command(parsed.sweep, _list_words(parsed), config)
    job, is_new = driver.submit_sweep(jobs, sweep.path, words, config["cluster"]["python"])
    print(f"{'submitted' if is_new else 'this command runs already'}: {job.id}", flush=True)
    if not is_new and driver.runs_other_code(job, sweep.path):
        print(f"  it runs other code than yours; to run yours, first type: capsweep stop {job.id}")
    if not parsed.detach:
        return watch_job(jobs, job)
    place = _name_job(jobs, job)
    print(f"make attach {place}  (prints its output; make status and stop take the same words)")
    return 0


def _name_job(jobs: "Jobs", job: "SweepJob") -> str:
    """Return the words that name a job after `make attach`, `make status` and `make stop`."""
    return f"SWEEP={job.id} RAY_ADDRESS={jobs.address}"


def _check_executor(parsed: argparse.Namespace, cluster: Mapping[str, Any]) -> None:
    if parsed.executor != "ray":
        name = f"cluster={cluster['name']}"
        raise ConfigError(f"EXECUTOR={parsed.executor}: {name} needs EXECUTOR=ray")


def open_jobs(cluster: Mapping[str, Any]) -> "Jobs":
    """Open the job server of a cluster.

    Raises:
        ConfigError: The cluster has no job server, or Ray is not installed here.
    """
    try:
        from capsweep.cluster import client
    except ImportError as error:
        raise ConfigError(f"jobs of a cluster: {error}; install 'capsweep[ray]'") from error
    return client.open_jobs(cluster)


def _open_named_jobs(parsed: argparse.Namespace) -> "Jobs":
    overrides = choices.choose_cluster(parsed.words) or ["cluster=address"]
    return open_jobs(compose.cell(overrides).config["cluster"])


def run_attach(parsed: argparse.Namespace) -> int:
    """Print the output of a sweep's job until the job ends, and return the exit status.

    Ctrl-C is the usual end of this command, so the status is then 0, and make prints no error.
    """
    jobs = _open_named_jobs(parsed)
    with suppress(KeyboardInterrupt):
        return watch_job(jobs, driver.find_job(jobs, parsed.sweep))
    return 0


def run_stop(parsed: argparse.Namespace) -> None:
    """Stop the job of a sweep."""
    jobs = _open_named_jobs(parsed)
    job = driver.find_job(jobs, parsed.sweep)
    if job.has_ended:
        print(f"{job.id} has ended already: {job.details.status.lower()}")
        return
    print(f"stopping {job.id}; it will be killed after {driver.STOP_SECONDS} s", flush=True)
    ended = driver.stop_job(jobs, job)
    print(f"{ended.id}: {ended.details.status.lower()}; type the same command again to continue")


def watch_job(jobs: "Jobs", job: "SweepJob") -> int:
    """Print the output of a job until the job ends.

    Returns:
        STOPPED if the job was stopped, KILLED plus the number of the signal that killed the driver,
        else the exit status of the driver.

    Raises:
        ConfigError: The driver could not start; the message says why.
        KeyboardInterrupt: Ctrl-C was typed; the job continues.
    """

    def say(text: str) -> None:
        print(f"[{job.id}] {text}", flush=True)

    try:
        say(f"attached to {jobs.address}; Ctrl-C detaches")
        ended = driver.follow_job(jobs, job, partial(print, end="", flush=True), say)
    except KeyboardInterrupt:
        say(f"detached; the sweep continues; this stops it: make stop {_name_job(jobs, job)}")
        raise
    if ended.details.status == "STOPPED":
        say("the job was stopped; type the same command again to continue")
        return STOPPED
    if (obstacle := driver.find_obstacle(ended)) is not None:
        raise ConfigError(f"{ended.id}: {obstacle}")
    status = ended.details.driver_exit_code or 0
    if status < 0:
        say(f"its driver was killed (signal {-status}); type the same command again to continue")
        return KILLED - status
    return status


def run_status(parsed: argparse.Namespace) -> None:
    """Print the state of each job of a cluster that runs or ran a sweep, and the end of its output.

    For a running job, the lines with the newest numbers of cells or trials are also printed. If the
    user named a sweep or a job, only the job that `driver.find_job` returns is described.
    """
    jobs = _open_named_jobs(parsed)
    chosen = jobs.list_sweeps() if parsed.sweep is None else [driver.find_job(jobs, parsed.sweep)]
    for job in chosen:
        state, status = job.details.status.lower(), job.details.driver_exit_code
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.details.start_time / 1000))
        log = jobs.read_log(job.id)
        lines = [line.strip() for line in log.splitlines() if line.strip()] or ["no output yet"]
        last = driver.find_obstacle(job) or lines[-1][:LONGEST]
        found = [] if job.has_ended else COUNTS.findall(log)
        newest = {line.startswith("["): line for line in found}  # of the sweep; of this command
        print(f"{job.id}: {state}{f' (exit status {status})' if status else ''}, submitted {when}")
        for line in dict.fromkeys([*newest.values(), last]):
            print(f"  {line}")
    if not chosen:
        print(f"{jobs.address} has no job of a sweep")
