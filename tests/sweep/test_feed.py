"""What Ray Tune is suggested, and what its trials tell, without Ray."""

from typing import Any, cast

import pytest
from job_queues import Make

from capsweep.sweep.executors.placing import Nodes
from capsweep.sweep.job import Outcome
from capsweep.sweep.limits import Bounds, Limits

pytest.importorskip("ray.tune")

from ray.tune.search import Searcher

from capsweep.sweep.executors.feed import Feed


class Others:
    """Nodes of which there is always another one."""

    wanted: dict[str, Any] | None = None

    def grown(self) -> None: ...

    def avoided(self) -> list[str]:
        return ["first"]

    def refuse(self, identity: str, cause: str) -> bool:
        return True


REFUSED = Outcome(cause="NodeError: node first has torch 1.0 and not the driver's 2.0")


def test_what_a_node_refused_and_waits_for_another_takes_no_time_and_keeps_no_bound_from_ending(
    make: Make,
) -> None:
    now = [0.0]
    queue, _ = make(["seed=0", "resources.gpu=1"])
    queue.limits = Limits(Bounds(wall=10), lambda: now[0])
    feed = Feed(queue, cast(Nodes, Others()))
    assert feed.suggest("one")["avoided"] == ["first"]
    queue.started(feed.jobs["one"])
    feed.ended("one", REFUSED, "first")
    assert feed.suggest("two")["gpu"] == 1, "the same cell, on another node"
    now[0] = 11
    assert queue.limits.gpu_seconds == 0
    assert feed.suggest("three") == Searcher.FINISHED
    assert queue.left == 1


def test_what_a_node_refused_is_not_begun_again_after_a_bound(make: Make) -> None:
    now = [0.0]
    queue, _ = make(["seed=0"])
    queue.limits = Limits(Bounds(wall=10), lambda: now[0])
    feed = Feed(queue, cast(Nodes, Others()))
    feed.suggest("one")
    queue.started(feed.jobs["one"])
    now[0] = 11
    feed.ended("one", REFUSED, "first")
    assert feed.suggest("two") == Searcher.FINISHED
