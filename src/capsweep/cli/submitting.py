"""Sweeps that are handed to Slurm, or to the job server of a cluster that drives them itself."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capsweep import terminal
from capsweep.cli import jobs
from capsweep.cluster import driver, job_server
from capsweep.config import places
from capsweep.errors import ConfigError
from capsweep.sweep.spec import Sweep


def submit_sweep(parsed: argparse.Namespace, sweep: Sweep, config: Mapping[str, Any]) -> int | None:
    """Hand a sweep to its cluster: an exit status. None: this process drives it.

    config: of its first cell. Raises ConfigError naming option or key.
    """
    cluster = config["cluster"]
    is_driven_here = parsed.here or parsed.shard is not None or parsed.executor == "local"
    if cluster.get("launcher") is not None and not is_driven_here:
        return _submit_to_slurm(parsed, config)
    if parsed.dry_run:
        raise ConfigError(
            f"--dry-run: nothing is submitted with cluster={cluster['name']}; "
            "`capsweep plan` prints the cells"
        )
    if not parsed.here and (parsed.detach or cluster["submit"]):
        return _submit_job(parsed, sweep, config)
    return None


def _submit_job(parsed: argparse.Namespace, sweep: Sweep, config: Mapping[str, Any]) -> int:
    """Submit the sweep, or find the job that runs it; attach unless --detach is given."""
    _check_executor(parsed, config)  # another would train, or lose results, on the head
    console, server = terminal.make_console(), job_server.open_jobs(config["cluster"])
    from capsweep.cluster import submit  # it imports Ray

    words = driver.make_inner_command(parsed, config)
    job, is_new = submit.submit_sweep(server, sweep.path, words, config["cluster"]["python"])
    state = "submitted" if is_new else "this command runs already"
    terminal.print_line(console, f"{state}: {job.id}")
    if not parsed.detach:
        return jobs.watch_job(server, job, console)
    jobs.warn_of_other_code(job, lambda text: terminal.print_line(console, text))
    command = f"capsweep attach | status | stop {job.sweep} --address {server.address}"
    terminal.print_line(console, command)
    return 0


def _check_executor(parsed: argparse.Namespace, config: Mapping[str, Any]) -> None:
    if parsed.executor != "ray":
        raise ConfigError(
            f"--executor {parsed.executor}: cluster={config['cluster']['name']} is driven by a "
            "job, which runs Ray; leave it out, or the cluster"
        )


def _submit_to_slurm(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.cluster import slurm

    cluster = _without_requeues(parsed, config)
    words = driver.make_inner_command(parsed, config, staged=False)
    folder = places.resolve(config["places"]).storage / "clusters" / cluster["name"]
    if parsed.executor == "array":
        return _submit_array(parsed, cluster, words, folder)
    _check_executor(parsed, config)
    name, text = slurm.render_script(cluster, parsed.sweep, words, folder)
    if parsed.dry_run:
        print(f"# ---- {name}\n{text}")
        _print_commands([["sbatch", "--parsable", str(folder / name)]])
        return 0
    return slurm.submit_script(cluster, name, text, folder, print)


def _submit_array(
    parsed: argparse.Namespace, cluster: Mapping[str, Any], words: Sequence[str], folder: Path
) -> int:
    from capsweep.cluster import slurm

    count = cluster["array"]["parts"]
    if parsed.max_gpu_hours is not None:
        raise ConfigError(
            f"--max-gpu-hours: each of the {count} parts of an array would have as many; use "
            "--max-hours, which each part has for itself, or leave out --executor array"
        )
    name = slurm.name_job(parsed.sweep, words)
    command = [sys.executable, "-m", "capsweep", *words]
    parts = [[*command, f"--shard={index}/{count}"] for index in range(1, count + 1)]
    if parsed.dry_run:
        for key, value in slurm.make_parameters(cluster, name).items():
            print(f"# {key}: {value}")
        _print_commands(parts)
        return 0
    submitted = slurm.submit_parts(cluster, name, parts, folder / name)
    print(f"submitted {count} parts: {', '.join(job.job_id for job in submitted)}")
    print(f"  their logs: {folder / name}; the table, when they have ended: capsweep report")
    return 0


def _without_requeues(parsed: argparse.Namespace, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The cluster; a job whose next run would begin anew, with all of its hours or with finished
    cells, is not queued again.
    """
    bounds = (parsed.budget, parsed.max_hours, parsed.max_gpu_hours)
    if config["rerun"] != "always" and all(bound is None for bound in bounds):
        return config["cluster"]
    print("# a bound, or --rerun=always: it is run once, and not again when its nodes are taken")
    return {**config["cluster"], "requeues": 0, "retries": 0}


def _print_commands(commands: Sequence[Sequence[str]]) -> None:
    for words in commands:
        print(f"# would run: {shlex.join(words)}")
