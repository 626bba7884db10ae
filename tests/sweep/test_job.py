"""What a cell takes of a node: shares of a GPU, measured shapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_queues import (
    LOST,
    OUT_OF_MEMORY,
    MakeQueue,
    draw_job,
    end_measuring,
    lose_job,
    make_measurement,
    measure_job,
    start_job,
)

from capsweep.errors import ConfigError
from capsweep.sweep.resources import Capacity, choose_share


def test_a_cell_that_no_node_can_hold_is_refused_with_what_the_nodes_have(
    make_queue: MakeQueue,
) -> None:
    queue, _ = make_queue(["resources.gpu=1"])
    message = r"resources\.gpu=1: no node has these; .* 1 x 16 CPUs and 0 GPUs, 2 x 8 CPUs and"
    with pytest.raises(ConfigError, match=message):
        queue.set_capacity(Capacity.of_nodes([Capacity(cpu=16), Capacity(cpu=8), Capacity(cpu=8)]))


def test_each_shape_is_measured_alone_once_and_then_packed(make_queue: MakeQueue) -> None:
    queue, _ = make_queue(*([f"seed={seed}"] for seed in range(6)), ["batch_size=512"])
    queue.set_capacity(Capacity(cpu=16, gpu=2))
    queue.on_end(start_job(queue), LOST)
    first, other = start_job(queue), start_job(queue)
    assert queue.next_job() is None, "both shapes are being measured"
    end_measuring(queue, first, gibibytes=11, utilisation=0.3)
    end_measuring(queue, other, gibibytes=30)
    jobs = [draw_job(queue) for _ in range(7)]
    # Three by utilisation, although memory would allow six.
    assert [job.gpu for job in jobs] == [0.3333] * 6 + [0.5]


def test_a_shape_that_cannot_be_measured_takes_a_whole_gpu(make_queue: MakeQueue) -> None:
    queue, listener = make_queue(["seed=0"])
    queue.set_capacity(Capacity(cpu=16, gpu=1))
    queue.on_end(draw_job(queue), OUT_OF_MEMORY)
    assert draw_job(queue).gpu == 1
    assert "takes a whole GPU" in listener.messages[0]


def test_a_share_that_was_too_small_is_enlarged_for_the_cells_of_its_shape(
    make_queue: MakeQueue,
) -> None:
    queue, _ = make_queue(["seed=0"], ["seed=1"])
    queue.set_capacity(Capacity(cpu=16, gpu=1))
    measure_job(queue, gibibytes=11)
    assert lose_job(queue, OUT_OF_MEMORY).gpu == 0.1666
    assert [draw_job(queue).gpu for _ in range(2)] == [0.3333, 0.3333]


@pytest.mark.parametrize(
    ("gibibytes", "device", "utilisation", "expected"),
    [
        (2.6, 16, None, 0.2),  # five of them in 14.4 GiB
        (2.6, 16, 0.4, 0.5),
        (70.0, 80, 0.1, 1.0),
        (20.0, 16, None, 1.0),  # it fails when it runs
        (1.1, 141, None, 0.0086),
    ],
)
def test_shares_of_recorded_measurements(
    gibibytes: float, device: float, utilisation: float | None, expected: float
) -> None:
    assert choose_share(make_measurement(gibibytes, utilisation, device)) == expected


@given(needs=st.lists(st.floats(0.2, 15.9), min_size=1, max_size=12))
def test_what_ray_packs_on_one_device_fits_its_memory(needs: list[float]) -> None:
    used, memory = 0.0, 0.0
    for need in needs:
        share = choose_share(make_measurement(need, device=16))
        if used + share <= 1:
            used, memory = used + share, memory + need
    assert memory <= 16 * (1 + 2e-3)
