"""`capsweep cluster up | down | show NAME`, and sweeps that are handed to a cluster's launcher."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsweep.cli.command import Commands, add_command, add_group
from capsweep.cluster_doors import words
from capsweep.errors import ConfigError

if TYPE_CHECKING:
    from capsweep.config.places import Places

EXAMPLE = "ablation"  # the sweep whose launch files `cluster show` prints


def add(doors: Commands) -> None:
    """Add the command."""
    text = "start, end and show clusters: files of conf/cluster that have a launcher"
    cluster = add_group(doors, "cluster", text)
    starts = "start a cluster, or say what its sweeps need; a dry run prints what would be done"
    ends = "end a cluster and all that it costs"
    for name, door, does in (("up", _up, starts), ("down", _down, ends)):
        command = add_command(cluster, name, door, does)
        command.add_argument("--dry-run", action="store_true", help="print it, and do nothing")
        _add_choice(command)
    _add_choice(add_command(cluster, "show", _show, "print the launch files"))


def add_dry_run(sweep: argparse.ArgumentParser) -> None:
    """Add the option with which a sweep prints what a launcher would be given."""
    text = "with a cluster that is launched: print all that would be submitted, and submit nothing"
    sweep.add_argument("--dry-run", action="store_true", help=text)


def sweep(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int | None:
    """Hand a sweep to its cluster's launcher: an exit status. None: it is not launched, or by a job
    of the cluster (`cluster.submit`).

    config: of its first cell. Raises ConfigError naming option or key.
    """
    cluster = config["cluster"]
    launcher = cluster.get("launcher")
    is_driven_here = parsed.here or parsed.shard is not None or parsed.executor == "local"
    if launcher is None or is_driven_here or (launcher == "ray_up" and not parsed.dry_run):
        if parsed.dry_run:
            raise ConfigError(
                f"--dry-run: nothing is submitted with cluster={cluster['name']}; "
                "`capsweep plan` prints the cells"
            )
        return None
    if launcher == "sbatch" and parsed.executor == "array":
        return _submit_array(parsed, config)
    if parsed.executor != "ray":
        raise ConfigError(f"--executor {parsed.executor}: cluster={cluster['name']} runs Ray")
    return {"ray_up": _print_ray_up, "kubectl": _to_kubernetes, "sbatch": _to_slurm}[launcher](
        parsed, config
    )


def _add_choice(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", help="a file of conf/cluster: aws, kuberay, slurm")
    command.add_argument("overrides", nargs="*", help="its keys: cluster.workers.max=8")
    command.add_argument("--storage", help="where its launch files are kept; default: outputs")


def _chosen(parsed: argparse.Namespace) -> tuple[Mapping[str, Any], Path, str]:
    """The cluster's section, the folder of its launch files, and what launches it."""
    from capsweep.config import compose
    from capsweep.config.overrides import render
    from capsweep.launch import launch_files

    storage = [] if parsed.storage is None else [render("places.storage", parsed.storage)]
    config = compose.cell([f"cluster={parsed.name}", *storage, *parsed.overrides]).config
    return config["cluster"], _folder(config), launch_files.launcher(config["cluster"])


def _folder(config: Mapping[str, Any]) -> Path:
    from capsweep.config import places

    here: Places = places.resolve(config["places"])
    return here.storage / "clusters" / config["cluster"]["name"]


def _up(parsed: argparse.Namespace) -> int:
    from capsweep.launch import kubectl, ray_up, sbatch

    cluster, folder, launcher = _chosen(parsed)
    if parsed.dry_run:
        _print_files(_example(cluster, folder, launcher))
        _print_commands(ray_up.commands(cluster, folder) if launcher == "ray_up" else [])
        return 0
    if launcher == "ray_up":
        return ray_up.up(cluster, folder, print)
    return {"kubectl": kubectl.up, "sbatch": sbatch.up}[launcher](cluster, print)


def _down(parsed: argparse.Namespace) -> int:
    from capsweep.launch import kubectl, ray_up, sbatch

    cluster, folder, launcher = _chosen(parsed)
    if parsed.dry_run:
        down = {"kubectl": lambda: shlex.join(["kubectl", *kubectl.deletion(cluster)])}
        down["ray_up"] = lambda: f"ray down -y {folder / ray_up.FILE}"
        _print_commands([down[launcher]()] if launcher in down else [])
        return 0
    if launcher == "ray_up":
        return ray_up.down(cluster, folder, print)
    return {"kubectl": kubectl.down, "sbatch": sbatch.down}[launcher](cluster, print)


def _show(parsed: argparse.Namespace) -> int:
    _print_files(_example(*_chosen(parsed)))
    return 0


def _example(cluster: Mapping[str, Any], folder: Path, launcher: str) -> dict[str, str]:
    """Launch files: those of a cluster, or of a sweep where each sweep brings its own."""
    from capsweep.launch import launch_files

    command = ["sweep", EXAMPLE, "--here", f"--cluster={cluster['name']}"]
    if launcher == "ray_up":
        return launch_files.ray_up(cluster, folder)
    if launcher == "sbatch":
        return launch_files.slurm(cluster, EXAMPLE, command, folder)
    files = launch_files.image(cluster)
    if cluster["image"] is None:
        print("# cluster.image is null: with an image, the RayJob of a sweep is printed too")
        return files
    return files | launch_files.kuberay(cluster, EXAMPLE, command, f"capsweep-{EXAMPLE}")


def _print_ray_up(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.launch import launch_files, ray_up

    ray_up.check_places(config)
    folder = _folder(config)
    _print_files(launch_files.ray_up(config["cluster"], folder))
    inner = shlex.join(["capsweep", *words.inner_command(parsed, config)])
    job = f"{inner}  # as a job of the head, through {config['cluster']['jobs']}"
    _print_commands([*ray_up.commands(config["cluster"], folder), ray_up.tunnel(folder), job])
    return 0


def _to_kubernetes(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.launch import kubectl, launch_files
    from capsweep.submission import names

    cluster = _run_once(parsed, config)
    kubectl.check_places(cluster, config)
    if parsed.sweep.endswith(".yaml"):
        raise ConfigError(
            f"{parsed.sweep}: pods see only the sweeps of their image; put it into sweeps/, build "
            "the image anew, and give its name alone"
        )
    inner = words.inner_command(parsed, config)
    job_id = str(names.of(parsed.sweep, inner))
    files = launch_files.kuberay(cluster, parsed.sweep, inner, job_id)
    if parsed.dry_run:
        _print_files(files)
        _print_commands(kubectl.commands(cluster))
        return 0
    ((name, text),) = files.items()
    return kubectl.submit(cluster, parsed.sweep, Path(name).stem, text, print)


def _to_slurm(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.launch import launch_files, sbatch

    cluster, folder = _run_once(parsed, config), _folder(config)
    inner = words.inner_command(parsed, config, staged=False)
    files = launch_files.slurm(cluster, parsed.sweep, inner, folder)
    ((name, text),) = files.items()
    if parsed.dry_run:
        _print_files(files)
        _print_commands([shlex.join(["sbatch", "--parsable", str(folder / name)])])
        return 0
    return sbatch.submit(cluster, name, text, folder, print)


def _submit_array(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.launch import launch_files

    array = _array_of_submitit()
    cluster, count = _run_once(parsed, config), config["cluster"]["array"]["parts"]
    if parsed.max_gpu_hours is not None:
        raise ConfigError(
            f"--max-gpu-hours: each of the {count} parts of an array would have as many; use "
            "--max-hours, which each part has for itself, or leave out --executor array"
        )
    inner = words.inner_command(parsed, config, staged=False)
    whole = [sys.executable, "-m", "capsweep", *inner]
    parts = [[*whole, f"--shard={index}/{count}"] for index in range(1, count + 1)]
    job = launch_files.job_name(parsed.sweep, inner)
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


def _array_of_submitit() -> Any:
    try:
        from capsweep.launch import array
    except ImportError as error:
        raise ConfigError(f"--executor array: {error}; pip install 'capsweep[slurm]'") from error
    return array


def _print_files(files: Mapping[str, str]) -> None:
    for name, text in files.items():
        print(f"# ---- {name}\n{text}")


def _print_commands(commands: Sequence[str]) -> None:
    for line in commands or ["nothing is started: each sweep brings its own nodes"]:
        print(f"# would run: {line}" if commands else f"# {line}")
