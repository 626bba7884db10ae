"""`capsweep cluster`, and sweeps that are handed to Slurm."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capsweep.cli.command import Commands, add_command, add_group
from capsweep.cluster import remote_command
from capsweep.errors import ConfigError, UserError

# Clusters that were started by commands of ours, and what starts them now.
EXAMPLES = {
    "aws": "ray up docs/examples/aws.yaml, ray down docs/examples/aws.yaml; then CLUSTER=address",
    "kuberay": "kubectl apply -f docs/examples/kuberay.yaml",
    "slurm": "nothing stands between sweeps: make sweep CLUSTER=slurm submits one",
}


def add_parser(commands: Commands) -> None:
    """Add the command; its three commands say what is used instead."""
    cluster = add_group(commands, "cluster", "how clusters are started and ended")
    for name, text in (("up", "start"), ("down", "end"), ("show", "show")):
        command = add_command(cluster, name, _refer_to_example, f"how to {text} a cluster")
        command.add_argument("name", choices=[*EXAMPLES], help="aws, kuberay or slurm")
        command.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
        for option in ("--storage", "--dry-run"):
            command.add_argument(option, nargs="?", help=argparse.SUPPRESS)


def _refer_to_example(parsed: argparse.Namespace) -> int:
    raise UserError(f"capsweep cluster {parsed.name}: use {EXAMPLES[parsed.name]}")


def add_dry_run(sweep: argparse.ArgumentParser) -> None:
    """Add the option with which a sweep prints what Slurm would be given."""
    text = "with CLUSTER=slurm: print all that would be submitted, and submit nothing"
    sweep.add_argument("--dry-run", action="store_true", help=text)


def submit_to_slurm(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int | None:
    """Hand a sweep to Slurm: an exit status. None: its cluster is another, or it runs inside.

    config: of its first cell. Raises ConfigError naming option or key.
    """
    cluster = config["cluster"]
    is_driven_here = parsed.here or parsed.shard is not None or parsed.executor == "local"
    if cluster.get("launcher") is None or is_driven_here:
        if parsed.dry_run:
            raise ConfigError(
                f"--dry-run: nothing is submitted with cluster={cluster['name']}; "
                "`capsweep plan` prints the cells"
            )
        return None
    if parsed.executor == "array":
        return _submit_array(parsed, config)
    if parsed.executor != "ray":
        raise ConfigError(f"--executor {parsed.executor}: cluster={cluster['name']} runs Ray")
    return _submit_script(parsed, config)


def _folder(config: Mapping[str, Any]) -> Path:
    from capsweep.config import places

    here = places.resolve(config["places"])
    return here.storage / "clusters" / config["cluster"]["name"]


def _submit_script(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.cluster import slurm

    cluster, folder = _run_once(parsed, config), _folder(config)
    words = remote_command.inner_command(parsed, config, staged=False)
    name, text = slurm.render_script(cluster, parsed.sweep, words, folder)
    if parsed.dry_run:
        print(f"# ---- {name}\n{text}")
        _print_commands([shlex.join(["sbatch", "--parsable", str(folder / name)])])
        return 0
    return slurm.submit_script(cluster, name, text, folder, print)


def _submit_array(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.cluster import slurm

    array = _import_array()
    cluster, count = _run_once(parsed, config), config["cluster"]["array"]["parts"]
    if parsed.max_gpu_hours is not None:
        raise ConfigError(
            f"--max-gpu-hours: each of the {count} parts of an array would have as many; use "
            "--max-hours, which each part has for itself, or leave out --executor array"
        )
    inner = remote_command.inner_command(parsed, config, staged=False)
    whole = [sys.executable, "-m", "capsweep", *inner]
    parts = [[*whole, f"--shard={index}/{count}"] for index in range(1, count + 1)]
    job = slurm.name_job(parsed.sweep, inner)
    folder = _folder(config) / job
    if parsed.dry_run:
        for key, value in array.parameters(cluster, job).items():
            print(f"# {key}: {value}")
        _print_commands([shlex.join(part) for part in parts])
        return 0
    jobs = array.submit(cluster, job, parts, folder)
    print(f"submitted {count} parts: {', '.join(job.job_id for job in jobs)}")
    print(f"  their logs: {folder}; the table, when they have ended: capsweep report")
    return 0


def _run_once(parsed: argparse.Namespace, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The cluster, which must not run a job again whose next run would begin anew: with all of its
    hours, or with finished cells.
    """
    typed = {
        "--budget": parsed.budget,
        "--max-hours": parsed.max_hours,
        "--max-gpu-hours": parsed.max_gpu_hours,
        "--rerun=always": config["rerun"] == "always" or None,
    }
    given = [name for name, value in typed.items() if value is not None]
    if not given:
        return config["cluster"]
    print(f"# {given[0]}: it is run once, and not again by itself when its nodes are taken")
    return {**config["cluster"], "requeues": 0, "retries": 0}


def _import_array() -> Any:
    try:
        from capsweep.cluster import array
    except ImportError as error:
        raise ConfigError(f"--executor array: {error}; pip install 'capsweep[slurm]'") from error
    return array


def _print_commands(commands: Sequence[str]) -> None:
    for line in commands:
        print(f"# would run: {line}")
