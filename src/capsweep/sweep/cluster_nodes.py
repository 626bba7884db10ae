"""The nodes of a cluster: their CPUs and GPUs, and the checks before a node runs cells."""

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

LOOK_SECONDS = 10.0  # seconds between two reads of the cluster's nodes
CODE = "capsweep's code"
PACKAGES = ("torch", "pytorch-lightning", "ray")
# How long a node looks for the marker, and the time between two looks. A shared folder may show a
# new file late.
MARKER_SECONDS, POLL_SECONDS = 10.0, 0.2


class ClusterNodes:
    """The nodes of the cluster that runs a sweep.

    Args:
        cluster: The section `cluster` of a cell's configuration. Its `grows_to` is the size to
            which an autoscaler may grow the cluster.

    Attributes:
        name: The name of the cluster in messages: `RAY_ADDRESS=...`.
        refused: For each node that cannot run the cells, the reason, by the id of the node.
    """

    def __init__(self, cluster: Mapping[str, Any]) -> None:
        self.name, grows = f"RAY_ADDRESS={cluster['address']}", cluster["grows_to"]
        self._growth = Capacity.of_nodes([Capacity(grows["cpu"], grows["gpu"])] * grows["nodes"])
        self.refused: dict[str, str] = {}
        self._largest = Capacity(0, 0)
        self._last_look = time.monotonic()

    def refuse(self, node_id: str, cause: str) -> bool:
        """Record that a node cannot run the cells, and return whether a usable node is left."""
        if node_id not in self.refused:
            self.refused[node_id] = cause
            terminal.print_aside(f"{self.name}: a node is not used: {cause}")
        return self._has_usable_node()

    def check_usable(self) -> None:
        """Raise ConfigError if every node was refused."""
        if self.refused and not self._has_usable_node():
            causes = "; ".join(self.refused.values())
            raise ConfigError(f"{self.name}: no node can run these cells: {causes}")

    def find_growth(self) -> Capacity | None:
        """Return the new capacity if the cluster is larger than at any time before, else None.

        The nodes are read at most once in LOOK_SECONDS. Until then, the result is None.
        """
        if time.monotonic() - self._last_look < LOOK_SECONDS:
            return None
        self._last_look, before = time.monotonic(), self._largest
        capacity = self.read_capacity()
        return capacity if self._largest != before else None

    def read_capacity(self) -> Capacity:
        """Return the largest capacity that the cluster has had so far, or `grows_to` if larger.

        Lost nodes still count, because the resources of a cell must not change when a node is lost.
        """
        resources = [node["Resources"] for node in _list_nodes()]
        now = Capacity.of_nodes([Capacity(had["CPU"], had.get("GPU", 0)) for had in resources])
        self._largest = max(self._largest, now, key=lambda had: (had.gpu, had.cpu))
        most, growth, nodes = self._largest, self._growth, self._largest.nodes
        # An autoscaler is assumed to start nodes like the present nodes. So the nodes of `grows_to`
        # are included in two cases only: there was no node so far; or no node so far had a GPU, and
        # `grows_to` has GPUs.
        if most.cpu == 0 or (most.gpu == 0 and growth.gpu > 0):
            nodes = (*nodes, *growth.nodes)
        return Capacity(max(most.cpu, growth.cpu), max(most.gpu, growth.gpu), nodes)

    def _has_usable_node(self) -> bool:
        return any(node["NodeID"] not in self.refused for node in _list_nodes())


def _list_nodes() -> list[dict[str, Any]]:
    """Return Ray's records of the nodes that are alive and have a CPU."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


@contextmanager
def node_requirements(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield, as plain data, the requirements that `check_node` checks on a node.

    Until the `with` block ends, the ledger holds a marker file. A node that finds the marker has
    the same ledger as the driver.
    """
    ledger = places.resolve(config["places"]).ledger
    store, marker = open_store(ledger), f".driver-{secrets.token_hex(8)}"
    store.write(marker, b"")
    try:
        yield {"versions": read_versions(), "ledger": hide_query(ledger), "marker": marker}
    finally:
        with suppress(OSError):  # a marker that stays is harmless: it is not taken for a cell
            store.remove(marker)


def check_node(required: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Check that this node has the driver's versions, and can read and write the driver's ledger.

    Args:
        required: The requirements that `node_requirements` yielded in the driver's process.
        config: The configuration of a cell; only `places` and `cluster` are read.

    Raises:
        NodeError: The node does not meet a requirement; the message names the cure.
    """
    node, versions = f"node {socket.gethostname()}", read_versions()
    expected = required["versions"]
    wrong = [name for name in expected if versions.get(name) != expected[name]]
    if wrong:
        text = ", ".join(f"{name} {versions.get(name)}, not {expected[name]}" for name in wrong)
        raise NodeError(f"{node} has {text}; install the driver's versions on this node")
    try:
        ledger = places.resolve_on_node(config).ledger
        store, until = open_store(ledger), time.monotonic() + MARKER_SECONDS
        while store.read(required["marker"]) is None:
            if time.monotonic() > until:
                raise UserError(
                    f"places.ledger: {hide_query(ledger)} on this node is not the driver's "
                    f"{required['ledger']}; give a folder that all nodes share (STORAGE=..., "
                    "cluster.node.storage=... if nodes have it elsewhere), or an object store "
                    "(STORAGE=s3://... or LEDGER=s3://...)"
                )
            time.sleep(POLL_SECONDS)
        prove_writable(store, f"{required['marker']}-{secrets.token_hex(4)}")
    except UserError as error:
        raise NodeError(f"{node}: {error}") from error


def read_versions() -> dict[str, str]:
    """Return the versions of the packages that decide results, and a hash of capsweep's code.

    The part of a version after a `+`, such as `+cpu`, names the device of the build. This part is
    left out, because builds for different devices have the same code.
    """
    versions = {name: (find_version(name) or "absent").partition("+")[0] for name in PACKAGES}
    return {CODE: code_identity.hash_package(), **versions}
