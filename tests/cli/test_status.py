"""What a cluster has, in one line, as far as its head tells it."""

from typing import Any

import pytest

from capsweep.cli import status
from capsweep.cluster import client
from capsweep.cluster.client import Nodes
from capsweep.errors import ConfigError

HEAD = {"state": "ALIVE", "resources_total": {"CPU": 4.0, "memory": 1e9}}
WORKER = {"state": "ALIVE", "resources_total": {"CPU": 60.0, "GPU": 4.0}}
LOST = {"state": "DEAD", "resources_total": {"CPU": 60.0, "GPU": 4.0}}
USAGE = {"CPU": [10.0, 64.0], "GPU": [2.5, 4.0]}


class Head:
    """Answers as a head of Ray does; report: of its autoscaler."""

    def __init__(self, *nodes: Any, report: Any) -> None:
        self.listed = {"data": {"result": {"result": list(nodes)}}}
        self.status = {"data": {"clusterStatus": report}}

    def nodes(self) -> Nodes:
        return client._nodes(self.listed, self.status)


class Silent:
    def nodes(self) -> Nodes:
        raise ConfigError("404")


def _said(head: Any) -> str:
    return status._in_words(status._cluster(head))


def test_lost_nodes_do_not_count() -> None:
    head = Head(HEAD, WORKER, LOST, report={"loadMetricsReport": {"usage": USAGE}})
    assert _said(head) == "2 nodes, 2.5 of 4 GPUs in use, 10 of 64 CPUs in use"


@pytest.mark.parametrize("report", [None, {}, {"loadMetricsReport": {"usage": {}}}])
def test_a_head_without_a_report_of_use_says_what_it_has(report: Any) -> None:
    said = _said(Head(HEAD, report=report))
    assert said == "1 node, 0 GPUs, 4 CPUs; it does not tell what is in use"


def test_a_head_that_tells_nothing_is_no_error() -> None:
    assert _said(Silent()) == "it does not tell its nodes"
