"""Which cell fits where: nodes, kinds of GPUs, host memory, cells of several devices."""

import pytest
from job_queues import FINISHED, GIB, Make, draw, measurement

from capsweep.errors import ConfigError
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.placement import Capacity, Node
from capsweep.sweep.queue import JobQueue


def cluster(*nodes: Node) -> Capacity:
    """Some nodes together."""
    return Capacity(sum(n.cpu for n in nodes), sum(n.gpu for n in nodes), nodes)


FOUR = Node(cpu=16, gpu=4)
TWO = Node(cpu=16, gpu=2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["resources.gpu=8"], r"resources\.gpu=8: no node has so many, .* 1 x 16 CPUs and 4 GPUs"),
        (["resources.cpu=64"], r"resources\.cpu=64: no node has so many"),
    ],
)
def test_a_cell_that_no_node_can_hold_is_refused_with_what_the_nodes_have(
    make: Make, overrides: list[str], message: str
) -> None:
    queue, _ = make(overrides)
    with pytest.raises(ConfigError, match=message):
        queue.opens(cluster(FOUR, TWO, TWO))


def test_two_nodes_of_two_do_not_hold_a_cell_of_four(make: Make) -> None:
    queue, _ = make(["resources.gpu=4"])
    with pytest.raises(
        ConfigError, match="a cell is on one node; the nodes have 2 x 16 CPUs and 2"
    ):
        queue.opens(cluster(TWO, TWO))


def test_a_node_that_is_lost_on_the_way_ends_no_sweep(make: Make) -> None:
    queue, _ = make(["resources.gpu=4"])
    queue.opens(cluster(FOUR))
    queue.opens(cluster(TWO, TWO, TWO))
    assert not queue.is_exhausted


def started(queue: JobQueue) -> Job:
    """The next job, with a worker."""
    job = draw(queue)
    queue.started(job)
    return job


def test_a_cell_of_four_devices_is_not_starved_by_small_ones(make: Make) -> None:
    small = [[f"seed={s}", "resources.gpu=1", "epochs=9"] for s in range(8)]
    queue, _ = make(*small, ["seed=8", "resources.gpu=4", "epochs=5"], per_epoch=1.0)
    queue.opens(cluster(FOUR))
    running = [started(queue) for _ in range(4)]
    assert [job.gpu for job in running] == [1, 1, 1, 1], "longest first"
    queue._pending.insert(0, queue._pending.pop())  # its turn has come
    for job in running:
        assert queue.next() is None, "what is freed is kept for it"
        queue.ended(job, FINISHED)
    assert started(queue).gpu == 4


def test_small_cells_that_end_in_time_fill_what_waits_for_a_large_one(make: Make) -> None:
    queue, _ = make(
        ["seed=0", "resources.gpu=3", "epochs=90"],
        ["seed=1", "resources.gpu=4", "epochs=80"],
        ["seed=2", "resources.gpu=1", "epochs=9"],
        ["seed=3", "resources.gpu=1", "epochs=2"],
        per_epoch=1.0,
    )
    queue.opens(cluster(FOUR))
    assert started(queue).gpu == 3
    assert started(queue).cell.config["seed"] == 2, "it ends before the three GPUs are free"


def test_small_cells_use_the_nodes_that_cannot_hold_the_large_one(make: Make) -> None:
    large = [[f"seed={s}", "resources.gpu=4", "epochs=50"] for s in range(3)]
    small = [[f"seed={s}", "resources.gpu=1", "epochs=40"] for s in range(3, 7)]
    queue, _ = make(*large, *small, per_epoch=1.0)
    queue.opens(cluster(FOUR, TWO))
    assert [started(queue).gpu for _ in range(3)] == [4, 1, 1]
    assert queue.next() is None


def test_a_large_cell_that_waits_for_one_node_keeps_small_ones_from_it(make: Make) -> None:
    queue, _ = make(
        ["seed=0", "resources.gpu=1", "epochs=99"],
        ["seed=1", "resources.gpu=1", "epochs=98"],
        ["seed=2", "resources.gpu=4", "epochs=50"],
        ["seed=3", "resources.gpu=1", "epochs=1000"],
        per_epoch=None,
    )
    queue.opens(cluster(FOUR, FOUR))
    running = [started(queue) for _ in range(2)]
    assert draw(queue).gpu == 4, "handed over: six GPUs are free, but it may be three on each node"
    assert queue.next() is None, "so the seventh cell may not take one of them"
    queue.ended(running[0], FINISHED)
    assert queue.next() is None


def test_cells_without_a_gpu_are_never_held_back(make: Make) -> None:
    queue, _ = make(
        ["seed=0", "resources.gpu=4"], ["seed=1", "resources.gpu=4"], ["seed=2", "resources.gpu=0"]
    )
    queue.opens(cluster(FOUR))
    assert [started(queue).gpu for _ in range(2)] == [4, 0]


def test_a_measurement_that_a_large_cell_holds_back_is_made_later(make: Make) -> None:
    queue, _ = make(
        ["seed=0", "resources.gpu=1", "epochs=9"],
        ["seed=1", "resources.gpu=2", "epochs=8"],
        ["seed=2", "epochs=7"],
        per_epoch=1.0,
    )
    queue.opens(cluster(TWO))
    first = started(queue)
    assert queue.next() is None, "two GPUs are kept for the cell that needs them"
    queue.ended(first, FINISHED)
    queue.ended(started(queue), FINISHED)
    assert started(queue).measures


def of_kind(job: Job, gibibytes: float, device: float, process: float = 1) -> Outcome:
    """A measurement on a device of some GiB, by a process of some GiB."""
    result = measurement(job, gibibytes).result
    assert result is not None
    peak = {"process": int(process * GIB), "gpu": int(gibibytes * GIB)}
    return Outcome({**result, "device_memory_bytes": int(device * GIB), "peak_memory_bytes": peak})


def test_a_shape_is_measured_on_each_kind_and_shares_by_the_smallest(make: Make) -> None:
    queue, _ = make(["seed=0"], ["seed=1"])
    queue.opens(cluster(Node(8, 1, kind="A100"), Node(8, 1, kind="T4")))
    first, second = started(queue), started(queue)
    assert {first.kind, second.kind} == {"A100", "T4"}
    assert first.measures
    assert second.measures
    queue.ended(first, of_kind(first, 5, 80))
    assert queue.next() is None
    queue.ended(second, of_kind(second, 5, 16))
    job = draw(queue)
    assert (job.gpu, job.kind) == (0.5, None), "Ray may put it on either"


def test_a_kind_that_cannot_hold_a_cell_is_not_given_it(make: Make) -> None:
    queue, _ = make(["seed=0"])
    queue.opens(cluster(Node(8, 1, kind="A100"), Node(8, 1, kind="T4")))
    first, second = started(queue), started(queue)
    queue.ended(first, of_kind(first, 30, 80))
    queue.ended(second, Outcome(cause="OutOfMemoryError: CUDA out of memory"))
    job = draw(queue)
    assert (job.gpu, job.kind) == (0.5, "A100")


def test_cells_share_a_gpu_no_further_than_its_host_has_memory(make: Make) -> None:
    queue, _ = make(["seed=0"])
    queue.opens(cluster(Node(64, 4, memory=32 * GIB)))
    first = started(queue)
    queue.ended(first, of_kind(first, 0.5, 80, process=1.6))
    job = draw(queue)
    assert job.gpu == 0.25, "four of 2 GiB in the 8 GiB beside each GPU; the device holds 65"
    assert job.memory == 2 * GIB


def test_a_node_that_does_not_say_its_memory_bounds_nothing(make: Make) -> None:
    queue, _ = make(["seed=0"])
    queue.opens(cluster(Node(64, 4)))
    first = started(queue)
    queue.ended(first, of_kind(first, 10, 80, process=1.6))
    job = draw(queue)
    assert (job.gpu, job.memory) == (0.1666, 0)
