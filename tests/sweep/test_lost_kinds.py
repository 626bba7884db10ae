"""Kinds of GPUs that vanish, as spot nodes do, before a shape was measured on them."""

from dataclasses import replace
from typing import Any

import pytest
from job_queues import FINISHED, GIB, Make, draw, measurement

from capsweep.sweep.job import Job
from capsweep.sweep.placement import Capacity, Node
from capsweep.sweep.queue import JobQueue

A100, T4 = Node(8, 1, kind="A100"), Node(8, 1, kind="T4")
BOTH = Capacity(16, 2, (A100, T4))
ONE_LEFT = replace(BOTH, gone=("T4",))


def by_kind(*jobs: Job) -> dict[str | None, Job]:
    return {job.kind: job for job in jobs}


def measured(queue: JobQueue, job: Job, gibibytes: float) -> None:
    """A worker took the job, and measured."""
    queue.started(job)
    queue.ended(job, measurement(job, gibibytes))


def test_cells_do_not_wait_for_a_measurement_on_a_kind_that_is_gone(make: Make) -> None:
    queue, _ = make(["seed=0"], ["seed=1"])
    queue.opens(BOTH)
    found = by_kind(draw(queue), draw(queue))
    measured(queue, found["A100"], 30)
    assert queue.next() is None, "the T4 may hold less"
    queue.opens(ONE_LEFT)
    cells = [draw(queue), draw(queue)]
    assert [(job.gpu, job.kind) for job in cells] == [(0.5, None)] * 2
    assert not queue.is_exhausted
    for job in cells:
        queue.ended(job, FINISHED)
    assert queue.is_exhausted, "what waits for a T4 is needed no more"
    assert queue.left == 0


def test_nothing_is_measured_on_a_kind_that_is_gone_until_it_is_back(make: Make) -> None:
    queue, _ = make(["batch_size=32"], ["batch_size=512"])
    queue.opens(ONE_LEFT)
    first, second = draw(queue), None
    assert first.kind == "A100"
    queue.started(first)
    second = draw(queue)
    assert (second.kind, second.measures) == ("A100", True)
    queue.opens(BOTH)
    assert draw(queue).kind == "T4"


def test_a_kind_that_comes_back_is_measured_by_the_job_that_waited(make: Make) -> None:
    queue, _ = make(["seed=0"])
    queue.opens(BOTH)
    found = by_kind(draw(queue), draw(queue))
    queue.opens(ONE_LEFT)
    assert queue.next() is None, "its measurement on the other kind is not over"
    queue.opens(BOTH)
    measured(queue, found["A100"], 5)
    assert queue.next() is None
    measured(queue, found["T4"], 30)
    assert draw(queue).gpu == 0.5


def test_where_no_kind_is_left_cells_wait_for_one(make: Make) -> None:
    queue, _ = make(["seed=0"])
    queue.opens(BOTH)
    found = by_kind(draw(queue), draw(queue))
    measured(queue, found["A100"], 30)
    queue.opens(replace(BOTH, gone=("A100", "T4")))
    assert queue.next() is None
    assert not queue.is_exhausted


def test_a_cell_that_not_all_kinds_hold_goes_to_one_that_is_there(make: Make) -> None:
    queue, _ = make(["seed=0"])
    three = Capacity(24, 3, (A100, T4, Node(8, 1, kind="L40")))
    queue.opens(three)
    found = by_kind(draw(queue), draw(queue), draw(queue))
    measured(queue, found["A100"], 10)
    measured(queue, found["L40"], 30)
    queue.sharing.unmeasurable(found["T4"])
    queue.opens(replace(three, gone=("A100",)))
    assert draw(queue).kind == "L40"


def test_one_measurement_at_a_time_waits_for_a_node_of_a_kind(make: Make) -> None:
    queue, _ = make(*([f"batch_size={2**power}"] for power in range(4, 9)))
    queue.opens(BOTH)
    first, second = draw(queue), draw(queue)
    assert queue.next() is None, "more would fill what an executor lets wait"
    queue.started(by_kind(first, second)["T4"])
    assert draw(queue).kind == "T4"


def test_a_kind_is_gone_when_its_last_node_is_and_back_with_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    from capsweep.sweep.cluster import Cluster
    from capsweep.sweep.executors import placing

    there: list[tuple[str, ...]] = [("A100", "T4", "T4")]
    monkeypatch.setattr(placing, "_alive", lambda: [_told(kind) for kind in there[-1]])
    monkeypatch.setattr(placing, "LOOK", 0.0)
    nodes = placing.Nodes(Cluster("here:1"), {})
    assert nodes.capacity().gone == ()
    there.append(("A100", "T4"))
    assert nodes.grown() is None, "less than there was"
    there.append(("A100",))
    lost = nodes.grown()
    assert lost is not None
    assert (lost.gone, lost.present, lost.gpu) == (("T4",), ("A100",), 3)
    assert nodes.grown() is None
    there.append(("A100", "T4"))
    back = nodes.grown()
    assert back is not None
    assert back.gone == ()


def _told(kind: str) -> dict[str, Any]:
    """A node as Ray tells of it."""
    memory = 8 * GIB
    return {"Resources": {"CPU": 8, "GPU": 1, "memory": memory, f"accelerator_type:{kind}": 1}}
