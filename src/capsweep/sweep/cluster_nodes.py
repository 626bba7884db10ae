"""The nodes of a cluster: what they have, which may not run cells, and what each must have."""

import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from capsweep.config import code_identity, places
from capsweep.errors import ConfigError, NodeError, UserError
from capsweep.runtime import terminal
from capsweep.runtime.ray_start import ray
from capsweep.storage.stores import hide_query, open_store, prove_writable
from capsweep.sweep.resources import Capacity
from capsweep.training.provenance import find_version

LOOK_SECONDS = 10.0  # between two looks at what a cluster has
CODE = "capsweep's code"
PACKAGES = ("torch", "pytorch-lightning", "ray")
MARKER_SECONDS, POLL_SECONDS = 10.0, 0.2  # a shared folder may show a new file late


class ClusterNodes:
    """The nodes as a sweep sees them. refused: the cause of each that cannot run its cells.

    cluster: the section of a cell, which says to what an autoscaler may bring it.
    """

    def __init__(self, cluster: Mapping[str, Any]) -> None:
        self.name, grows = f"RAY_ADDRESS={cluster['address']}", cluster["grows_to"]
        self._growth = Capacity.of_nodes([Capacity(grows["cpu"], grows["gpu"])] * grows["nodes"])
        self.refused: dict[str, str] = {}
        self._largest = Capacity(0, 0)
        self._last_look = time.monotonic()

    def refuse(self, node_id: str, cause: str) -> bool:
        """Give a node no more cells; whether there is another."""
        if node_id not in self.refused:
            self.refused[node_id] = cause
            terminal.print_aside(f"{self.name}: left out: {cause}")
        return self._has_usable_node()

    def check_usable(self) -> None:
        """Raise ConfigError where all nodes were refused."""
        if self.refused and not self._has_usable_node():
            causes = "; ".join(self.refused.values())
            raise ConfigError(f"{self.name}: no node can run these cells: {causes}")

    def find_growth(self) -> Capacity | None:
        """Return the capacity, when the cluster has more than it ever had; looked up seldom."""
        if time.monotonic() - self._last_look < LOOK_SECONDS:
            return None
        self._last_look, before = time.monotonic(), self._largest
        capacity = self.read_capacity()
        return capacity if self._largest != before else None

    def read_capacity(self) -> Capacity:
        """Return the most that was there at once, or that the cluster may grow to. Lost nodes still
        count: the resources of cells must not depend on them.
        """
        resources = [node["Resources"] for node in _list_nodes()]
        now = Capacity.of_nodes([Capacity(had["CPU"], had.get("GPU", 0)) for had in resources])
        self._largest = max(self._largest, now, key=lambda had: (had.gpu, had.cpu))
        most, growth, nodes = self._largest, self._growth, self._largest.nodes
        # Nodes that are there tell what those that come will have.
        if most.cpu == 0 or (most.gpu == 0 and growth.gpu > 0):
            nodes = (*nodes, *growth.nodes)
        return Capacity(max(most.cpu, growth.cpu), max(most.gpu, growth.gpu), nodes)

    def _has_usable_node(self) -> bool:
        return any(node["NodeID"] not in self.refused for node in _list_nodes())


def _list_nodes() -> list[dict[str, Any]]:
    """Return the nodes that cells can be placed on."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


@contextmanager
def node_requirements(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give what `check_node` asks of a node, as plain data. While the block lasts, the ledger holds
    a marker, by which a node tells it from another one.
    """
    ledger = places.resolve(config["places"]).ledger
    store, marker = open_store(ledger), f".driver-{secrets.token_hex(8)}"
    store.write(marker, b"")
    try:
        yield {"versions": read_versions(), "ledger": hide_query(ledger), "marker": marker}
    finally:
        with suppress(OSError):  # a file that stays is no cell, and disturbs nobody
            store.remove(marker)


def check_node(required: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise NodeError, with the cure, where this node has other versions than its driver, or cannot
    read and write the driver's ledger.

    config: the `places` and the `cluster` of a cell.
    """
    node, versions = f"node {socket.gethostname()}", read_versions()
    expected = required["versions"]
    wrong = [name for name in expected if versions.get(name) != expected[name]]
    if wrong:
        text = ", ".join(f"{name} {versions.get(name)}, not {expected[name]}" for name in wrong)
        raise NodeError(f"{node} has {text}; install there what the driver has")
    try:
        ledger = places.on_node(config).ledger
        store, until = open_store(ledger), time.monotonic() + MARKER_SECONDS
        while store.read(required["marker"]) is None:
            if time.monotonic() > until:
                raise UserError(
                    f"places.ledger: its {hide_query(ledger)} is not the driver's "
                    f"{required['ledger']}; give a folder that all nodes share (STORAGE=..., "
                    "cluster.node.storage=... where nodes have it elsewhere), or an object store "
                    "(STORAGE=s3://... or LEDGER=s3://...)"
                )
            time.sleep(POLL_SECONDS)
        prove_writable(store, f"{required['marker']}-{secrets.token_hex(4)}")
    except UserError as error:
        raise NodeError(f"{node}: {error}") from error


def read_versions() -> dict[str, str]:
    """Return the versions of what decides the numbers here. Builds of one version for other
    devices, which differ after a `+`, are the same code.
    """
    versions = {name: (find_version(name) or "absent").partition("+")[0] for name in PACKAGES}
    return {CODE: code_identity.hash_package(), **versions}
