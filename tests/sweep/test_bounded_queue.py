"""The queue within the bounds of a command: nothing is forgotten, and nothing is waited for that
will never start.
"""

import pytest
from job_queues import FINISHED, Make, measurement

from capsweep.sweep.limits import Bounds, Limits
from capsweep.sweep.placement import Capacity

HOUR = 3600.0


@pytest.mark.parametrize("bounds", [Bounds(budget=HOUR), Bounds(wall=HOUR), Bounds(gpu=HOUR)])
def test_a_shape_whose_measurement_must_wait_for_a_gpu_is_measured_later(
    make: Make, bounds: Bounds
) -> None:
    queue, _ = make(["batch_size=32"], ["batch_size=512"], per_epoch=1.0)
    queue.limits = Limits(bounds)
    queue.opens(Capacity(cpu=16, gpu=1))
    measured = 0
    while (job := queue.next()) is not None:
        queue.started(job)
        assert queue.next() is None, "there is one GPU, and what is started must start at once"
        measured += job.measures
        queue.ended(job, measurement(job, gibibytes=80) if job.measures else FINISHED)
    assert measured == 2
    assert queue.left == 0
    assert queue.is_exhausted


@pytest.mark.parametrize("gpu", ["auto", "1"])
def test_a_sweep_ends_whose_next_cell_would_not_fit_into_the_gpu_hours_left(
    make: Make, gpu: str
) -> None:
    now = [0.0]
    cells = [[f"seed={seed}", "epochs=10", f"resources.gpu={gpu}"] for seed in range(2)]
    queue, _ = make(*cells, per_epoch=1.0)
    queue.limits = Limits(Bounds(gpu=15), lambda: now[0])
    queue.opens(Capacity(cpu=16, gpu=1))
    while (job := queue.next()) is not None:
        queue.started(job)
        now[0] += 1 if job.measures else 9
        queue.ended(job, measurement(job, gibibytes=80) if job.measures else FINISHED)
    assert queue.left == 1
    assert queue.limits.reached is None
    assert queue.is_exhausted
