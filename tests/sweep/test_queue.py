"""The queue of a sweep: order, retries, bounds, lost workers, cells of other drivers."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from clock import Clock
from job_queues import (
    FINISHED,
    LOST,
    NODE_MEMORY,
    OUT_OF_MEMORY,
    MakeQueue,
    RecordingListener,
    draw_job,
    lose_job,
    measure_job,
    start_job,
)

from capsweep.config import compose
from capsweep.ledger import causes, lease, stored_files
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.sweep import queue as queues
from capsweep.sweep.estimates import Estimates, Limits
from capsweep.sweep.queue import JobQueue
from capsweep.sweep.resources import Capacity
from capsweep.tracking.content import Labels
from capsweep.training import RunHooks
from capsweep.training.run import Job, Outcome, run_job

HOUR = 3600.0


def test_the_longest_cell_starts_first_and_equal_ones_in_their_order(make_queue: MakeQueue) -> None:
    cells = ["seed=0", "epochs=1"], ["seed=1", "epochs=9"], ["seed=2"]
    queue, _ = make_queue(*cells, per_epoch=1.0)
    assert [draw_job(queue).cell.config["seed"] for _ in range(3)] == [2, 1, 0]
    assert queue.next_job() is None
    assert not queue.is_exhausted


def test_a_cell_of_unknown_length_starts_before_a_known_one(tmp_path: Path) -> None:
    jobs = [Job(compose.cell([f"batch_size={size}"]), Labels(), cpu=1) for size in (16, 32)]
    costs = Estimates(None)
    ended = {"steps": 10, "seconds": {"fit": 3.0, "total": 4.0}}
    costs.add({"shape": jobs[0].cell.shape, **ended})
    queue = JobQueue(jobs, Ledger(tmp_path), RecordingListener(), costs, Limits())
    assert [draw_job(queue).cell for _ in jobs] == [jobs[1].cell, jobs[0].cell]


def test_a_cell_that_never_advances_fails_after_three_lost_workers(make_queue: MakeQueue) -> None:
    queue, listener = make_queue(["seed=0"])
    job, *_ = [lose_job(queue, LOST, 0, 1) for _ in range(3)]
    assert queue.is_exhausted
    cause = listener.ends[job.cell.signature].cause or ""
    assert cause.startswith("WorkerLost: killed; 3 workers in a row were lost without a ")
    assert causes.classify_cause(cause) == causes.CauseKind.LOST
    assert len(listener.messages) == 2
    assert queue.ledger.read_entry(job.cell.signature).status == "failed"


@pytest.mark.parametrize("outcome", [LOST, NODE_MEMORY], ids=["lost", "memory of its node"])
def test_a_cell_whose_checkpoint_advances_may_be_lost_any_number_of_times(
    make_queue: MakeQueue, outcome: Outcome
) -> None:
    queue, listener = make_queue(["seed=0", "epochs=100", "resources.gpu=1"])
    queue.set_capacity(Capacity(cpu=16, gpu=1))
    for epoch in range(0, 90, 3):
        lose_job(queue, outcome, epoch, epoch + 1)
        lose_job(queue, outcome)  # and before its first epoch
    assert listener.ends == {}
    assert len(listener.messages) == 60
    assert listener.messages[-1].endswith(" (epoch 88 was finished)")
    job = draw_job(queue)
    assert queue.ledger.read_entry(job.cell.signature).status == "missing", "no failure is noted"
    queue.on_end(job, FINISHED)
    assert queue.is_exhausted
    assert queue.failed == {}


def test_epochs_trained_again_from_the_same_checkpoint_are_no_progress(
    make_queue: MakeQueue,
) -> None:
    queue, listener = make_queue(["seed=0", "epochs=100"])
    lose_job(queue, LOST, 0)
    lose_job(queue, LOST, 40, 41)
    for epochs in ((40,), (40, 41, 42), (40, 41)):
        assert listener.ends == {}
        lose_job(queue, LOST, *epochs)
    assert len(listener.ends) == 1


def test_a_cell_that_paused_goes_on_later_and_is_no_failure(make_queue: MakeQueue) -> None:
    queue, _ = make_queue(["seed=0"], ["seed=1"])
    job = start_job(queue)
    queue.on_end(job, Outcome(paused="ended early after an epoch"))
    assert queue.count_left == 2
    assert draw_job(queue).cell.signature == job.cell.signature
    assert queue.ledger.read_entry(job.cell.signature).status == "missing"


def test_a_failure_that_cannot_be_written_down_is_reported(make_queue: MakeQueue) -> None:
    queue, listener = make_queue(["seed=0"])
    job = draw_job(queue)
    assert queue.ledger.disk is not None
    queue.ledger.disk.mkdir(parents=True)
    (queue.ledger.disk / job.cell.signature[:2]).touch()  # where its folder would have to be
    queue.on_end(job, Outcome(cause="ValueError: bug"))
    assert "could not be written to the ledger" in listener.messages[0]
    assert listener.ends[job.cell.signature].cause == "ValueError: bug"


def test_a_deterministic_failure_is_in_the_ledger_and_reported_once(make_queue: MakeQueue) -> None:
    queue, listener = make_queue(["seed=0"], ["seed=1"])
    job, failure = draw_job(queue), Outcome(cause="NonFiniteLossError: step 3")
    queue.on_end(job, failure)
    queue.on_end(job, LOST)  # reported twice
    assert draw_job(queue).cell.signature != job.cell.signature
    assert queue.ledger.read_entry(job.cell.signature).cause == failure.cause
    assert queue.failed == {job.cell.signature: failure.cause}
    assert listener.ends == {job.cell.signature: failure}


def test_a_cell_whose_code_was_edited_has_not_failed_and_nothing_more_starts(
    make_queue: MakeQueue,
) -> None:
    queue, listener = make_queue(["seed=0"], ["seed=1"], ["seed=2"])
    job, running = draw_job(queue), start_job(queue)
    queue.on_end(job, run_job(replace(job, code="0" * 12), RunHooks()))
    assert len(listener.messages) == 1
    assert queue.next_job() is None
    assert not queue.is_exhausted, "what runs goes on"
    queue.on_end(running, FINISHED)
    assert queue.is_exhausted
    assert (queue.count_left, queue.failed) == (2, {})
    assert queue.ledger.read_entry(job.cell.signature).status == "missing"
    assert "start the command again" in queue.limits.stop_reason


@pytest.mark.parametrize("outcome", [OUT_OF_MEMORY, NODE_MEMORY])
def test_after_out_of_memory_a_cell_has_fewer_beside_it_up_to_a_whole_gpu(
    make_queue: MakeQueue, outcome: Outcome
) -> None:
    queue, listener = make_queue(["seed=0", "resources.gpu=0.25"])
    queue.set_capacity(Capacity(cpu=16, gpu=1))
    assert [lose_job(queue, outcome).gpu for _ in range(3)] == [0.25, 0.5, 1.0]
    assert len(listener.ends) == (outcome == OUT_OF_MEMORY), "a node may have memory again"


def test_without_a_gpu_out_of_memory_doubles_the_processors_once(make_queue: MakeQueue) -> None:
    queue, _ = make_queue(["seed=0"])
    queue.set_capacity(Capacity(cpu=16, gpu=0))
    queue.on_end(draw_job(queue), OUT_OF_MEMORY)
    again = draw_job(queue)
    assert (again.cpu, again.gpu) == (2, 0)
    assert again.cell.config["trainer"]["threads"] == 1, "numbers must not change"
    queue.on_end(again, OUT_OF_MEMORY)
    assert queue.is_exhausted


@pytest.mark.parametrize("bounds", [{"budget": HOUR}, {"wall": HOUR}], ids=str)
def test_a_shape_whose_measurement_must_wait_for_a_gpu_is_measured_later(
    make_queue: MakeQueue, bounds: dict[str, float]
) -> None:
    cells = ["batch_size=32"], ["batch_size=512"]
    queue, _ = make_queue(*cells, per_epoch=1.0, limits=Limits(**bounds))
    queue.set_capacity(Capacity(cpu=16, gpu=1))
    for _ in cells:
        measure_job(queue, gibibytes=80)
        job = start_job(queue)
        assert queue.next_job() is None, "there is one GPU, and what is started must start at once"
        queue.on_end(job, FINISHED)
    assert queue.count_left == 0
    assert queue.is_exhausted


def test_a_sweep_ends_whose_next_cell_would_not_fit_into_the_time_left(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", clock := Clock())
    cells = [[f"seed={seed}", "epochs=10"] for seed in range(2)]
    queue, _ = make_queue(*cells, per_epoch=1.0, limits=Limits(wall=15))
    job = start_job(queue)
    assert queue.next_job() is None, "what is started must start at once"
    clock.now += 9
    queue.on_end(job, FINISHED)
    assert queue.next_job() is None
    assert queue.count_left == 1
    assert not queue.limits.is_stopping
    assert queue.is_exhausted


def test_a_bound_that_is_reached_ends_a_sweep_whose_jobs_wait_for_a_node(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", clock := Clock())
    queue, _ = make_queue(["seed=0"], ["seed=1"], limits=Limits(wall=10))
    first = draw_job(queue)
    clock.now += 11
    assert queue.is_exhausted
    assert queue.count_left == 2
    queue.on_start(first)
    assert not queue.is_exhausted, "its epoch ends first"


def test_a_cell_that_another_process_runs_is_waited_for(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)
    queue, listener = make_queue(["seed=0"])
    job = draw_job(queue)
    assert queue.ledger.disk is not None
    with lease.take_lease(queue.ledger.disk, job.cell.signature):
        queue.on_end(job, elsewhere := Outcome(elsewhere="cell is being run by process 7 on far"))
        assert listener.ends == {job.cell.signature: elsewhere}
        assert queue.next_job() is None
        assert not queue.is_exhausted
        done = stored_files.with_digests({"metrics": {}}, {})
        path = f"{folder_of(job.cell.signature)}/result.json"
        queue.ledger.store.write(path, json.dumps(done).encode())
        assert queue.next_job() is None
    assert queue.is_exhausted
    assert listener.ends[job.cell.signature].result == done


def test_a_cell_whose_other_owner_dies_is_run_here(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)
    queue, _ = make_queue(["seed=0"])
    monkeypatch.setattr(time, "monotonic", clock := Clock())
    job = draw_job(queue)
    owner = {"host": "far", "machine": "another boot", "pid": 1, "started": "1"}
    path = f"claims/{job.cell.signature}.000004"
    queue.ledger.store.write(path, json.dumps({"owner": owner, "beat": 9}).encode())
    queue.on_end(job, Outcome(elsewhere="on far"))
    assert queue.next_job() is None
    clock.now += lease.LEASE_SECONDS
    assert draw_job(queue).dead_claim == "4 9 another boot 1 1"
