"""Bounds of the keys by which clusters are launched: those of conf/cluster files beside the common
ones."""

from collections.abc import Callable, Mapping
from typing import Any

Rule = tuple[str, Callable[[Any], bool]]  # in words, and whether a value keeps it

LAUNCHERS = ("ray_up", "kubectl", "sbatch")
TEXTS_OR_NULL = (
    *("zone", "instance_profile", "security_group", "ssh_key", "key_pair"),  # AWS
    *("image", "token_secret", "claim", "workers.label"),  # Kubernetes
    *("partition", "account", "qos", "constraint", "memory", "setup"),  # Slurm
)
NUMBERS = {  # the least
    **dict.fromkeys(("head.cpus", "head.disk"), 1),
    **dict.fromkeys(("workers.cpus", "workers.max", "workers.disk"), 1),
    **dict.fromkeys(("user", "hours", "idle_minutes", "nodes", "cpus"), 1),
    **dict.fromkeys(("array.parts", "array.parallel"), 1),
    **dict.fromkeys(("workers.gpus", "gpus", "keep_minutes", "retries", "requeues"), 0),
    "warn_seconds": 10,
}


def _text_or_null(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value != "")


def _at_least(low: int) -> Rule:
    return f">= {low}", lambda value: isinstance(value, (int, float)) and value >= low


def _one_of(*names: str) -> Rule:
    return f"one of {', '.join(names)}", lambda value: value in names


BOUNDS: Mapping[str, Rule] = {
    "cluster.launcher": _one_of(*LAUNCHERS),
    "cluster.token": ("a file's path", bool),
    "cluster.array.through": _one_of("slurm", "local", "debug"),
    **{f"cluster.{key}": ("null or a text", _text_or_null) for key in TEXTS_OR_NULL},
    **{f"cluster.{key}": _at_least(low) for key, low in NUMBERS.items()},
}
