"""Where jobs run. An executor draws jobs from a queue and reports what happens to them. Ray is
imported only where it is chosen, since it need not be installed."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.errors import ConfigError
from capsweep.sweep.gpu_packing import Capacity, Node
from capsweep.sweep.queue import JobQueue

NAMES = ("ray", "local", "array")
NOTHING = Capacity(0, 0)


@dataclass(frozen=True)
class Cluster:
    """A cluster of Ray, or a Ray of this machine alone.

    address: None: of this machine, ended with the sweep. grows_to: what an autoscaler may bring it
    to, 0: what it has. config: the `places` and the `cluster` of its cells, read again on nodes.
    """

    address: str | None = None
    grows_to: Capacity = NOTHING
    config: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Cluster":
        """The cluster that a cell's configuration names."""
        grows = config["cluster"]["grows_to"]
        nodes = [Node(grows["cpu"], grows["gpu"])] * grows["nodes"]
        own = {name: config[name] for name in ("places", "cluster")}
        return cls(config["cluster"]["address"], Capacity.of_nodes(nodes), own)


LOCAL = Cluster()


# Runs jobs until the queue is exhausted; returns early, without an exception, when the user
# interrupts. The folder is of this machine, for its own files.
Executor = Callable[[JobQueue, Path, Cluster], None]


def choose_executor(name: str) -> Executor:
    """The executor of that name. Raises ConfigError when it is unknown or Ray is not installed."""
    if name in ("local", "array"):  # a job of an array runs its part of the cells by itself
        from capsweep.sweep.executors import local

        return local.execute
    if name == "ray":
        for package in ("ray", "pandas"):  # found and not imported, which takes a second
            if importlib.util.find_spec(package) is None:
                cure = "install ray[tune] or set EXECUTOR=local"
                raise ConfigError(f"EXECUTOR=ray: No module named '{package}'; {cure}")
        return _execute_on_ray
    raise ConfigError(f"EXECUTOR={name}: have {', '.join(NAMES)}")


def _execute_on_ray(queue: JobQueue, scratch: Path, cluster: Cluster) -> None:
    from capsweep.sweep.executors import ray_tune

    ray_tune.execute(queue, scratch, cluster)
