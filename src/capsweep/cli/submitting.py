"""`capsweep sweep` on a cluster that drives its sweeps itself: submit, then attach."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli import attach
from capsweep.cluster import job_server, remote_command
from capsweep.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.cli.remote_status import Chosen, Report


def add_detach(sweep: argparse.ArgumentParser) -> None:
    """Add the option."""
    text = "submit to the cluster's job server and return; see attach, status, stop"
    sweep.add_argument("--detach", action="store_true", help=text)


def is_wanted(parsed: argparse.Namespace, config: Mapping[str, Any]) -> bool:
    """Whether a job of the cluster drives this sweep, and not this process."""
    return not parsed.here and (parsed.detach or config["cluster"]["submit"])


def run(
    parsed: argparse.Namespace,
    chosen: "Chosen",
    config: Mapping[str, Any],
    console: "Console",
    report: "Report",
) -> int:
    """Submit the sweep, or find the job that runs it; attach unless that was not wanted."""
    from capsweep.cluster import submit as submission

    _check(parsed, config)
    jobs = job_server.jobs_at(config["cluster"])
    inner = remote_command.inner_command(parsed, config)
    job, is_new = submission.submit(jobs, chosen[0].path, inner, config["cluster"]["python"])
    told = "submitted" if is_new else "this command runs already"
    terminal.print_line(console, f"{told}: {job.id}")
    if parsed.detach:
        if not is_new and (other := attach.other_code(job)) is not None:
            terminal.print_line(console, other)
        commands = f"capsweep attach | status | stop {job.name.sweep}"
        terminal.print_line(console, f"{commands} --address {jobs.address}")
        return 0
    return attach.watch(jobs, job, console, report, chosen if chosen[1] else None)


def _check(parsed: argparse.Namespace, config: Mapping[str, Any]) -> None:
    """Raise ConfigError for what would train or lose results on the head."""
    if parsed.executor != "ray":
        raise ConfigError(
            f"--executor {parsed.executor}: cluster={config['cluster']['name']} is driven by a "
            "job, which runs Ray; leave it out, or the cluster"
        )
