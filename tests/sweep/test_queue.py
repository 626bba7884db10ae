"""The queue of a sweep: order, retries, budget, shares of declared GPUs, cells of other drivers."""

import json
from dataclasses import replace

import pytest
from clock import Clock
from job_queues import FINISHED, LOST, OUT_OF_MEMORY, Make, draw, lose, measurement

from capsweep.ledger import causes, lease
from capsweep.ledger.ledger import folder_of
from capsweep.sweep import elsewhere
from capsweep.sweep.job import Outcome, run_job
from capsweep.sweep.placement import Capacity
from capsweep.training.run_hooks import RunHooks


def test_the_longest_cell_starts_first_and_equal_ones_in_their_order(make: Make) -> None:
    queue, _ = make(["seed=0", "epochs=1"], ["seed=1", "epochs=9"], ["seed=2"], per_epoch=1.0)
    drawn = [draw(queue).cell.config["seed"] for _ in range(3)]
    assert drawn == [2, 1, 0]
    assert queue.next() is None
    assert not queue.is_exhausted


def test_a_cell_that_never_gets_on_is_given_up_after_three_lost_workers(make: Make) -> None:
    queue, heard = make(["seed=0"])
    job, *_ = [lose(queue, LOST, 0, 1) for _ in range(3)]
    assert queue.is_exhausted
    (outcome,) = heard.ends.values()
    assert outcome.cause is not None
    assert outcome.cause.startswith(
        "WorkerLost: killed; 3 workers were lost, the last 3 without a "
    )
    assert causes.kind_of_cause(outcome.cause) == causes.CauseKind.LOST
    assert len(heard.words) == 2
    assert queue.ledger.entry(job.cell.signature).status == "failed"


def test_a_cell_whose_checkpoint_advances_may_be_lost_any_number_of_times(make: Make) -> None:
    queue, heard = make(["seed=0", "epochs=100"])
    for epoch in range(0, 90, 3):
        lose(queue, LOST, epoch, epoch + 1)
        lose(queue, LOST)  # and before its first epoch
    assert heard.ends == {}
    assert len(heard.words) == 60
    job = draw(queue)
    assert queue.ledger.entry(job.cell.signature).status == "missing", "no failure is noted"
    queue.ended(job, FINISHED)
    assert queue.is_exhausted
    assert queue.failed == {}


def test_epochs_that_are_trained_again_from_the_same_checkpoint_are_no_progress(
    make: Make,
) -> None:
    queue, heard = make(["seed=0", "epochs=100"])
    lose(queue, LOST, 0)
    lose(queue, LOST, 40, 41)
    for epochs in ((40,), (40, 41, 42), (40, 41)):
        assert heard.ends == {}
        lose(queue, LOST, *epochs)
    assert len(heard.ends) == 1


def test_a_cell_that_left_goes_on_later_and_is_no_failure(make: Make) -> None:
    queue, _ = make(["seed=0"], ["seed=1"])
    job = draw(queue)
    queue.started(job)
    queue.ended(job, Outcome(left=True))
    assert queue.left == 2
    assert draw(queue).cell.signature == job.cell.signature
    assert queue.ledger.entry(job.cell.signature).status == "missing"


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
    monkeypatch.setattr(elsewhere, "LOOK_SECONDS", 0.0)
    queue, heard = make(["seed=0"])
    job = draw(queue)
    assert queue.ledger.disk is not None
    with lease.hold_lease(queue.ledger.disk, job.cell.signature):
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
    monkeypatch.setattr(elsewhere, "LOOK_SECONDS", 0.0)
    queue, _ = make(["seed=0"])
    queue._elsewhere.watch.clock = clock = Clock()
    job = draw(queue)
    owner = {"host": "far", "machine": "another boot", "pid": 1, "started": "1"}
    path = f"claims/{job.cell.signature}.000004"
    queue.ledger.store.write(path, json.dumps({"owner": owner, "beat": 9}).encode())
    queue.ended(job, Outcome(elsewhere="on far"))
    assert queue.next() is None
    clock.now += lease.LEASE_SECONDS
    assert draw(queue).dead == "4 9 another boot 1 1"


def test_a_cell_whose_code_was_edited_has_not_failed_and_nothing_more_starts(make: Make) -> None:
    queue, heard = make(["seed=0"], ["seed=1"], ["seed=2"])
    job, running = draw(queue), draw(queue)
    queue.started(running)
    queue.ended(job, run_job(replace(job, code="0" * 12), RunHooks()))
    assert heard.ends[job.cell.signature].left
    assert queue.next() is None
    assert not queue.is_exhausted, "what runs goes on"
    queue.ended(running, FINISHED)
    assert queue.is_exhausted
    assert (queue.left, queue.failed) == (2, {})
    assert queue.ledger.entry(job.cell.signature).status == "missing"
    assert "start the command again" in queue.limits.why_left


def test_a_failure_that_cannot_be_written_down_is_told(make: Make) -> None:
    queue, heard = make(["seed=0"])
    job = draw(queue)
    assert queue.ledger.disk is not None
    queue.ledger.disk.mkdir(parents=True)
    (queue.ledger.disk / job.cell.signature[:2]).touch()  # where its folder would have to be
    queue.ended(job, Outcome(cause="ValueError: bug"))
    assert "could not be written down" in heard.words[0]
    assert heard.ends[job.cell.signature].cause == "ValueError: bug"
