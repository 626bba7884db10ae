"""Which Ray runs a sweep, as executors are told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capsweep.sweep.gpu_packing import Capacity, Node

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
        nodes = (Node(grows["cpu"], grows["gpu"]),) * grows["nodes"]
        needed = {name: config[name] for name in ("places", "cluster")}
        size = Capacity(sum(one.cpu for one in nodes), sum(one.gpu for one in nodes), nodes)
        return cls(config["cluster"]["address"], size, needed)


LOCAL = Cluster()
