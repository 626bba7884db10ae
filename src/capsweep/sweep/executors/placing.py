"""The nodes of a cluster at an address: what they have, and which of them may not run cells."""

import time
from collections.abc import Mapping
from typing import Any

from capsweep import terminal
from capsweep.errors import ConfigError, NodeError
from capsweep.ledger import causes
from capsweep.ray_start import exceptions, ray
from capsweep.sweep import node
from capsweep.sweep.cluster import Cluster
from capsweep.sweep.placement import Capacity, Node

ANSWERS = 60.0  # seconds, within which a node has begun a worker, unpacked the code and answered
LOOK = 10.0  # seconds between two looks at what a cluster has
KIND = "accelerator_type:"  # how Ray names the kind of a node's GPUs, as a resource
A_LITTLE = 0.001  # of it, which any number of trials can have
SELECTOR = "ray.io/node-id"


class Nodes:
    """The nodes as this sweep sees them. refused: the cause of each that may not run cells."""

    def __init__(self, cluster: Cluster, wanted: dict[str, Any]) -> None:
        self.cluster, self.wanted = cluster, wanted
        self.refused: dict[str, str] = {}
        self._looked, self._most = time.monotonic(), Capacity(0, 0)
        self._gone: tuple[str, ...] = ()

    def check(self) -> None:
        """Ask every node that is there whether it can run cells; those that come later are asked by
        the cells themselves.

        Raises ConfigError when none of them can.
        """
        assert self.cluster.config is not None
        asked = {_ask(one["NodeID"], self.wanted, self.cluster.config): one for one in _alive()}
        if not asked:
            self._say("no node has a core yet; cells wait until the cluster grows")
            return
        ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWERS)
        for reference in ready:
            if (cause := _answer(reference)) is not None:
                self.refused[asked[reference]["NodeID"]] = cause
        for reference in late:
            host = asked[reference]["NodeManagerHostname"]
            self._say(f"node {host} has not answered in {ANSWERS:.0f} s; it may be busy")
        if len(self.refused) == len(asked):
            first = next(iter(self.refused.values()))
            raise ConfigError(f"{self._name}: no node can run these cells: {first}")
        for cause in self.refused.values():
            self._say(f"left out: {cause}")

    def refuse(self, identity: str, cause: str) -> bool:
        """Give a node no more cells; whether there is another that may take them."""
        if identity not in self.refused:
            self.refused[identity] = cause
            self._say(f"left out: {cause}")
        return bool(self._others())

    def avoided(self) -> list[str]:
        """Nodes to be avoided; none when there is no other, where cells shall say why they fail."""
        return sorted(self.refused) if self.refused and self._others() else []

    def grown(self) -> Capacity | None:
        """What the cluster has now, when that is more than was ever seen, or when a kind of GPU was
        lost or came back; looked up seldom.
        """
        now = time.monotonic()
        if now - self._looked < LOOK:
            return None
        self._looked, before = now, (self._most, self._gone)
        found = self.capacity()
        return found if (self._most, self._gone) != before else None

    def capacity(self) -> Capacity:
        """The most that was there at once, or that the cluster may grow to. A lost node counts
        still: what cells take must not depend on it. But its kind is said to be gone.
        """
        found = capacity()
        if (found.gpu, found.cpu) > (self._most.gpu, self._most.cpu):
            self._most = found
        known = [kind for kind in self._most.kinds if kind is not None]
        self._gone = tuple(kind for kind in known if kind not in found.kinds)
        most, grown = self._most, self.cluster.grows_to
        nodes = most.nodes
        # Nodes that are there say what those that come will have.
        if most.cpu == 0 or (most.gpu == 0 and grown.gpu > 0):
            nodes = (*nodes, *grown.nodes)
        return Capacity(max(most.cpu, grown.cpu), max(most.gpu, grown.gpu), nodes, self._gone)

    def _others(self) -> list[str]:
        return [one["NodeID"] for one in _alive() if one["NodeID"] not in self.refused]

    @property
    def _name(self) -> str:
        return f"RAY_ADDRESS={self.cluster.address}"

    def _say(self, text: str) -> None:
        terminal.aside(f"{self._name}: {text}")


def capacity() -> Capacity:
    """What the nodes have that are there now."""
    had = [one["Resources"] for one in _alive()]
    nodes = tuple(
        Node(
            cpu=one.get("CPU", 0),
            gpu=one.get("GPU", 0),
            memory=one.get("memory", 0),
            kind=next((name.removeprefix(KIND) for name in one if name.startswith(KIND)), None),
        )
        for one in had
    )
    return Capacity(sum(node.cpu for node in nodes), sum(node.gpu for node in nodes), nodes)


def bundles(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a trial asks of the node that it is placed on, as arguments of a placement group."""
    bundle = {"CPU": config["cpu"], "GPU": config["gpu"]}  # one bundle is on one node
    if config["memory"]:
        bundle["memory"] = config["memory"]
    if config["kind"] is not None:
        bundle[KIND + config["kind"]] = A_LITTLE
    asked: dict[str, Any] = {"bundles": [bundle]}
    if config["avoided"]:
        names = ",".join(config["avoided"])
        asked["bundle_label_selector"] = [{SELECTOR: f"!in({names})"}]
    return asked


def _alive() -> list[dict[str, Any]]:
    """Nodes that cells can be placed on."""
    return [one for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU", 0) > 0]


def _ask(identity: str, wanted: dict[str, Any], config: Mapping[str, Any]) -> Any:
    placed = _check.options(label_selector={SELECTOR: identity})
    return placed.remote(wanted, config)


@ray.remote(num_cpus=0, max_retries=0)
def _check(wanted: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Runs on a node; the cause why it can run no cells."""
    try:
        node.check(wanted, config)
    except NodeError as error:
        return causes.describe_cause(error)
    return None


def _answer(reference: Any) -> str | None:
    try:
        return ray.get(reference)
    except exceptions.RayError as error:
        return causes.describe_cause(NodeError(str(error).strip().splitlines()[-1]))
