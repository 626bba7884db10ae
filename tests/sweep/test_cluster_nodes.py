"""What a node must have before it trains, and the nodes that a cluster has."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server

pytest.importorskip("ray")

from capsweep.config.cell import Cell
from capsweep.errors import ConfigError, NodeError
from capsweep.sweep import cluster_nodes
from capsweep.sweep.cluster_nodes import ClusterNodes, check_node, node_requirements
from capsweep.sweep.resources import Capacity


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_nodes, "MARKER_SECONDS", 0.0)
    monkeypatch.setattr(cluster_nodes, "LOOK_SECONDS", 0.0)


def test_a_node_with_its_drivers_versions_and_ledger(
    small_cell: Callable[..., Cell], storage: Path
) -> None:
    config = small_cell().config
    with node_requirements(config) as required:
        check_node(json.loads(json.dumps(required)), config)
        assert len(list((storage / "ledger").iterdir())) == 1
    assert list((storage / "ledger").iterdir()) == []


@pytest.mark.parametrize("name", ["torch", cluster_nodes.CODE])
def test_other_versions_are_named_with_the_cure(small_cell: Callable[..., Cell], name: str) -> None:
    config = small_cell().config
    with node_requirements(config) as required:
        required["versions"][name] = "0.1"
        version = cluster_nodes.read_versions()[name]
        text = f"^node .* has {name} {version}, not 0.1; install the driver's versions on"
        with pytest.raises(NodeError, match=text):
            check_node(required, config)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "cluster.node.storage=FOLDER/other",
            "other/ledger on this node is not the driver's .*LEDGER=s3://",
        ),
        ("cluster.node.data='$NOWHERE/data'", r"cluster.node.data=\$NOWHERE/data"),
    ],
)
def test_a_node_with_other_places(
    override: str, message: str, small_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    config = small_cell(override.replace("FOLDER", str(tmp_path))).config
    with (
        node_requirements(small_cell().config) as required,
        pytest.raises(NodeError, match=message),
    ):
        check_node(required, config)


@pytest.fixture
def in_s3(small_cell: Callable[..., Cell], store: S3Server) -> Mapping[str, Any]:
    """The configuration of a cell whose ledger is in an object store."""
    return small_cell(f"places.ledger='{store.url('bucket/x/ledger')}'").config


def test_a_node_reads_and_writes_a_ledger_in_an_object_store(
    in_s3: Mapping[str, Any], store: S3Server
) -> None:
    with node_requirements(in_s3) as required:
        marker = f"bucket/x/ledger/{required['marker']}"
        check_node(json.loads(json.dumps(required)), in_s3)
        assert store.count("PUT") - store.count("PUT", marker) >= 1  # the node's own
        assert [name for name in store.objects if not name.endswith("/")] == [marker]
        del store.objects[marker]  # as another endpoint would answer
        with pytest.raises(
            NodeError, match="s3://bucket/x/ledger on this node is not the driver's"
        ):
            check_node(required, in_s3)
    assert not [name for name in store.objects if ".driver-" in name]


def declare_nodes(monkeypatch: pytest.MonkeyPatch, *gpus: int) -> None:
    """Nodes as Ray tells of them, by their GPUs."""
    nodes = [
        {"NodeID": f"node-{n}", "Alive": True, "Resources": {"CPU": 8, "GPU": count}}
        for n, count in enumerate(gpus)
    ]
    head = {"NodeID": "head", "Alive": True, "Resources": {}}
    monkeypatch.setattr(cluster_nodes.ray, "nodes", lambda: [head, *nodes])


def test_a_cluster_counts_what_it_had_at_most_and_may_grow_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare_nodes(monkeypatch, 1, 1)
    nodes = ClusterNodes({"address": "far:1", "grows_to": {"cpu": 24, "gpu": 0, "nodes": 1}})
    assert nodes.read_capacity() == Capacity(24, 2, (Capacity(8, 1), Capacity(8, 1)))
    declare_nodes(monkeypatch, 1)
    assert nodes.find_growth() is None, "lost nodes still count"
    declare_nodes(monkeypatch, 1, 2)
    assert nodes.find_growth() == Capacity(24, 3, (Capacity(8, 1), Capacity(8, 2)))


def test_nodes_that_refused_are_avoided_and_are_an_error_when_none_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare_nodes(monkeypatch, 1, 1)
    nodes = ClusterNodes({"address": "far:1", "grows_to": {"cpu": 0, "gpu": 0, "nodes": 0}})
    assert nodes.refuse("node-0", "NodeError: old torch")
    assert list(nodes.refused) == ["node-0"]
    nodes.check_usable()
    assert not nodes.refuse("node-1", "NodeError: no ledger")
    assert capsys.readouterr().err.count("RAY_ADDRESS=far:1: a node is not used: NodeError: ") == 2
    with pytest.raises(ConfigError, match=r"=far:1: no node can run these cells: .* old torch"):
        nodes.check_usable()
