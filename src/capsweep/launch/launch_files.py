"""The files by which clusters and jobs are launched, as text: nothing is written or started."""

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capsweep.errors import ConfigError
from capsweep.launch import driver, rayjob, rendering, requirements, token

NAME_LENGTH = 40  # of a job; KubeRay takes 47 and adds to it


def launcher(cluster: Mapping[str, Any]) -> str:
    """What launches this cluster. Raises ConfigError for a cluster that is there already."""
    name = cluster.get("launcher")
    if name is None:
        raise ConfigError(
            f"cluster={cluster['name']}: nothing to launch; it is a Ray of this machine, or one "
            "that runs; aws, kuberay and slurm have a cluster.launcher"
        )
    return name


def job_name(sweep: str, command: Sequence[str]) -> str:
    """A job's name: of the sweep, and different for different choices; the same for the same."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(sweep).stem.lower()).strip("-")
    digest = hashlib.sha256("\0".join(command).encode()).hexdigest()[:8]
    room = NAME_LENGTH - len("capsweep--") - len(digest)
    return f"capsweep-{stem[:room].strip('-') or 'sweep'}-{digest}"


def ray_up(cluster: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """For `ray up`. folder: where they are to lie, since the one names the other."""
    if (cluster["ssh_key"] is None) != (cluster["key_pair"] is None):
        raise ConfigError("cluster.ssh_key and cluster.key_pair belong together: set both or none")
    named = {
        "requirements": str(folder / "requirements.txt"),
        "token": str(token.file_of(cluster["token"])),
    }
    text = rendering.render_yaml("aws.yaml.j2", {**cluster, **named})
    return {"cluster.yaml": text, "requirements.txt": requirements.pinned()}


def image(cluster: Mapping[str, Any]) -> dict[str, str]:
    """For an image with which KubeRay can run."""
    text = rendering.render_shell("Dockerfile.j2", _without_breaks(cluster, "base_image"))
    return {"Dockerfile": text, "requirements.txt": requirements.pinned()}


def kuberay(
    cluster: Mapping[str, Any], sweep: str, words: Sequence[str], job_id: str
) -> dict[str, str]:
    """For `kubectl apply`: a RayJob that drives `capsweep words`, known to Ray as `job_id`."""
    if cluster["image"] is None:
        raise ConfigError(
            "cluster.image: name an image that contains capsweep; `capsweep cluster show kuberay` "
            "prints a Dockerfile for one"
        )
    command = ["capsweep", *words]
    job = job_name(sweep, command)
    values = {
        **cluster,
        "job": job,
        "job_id": job_id,
        "entrypoint": shlex.join(driver.encoded(command)),
        "sweep_label": job.removeprefix("capsweep-").rpartition("-")[0],
    }
    text = rendering.render_yaml("kuberay.yaml.j2", values)
    rayjob.check(text)
    return {f"{job}.yaml": text}


def slurm(
    cluster: Mapping[str, Any], sweep: str, words: Sequence[str], folder: Path
) -> dict[str, str]:
    """For `sbatch`: a script that drives `capsweep words` from the current folder. folder: where
    the job's log is to lie.
    """
    command = [sys.executable, "-m", "capsweep", *words]
    job = job_name(sweep, words)
    setup = cluster["setup"]
    values = {
        **cluster,
        "job": job,
        "log": str(folder / f"{job}-%j.log"),
        "folder": os.getcwd(),
        "setup": None if setup is None else os.path.abspath(os.path.expanduser(setup)),
        "token": str(token.file_of(cluster["token"])),
        "programs": str(Path(sys.executable).parent),
        "python": sys.executable,
        "command": command,
    }
    return {f"{job}.sh": rendering.render_shell("slurm.sh.j2", values)}


def _without_breaks(cluster: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        if re.search(r"\s", cluster[key]):
            raise ConfigError(f"cluster.{key}={cluster[key]!r}: no blank may stand in it")
    return cluster
