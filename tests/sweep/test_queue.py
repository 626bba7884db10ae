"""The queue of a sweep: order, retries, budget, shares of declared GPUs, cells of other drivers."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.config.shape import shape
from capsweep.ledger import causes, claim
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.sweep import queue as queues
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.queue import Capacity, JobQueue
from capsweep.tracking.labels import Labels
from capsweep.training.measurement import Measurement

GIB = 2**30
FINISHED = Outcome({"metrics": {}})
OUT_OF_MEMORY = Outcome(cause="OutOfMemoryError: CUDA out of memory")
LOST = Outcome(cause=causes.lost("killed"))


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.ends: dict[str, Outcome] = {}
        self.words: list[str] = []

    def started(self, signature: str) -> None: ...

    def epoch(self, signature: str, row: dict[str, Any]) -> None: ...

    def ended(self, signature: str, outcome: Outcome) -> None:
        self.ends[signature] = outcome

    def said(self, signature: str, what: str) -> None:
        self.words.append(what)


class Known:
    """Costs as declared, by epochs."""

    def __init__(self, per_epoch: float | None) -> None:
        self.per_epoch = per_epoch

    def seconds(self, cell: Cell) -> float | None:
        return None if self.per_epoch is None else self.per_epoch * cell.config["epochs"]

    def add(self, result: dict[str, Any]) -> None: ...


Make = Callable[..., tuple[JobQueue, Heard]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A queue of cells, given by their overrides."""

    def queue(
        *cells: list[str], per_epoch: float | None = None, budget: float | None = None
    ) -> tuple[JobQueue, Heard]:
        composed = [compose.cell([f"places.storage={tmp_path}", *cell]) for cell in cells]
        jobs = [Job(cell, Labels(), cell.config["resources"]["cpu"]) for cell in composed]
        heard = Heard()
        deadline = None if budget is None else time.monotonic() + budget
        ledger = Ledger(tmp_path / "ledger")
        return JobQueue(jobs, ledger, heard, Known(per_epoch), deadline), heard

    return queue


def draw(queue: JobQueue) -> Job:
    """The next job, which must be there."""
    job = queue.next()
    assert job is not None
    return job


def measurement(job: Job, gibibytes: float, utilisation: float | None = None) -> Outcome:
    """What measuring a job on an 80 GiB GPU may give."""
    return Outcome(
        asdict(
            Measurement(
                shape=shape(job.cell),
                hardware="declared",
                seconds_per_step=0.1,
                evaluation_seconds_per_image=0.001,
                startup_seconds=1.0,
                peak_memory_bytes={"process": GIB, "gpu": int(gibibytes * GIB)},
                utilisation=utilisation,
                device_memory_bytes=80 * GIB,
                steps=20,
            )
        )
    )


def test_the_longest_cell_starts_first_and_equal_ones_in_their_order(make: Make) -> None:
    queue, _ = make(["seed=0", "epochs=1"], ["seed=1", "epochs=9"], ["seed=2"], per_epoch=1.0)
    drawn = [draw(queue).cell.config["seed"] for _ in range(3)]
    assert drawn == [2, 1, 0]
    assert queue.next() is None
    assert not queue.is_exhausted


def test_a_lost_worker_is_replaced_twice_and_no_more(make: Make) -> None:
    queue, heard = make(["seed=0"])
    for _ in range(3):
        queue.ended(draw(queue), LOST)
    assert queue.is_exhausted
    (outcome,) = heard.ends.values()
    assert outcome == LOST
    assert len(heard.words) == 2


def test_a_deterministic_failure_is_not_tried_again_and_is_in_the_ledger(make: Make) -> None:
    queue, heard = make(["seed=0"], ["seed=1"])
    job = draw(queue)
    queue.ended(job, Outcome(cause="NonFiniteLossError: step 3"))
    assert draw(queue).cell.signature != job.cell.signature
    assert queue.ledger.entry(job.cell.signature).cause == "NonFiniteLossError: step 3"
    assert queue.failed == {job.cell.signature: "NonFiniteLossError: step 3"}
    assert len(heard.ends) == 1


def test_what_is_told_twice_counts_once(make: Make) -> None:
    queue, heard = make(["seed=0"])
    job = draw(queue)
    queue.ended(job, FINISHED)
    queue.ended(job, LOST)
    assert heard.ends == {job.cell.signature: FINISHED}
    assert queue.is_exhausted


def test_every_shape_is_measured_alone_once_and_then_packed(make: Make) -> None:
    queue, _ = make(*([f"seed={seed}"] for seed in range(6)))
    queue.opens(Capacity(cpu=16, gpu=2))
    first = draw(queue)
    assert (first.measures, first.gpu) == (True, 1)
    assert queue.next() is None, "its shape is being measured"
    queue.ended(first, measurement(first, gibibytes=10, utilisation=0.3))
    shares = [draw(queue).gpu for _ in range(6)]
    assert shares == [0.3333] * 6  # three by utilisation; memory would allow six


def test_shapes_are_measured_each_for_itself(make: Make) -> None:
    queue, _ = make(["batch_size=32"], ["batch_size=512"])
    queue.opens(Capacity(cpu=16, gpu=2))
    small, large = draw(queue), draw(queue)
    assert small.measures
    assert large.measures
    queue.ended(small, measurement(small, gibibytes=8))
    queue.ended(large, measurement(large, gibibytes=30))
    assert sorted(draw(queue).gpu for _ in range(2)) == [0.125, 0.5]


def test_a_shape_that_cannot_be_measured_takes_a_whole_gpu(make: Make) -> None:
    queue, heard = make(["seed=0"])
    queue.opens(Capacity(cpu=16, gpu=1))
    job = draw(queue)
    queue.ended(job, OUT_OF_MEMORY)
    assert draw(queue).gpu == 1
    assert "takes a whole GPU" in heard.words[0]


def test_out_of_memory_is_tried_once_more_with_a_larger_share(make: Make) -> None:
    queue, heard = make(["seed=0", "resources.gpu=0.25"])
    queue.opens(Capacity(cpu=16, gpu=1))
    first = draw(queue)
    queue.ended(first, OUT_OF_MEMORY)
    second = draw(queue)
    assert (first.gpu, second.gpu) == (0.25, 0.5)
    queue.ended(second, OUT_OF_MEMORY)
    assert queue.is_exhausted
    assert heard.ends == {first.cell.signature: OUT_OF_MEMORY}


def test_a_cell_that_had_the_whole_device_is_not_tried_again(make: Make) -> None:
    queue, heard = make(["seed=0", "resources.gpu=1"])
    queue.opens(Capacity(cpu=16, gpu=1))
    queue.ended(draw(queue), OUT_OF_MEMORY)
    assert queue.is_exhausted
    assert len(heard.ends) == 1


def test_without_a_gpu_the_larger_share_is_twice_the_processors(make: Make) -> None:
    queue, _ = make(["seed=0"])
    queue.opens(Capacity(cpu=16, gpu=0))
    queue.ended(draw(queue), OUT_OF_MEMORY)
    again = draw(queue)
    assert (again.cpu, again.gpu) == (2, 0)
    assert again.cell.config["trainer"]["threads"] == 1, "numbers must not change"


def test_only_cells_that_end_within_the_budget_are_started(make: Make) -> None:
    queue, _ = make(["epochs=5"], ["epochs=50"], per_epoch=1.0, budget=10)
    queue.opens(Capacity(cpu=4))
    job = draw(queue)
    assert job.cell.config["epochs"] == 5
    queue.ended(job, FINISHED)
    assert queue.next() is None
    assert queue.is_exhausted
    assert queue.left == 1


def test_with_a_budget_no_job_waits_inside_the_executor(make: Make) -> None:
    queue, _ = make(*([f"seed={s}"] for s in range(3)), per_epoch=0.001, budget=10)
    queue.opens(Capacity(cpu=2))
    first = draw(queue)
    draw(queue)
    assert queue.next() is None
    queue.ended(first, FINISHED)
    assert queue.next() is not None


def test_a_cell_of_unknown_length_does_not_start_within_a_budget(make: Make) -> None:
    queue, _ = make(["seed=0"], per_epoch=None, budget=10)
    assert queue.next() is None
    assert queue.is_exhausted


def test_a_cell_that_runs_elsewhere_is_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)
    queue, heard = make(["seed=0"])
    job = draw(queue)
    assert queue.ledger.disk is not None
    with claim.held(queue.ledger.disk, job.cell.signature):
        queue.ended(job, Outcome(elsewhere="cell is being run by process 7 on far"))
        assert queue.next() is None
        assert not queue.is_exhausted
        done = json.dumps({"metrics": {}}).encode()
        queue.ledger.store.write(f"{folder_of(job.cell.signature)}/result.json", done)
        assert queue.next() is None
    assert queue.is_exhausted
    assert heard.ends[job.cell.signature].result == {"metrics": {}}


def test_a_cell_whose_other_owner_dies_is_run_here(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)
    queue, _ = make(["seed=0"])
    queue._watch.lease = 0.05
    job = draw(queue)
    owner = {"host": "far", "machine": "another boot", "pid": 1, "started": "1"}
    path = f"claims/{job.cell.signature}.000004"
    queue.ledger.store.write(path, json.dumps({"owner": owner, "beat": 9}).encode())
    queue.ended(job, Outcome(elsewhere="on far"))
    assert queue.next() is None
    time.sleep(0.1)
    assert draw(queue).dead == 4


def test_a_failure_that_cannot_be_written_down_is_told(make: Make) -> None:
    queue, heard = make(["seed=0"])
    job = draw(queue)
    assert queue.ledger.disk is not None
    queue.ledger.disk.mkdir(parents=True)
    (queue.ledger.disk / job.cell.signature[:2]).touch()  # where its folder would have to be
    queue.ended(job, Outcome(cause="ValueError: bug"))
    assert "could not be written down" in heard.words[0]
    assert heard.ends[job.cell.signature].cause == "ValueError: bug"
