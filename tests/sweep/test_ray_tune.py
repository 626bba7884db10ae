"""What Ray Tune is suggested, what its trials report, and why they failed, without Ray."""

import re
from typing import Any, cast

import pytest
from job_queues import MakeQueue

pytest.importorskip("ray.tune")

from ray.tune.search import Searcher

from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind
from capsweep.sweep import ray_tune
from capsweep.sweep.cluster_nodes import ClusterNodes
from capsweep.sweep.ray_tune import QueueTrials
from capsweep.training.run import Outcome

REFUSED = Outcome(cause="NodeError: node first has torch 1.0, not 2.0")


class OtherNodes:
    """Nodes of which there is always, or never, another one."""

    def __init__(self, has_other: bool) -> None:
        self.has_other = has_other
        self.refused: list[str] = []

    def find_growth(self) -> None: ...

    def refuse(self, node_id: str, cause: str) -> bool:
        self.refused.append(node_id)
        return self.has_other


def refuse_first(make_queue: MakeQueue, has_other: bool) -> QueueTrials:
    """A searcher of one cell, which its first node refused."""
    queue, _ = make_queue(["seed=0", "resources.gpu=1"])
    searcher = QueueTrials(queue, cast(ClusterNodes, OtherNodes(has_other)))
    searcher.suggest("one")
    queue.on_start(searcher.jobs["one"])
    searcher.end_job("one", REFUSED, "first")
    return searcher


def test_a_cell_that_a_node_refused_waits_for_another(make_queue: MakeQueue) -> None:
    suggested: Any = refuse_first(make_queue, has_other=True).suggest("two")
    assert (suggested["resources"]["GPU"], suggested["avoided"]) == (1, ["first"])


def test_a_sweep_ends_when_its_last_node_refused_a_cell(make_queue: MakeQueue) -> None:
    searcher = refuse_first(make_queue, has_other=False)
    assert searcher.suggest("two") == Searcher.FINISHED
    assert searcher.queue.count_left == 1


DIED = """Failure # 1 (occurred at 2026-11-22_04-50-58)
The actor died unexpectedly before finishing this task.
\tclass_name: ImplicitFunc
\tpid: 10354
\tip: 192.0.2.2
"""
WORKER = (
    "The actor is dead because its worker process has died. Worker exit type: {} Worker exit "
    "detail: {}"
)
ADVICE = "Some common causes include: (1) the OOM killer. Consider enabling resource isolation."
CREATION = "ray::ImplicitFunc.__init__()\n  File x.py\nModuleNotFoundError: No module named 'torch'"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            DIED + WORKER.format("SYSTEM_ERROR", f"code 2. End of file. {ADVICE}"),
            "died.*End of file.$",
        ),
        ("x" * 9999 + CREATION, "No module named 'torch'"),
        ("The actor 9d4efa78e09e988000a6d1d201000000 is unavailable: gone", "lost: gone$"),
        ("", "no reason given"),
    ],
    ids=["killed", "creation", "unavailable", "no word"],
)
def test_a_lost_worker_is_described_by_what_ray_says(text: str, why: str) -> None:
    cause = ray_tune.describe_error(text, " on node-2 (192.0.2.2)")
    assert causes.classify_cause(cause) == CauseKind.LOST
    assert len(cause) < 300
    assert cause.startswith("WorkerLost: its worker on node-2 (192.0.2.2) was lost: ")
    assert re.search(why, cause)
    assert not re.search(r"Failure #|class_name|\x1b", cause)


def test_a_node_without_memory_is_named_as_that() -> None:
    killed = "1 worker(s) were killed due to the node running low on memory. Memory on the node"
    text = DIED + WORKER.format("NODE_OUT_OF_MEMORY", f"{killed} was 0.9GB used")
    assert ray_tune.describe_error(text) == causes.NODE_MEMORY
