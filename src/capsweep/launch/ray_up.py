"""Clusters of virtual machines, by Ray's own `ray up` and `ray down`."""

import shutil
from collections.abc import Callable, Mapping
from importlib import util
from pathlib import Path
from typing import Any

import yaml

from capsweep.config import places
from capsweep.errors import ConfigError
from capsweep.launch import launch_files, programs, token
from capsweep.storage.files import write_text

Say = Callable[[str], None]

FAILED = 1
FILE = "cluster.yaml"


def up(cluster: Mapping[str, Any], folder: Path, say: Say) -> int:
    """Start the head, or bring it up to date; returns the exit status. folder: where the launch
    files are kept, by which `down` ends what was started.

    Raises ConfigError where something that is needed is missing, before anything is started.
    """
    ray = _ray()
    files = launch_files.ray_up(cluster, folder)
    _check_same(folder / FILE, files[FILE])
    path = token.ensure(cluster["token"], say)
    for name, text in files.items():
        write_text(folder / name, text)
    return _started(ray, cluster, folder / FILE, path, say)


def down(cluster: Mapping[str, Any], folder: Path, say: Say) -> int:
    """End every machine of the cluster; returns the exit status.

    By the files it was started with, or, where there are none, by those of its configuration.
    """
    ray, file = _ray(), folder / FILE
    if not file.exists():
        say(f"nothing was started from here ({file} is missing): going by conf/cluster")
        for name, text in launch_files.ray_up(cluster, folder).items():
            write_text(folder / name, text)
    if not _has_done(ray, "down", file, f"type it again: {_down(cluster)}", say):
        return FAILED
    shutil.rmtree(folder)
    say(f"{cluster['name']} is down")
    return 0


def commands(cluster: Mapping[str, Any], folder: Path) -> list[str]:
    """What `up` runs, for a dry run."""
    return [f"ray up -y {folder / FILE}  # with RAY_AUTH_MODE=token"]


def tunnel(folder: Path) -> str:
    """The command that brings the head's dashboard and its API of jobs to this machine."""
    return f"RAY_AUTH_MODE=token ray dashboard {folder / FILE}"


def check_places(config: Mapping[str, Any]) -> None:
    """Raise ConfigError where finished cells, or what a sweep remembers, would be on the head
    alone, and end with it.
    """
    if config["cluster"]["node"]["storage"] is not None:
        return
    for name in ("ledger", "storage"):
        if not places.is_url(place := config["places"][name]):
            raise ConfigError(
                f"places.{name}={place}: would be on the head alone, and end with it; set "
                "STORAGE=s3://BUCKET/FOLDER, or cluster.node.storage=FOLDER where all nodes mount "
                "one"
            )


def _started(ray: str, cluster: Mapping[str, Any], file: Path, token_file: Path, say: Say) -> int:
    name = cluster["name"]
    cure = f"capsweep cluster up {name} goes on, {_down(cluster)} ends them"
    if not _has_done(ray, "up", file, cure, say):
        return FAILED
    say(f"{name} is up. Its dashboard listens on the head alone; keep a tunnel open:")
    say(f"  {tunnel(file.parent)}")
    if token_file != token.file_of("~/.ray/auth_token"):
        say(f"  export RAY_AUTH_TOKEN_PATH={token_file}  # where sweeps are typed")
    say(f"then: capsweep sweep ablation --cluster {name} --storage s3://BUCKET/FOLDER")
    if cluster["instance_profile"] is None:
        say("cluster.instance_profile is null: its GPU machines may have no right to that store")
    say(f"the head costs money until: {_down(cluster)}")
    return 0


def _has_done(ray: str, verb: str, file: Path, cure: str, say: Say) -> bool:
    """Run `ray VERB`; whether it did all. Where not, also at Ctrl-C, what may be left is said."""
    half = f"machines may be running and cost money; {cure}"
    try:
        status = programs.run([ray, verb, "-y", str(file)])
    except KeyboardInterrupt:
        say(f"interrupted: {half}")
        raise
    if status:
        say(f"ray {verb} ended with {status}: {half}")
    return status == 0


def _down(cluster: Mapping[str, Any]) -> str:
    return f"capsweep cluster down {cluster['name']}"


def _ray() -> str:
    ray = programs.find("ray")
    if Path(ray).parent == programs.BESIDE and util.find_spec("boto3") is None:
        raise ConfigError("boto3: is not installed, by which Ray speaks to AWS; pip install boto3")
    return ray


def _check_same(file: Path, text: str) -> None:
    """Another cluster's files must not take the place of those by which it can be ended."""
    if not file.exists():
        return
    old, new = (yaml.safe_load(content) for content in (file.read_text(), text))
    if _identity(old) != _identity(new):
        raise ConfigError(
            f"cluster.cluster_name, cluster.region: {' in '.join(_identity(old))} was started from "
            "here; end it first (capsweep cluster down), or use another STORAGE"
        )


def _identity(config: Mapping[str, Any]) -> tuple[str, str]:
    return config["cluster_name"], config["provider"]["region"]
