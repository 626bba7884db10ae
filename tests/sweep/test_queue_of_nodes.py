"""The queue on nodes that come, go, or never come."""

from job_queues import LOST, Make, draw, measurement

from capsweep.sweep.limits import Bounds, Limits
from capsweep.sweep.placement import Capacity, Node


def test_a_measurement_whose_worker_is_lost_is_made_once_more(make: Make) -> None:
    queue, heard = make(["seed=0"])
    queue.opens(Capacity(cpu=16, gpu=1))
    queue.ended(draw(queue), LOST)
    second = draw(queue)
    assert second.measures
    assert "measured once more" in heard.words[0]
    queue.ended(second, measurement(second, gibibytes=10))
    assert draw(queue).gpu < 1


def test_a_shape_that_is_measured_before_its_node_says_its_kind_is_measured_once(
    make: Make,
) -> None:
    queue, _ = make(["seed=0"], ["seed=1"])
    queue.opens(Capacity(8, 1, (Node(8, 1),)))
    first = draw(queue)
    queue.opens(Capacity(8, 1, (Node(8, 1, kind="L4"),)))
    assert queue.next() is None, "its shape is being measured"
    queue.ended(first, measurement(first, gibibytes=10))
    assert not draw(queue).measures


def test_a_bound_that_is_reached_ends_a_sweep_whose_jobs_wait_for_a_node(make: Make) -> None:
    now = [0.0]
    queue, _ = make(["seed=0"], ["seed=1"])
    queue.limits = Limits(Bounds(wall=10), lambda: now[0])
    first = draw(queue)
    now[0] = 11
    assert queue.is_exhausted
    assert queue.left == 2
    queue.started(first)
    assert not queue.is_exhausted, "its epoch ends first"
