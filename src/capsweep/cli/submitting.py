"""Sweeps that are handed to Slurm, or to the job server of a cluster that drives them itself."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep import terminal
from capsweep.cli import jobs
from capsweep.cli.command import Commands, add_command
from capsweep.cluster import driver, job_server
from capsweep.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from capsweep.cli.jobs import ChosenCells


def add_parser(commands: Commands) -> None:
    """Add `cluster`, which started clusters once and says what does it now."""
    command = add_command(commands, "cluster", _refer_to_examples, "how clusters are started")
    command.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _refer_to_examples(parsed: argparse.Namespace) -> int:
    raise UserError(
        "capsweep cluster: use `ray up docs/examples/aws.yaml` and CLUSTER=address, or `kubectl "
        "apply -f docs/examples/kuberay.yaml`; on Slurm `make sweep CLUSTER=slurm` submits a sweep"
    )


def add_options(sweep: argparse.ArgumentParser) -> None:
    """Add the options of a sweep that is submitted."""
    text = "submit to the cluster's job server and return; see attach, status, stop"
    sweep.add_argument("--detach", action="store_true", help=text)
    driver.add_here_option(sweep)
    text = "with CLUSTER=slurm: print all that would be submitted, and submit nothing"
    sweep.add_argument("--dry-run", action="store_true", help=text)


def submit_sweep(
    parsed: argparse.Namespace, chosen: "ChosenCells", config: Mapping[str, Any], console: "Console"
) -> int | None:
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
        return _submit_job(parsed, chosen, config, console)
    return None


def _submit_job(
    parsed: argparse.Namespace, chosen: "ChosenCells", config: Mapping[str, Any], console: "Console"
) -> int:
    """Submit the sweep, or find the job that runs it; attach unless --detach is given."""
    cluster = config["cluster"]
    if parsed.executor != "ray":  # it would train, or lose results, on the head
        raise ConfigError(
            f"--executor {parsed.executor}: cluster={cluster['name']} is driven by a job, which "
            "runs Ray; leave it out, or the cluster"
        )
    server = job_server.open_jobs(cluster)
    from capsweep.cluster import submit

    words = driver.make_inner_command(parsed, config)
    job, is_new = submit.submit_sweep(server, chosen[0].path, words, cluster["python"])
    terminal.print_line(
        console, f"{'submitted' if is_new else 'this command runs already'}: {job.id}"
    )
    if not parsed.detach:
        return jobs.watch_job(server, job, console, chosen if chosen[1] else None)
    jobs.warn_of_other_code(job, lambda text: terminal.print_line(console, text))
    command = f"capsweep attach | status | stop {job.sweep} --address {server.address}"
    terminal.print_line(console, command)
    return 0


def _submit_to_slurm(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.cluster import slurm
    from capsweep.config import places

    cluster = _without_requeues(parsed, config)
    words = driver.make_inner_command(parsed, config, staged=False)
    folder = places.resolve(config["places"]).storage / "clusters" / cluster["name"]
    if parsed.executor == "array":
        return _submit_array(parsed, cluster, words, folder)
    if parsed.executor != "ray":
        raise ConfigError(f"--executor {parsed.executor}: cluster={cluster['name']} runs Ray")
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
    whole = [sys.executable, "-m", "capsweep", *words]
    parts = [[*whole, f"--shard={index}/{count}"] for index in range(1, count + 1)]
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
    given = {
        "--budget": parsed.budget is not None,
        "--max-hours": parsed.max_hours is not None,
        "--max-gpu-hours": parsed.max_gpu_hours is not None,
        "--rerun=always": config["rerun"] == "always",
    }
    option = next((name for name, is_given in given.items() if is_given), None)
    if option is None:
        return config["cluster"]
    print(f"# {option}: it is run once, and not again by itself when its nodes are taken")
    return {**config["cluster"], "requeues": 0, "retries": 0}


def _print_commands(commands: Sequence[Sequence[str]]) -> None:
    for words in commands:
        print(f"# would run: {shlex.join(words)}")
