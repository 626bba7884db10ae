"""What is made of times: turns, ratios, exponents, memory. Nothing here is a test of speed."""

import math

import pytest
import torch

from capsweep.bench import extra_memory, interleaved, overhead, routing, scaling, step
from capsweep.bench.baselines import bmm
from capsweep.bench.parity import ParityError
from capsweep.bench.routing_problem import PASSES, Sizes


def test_candidates_take_turns() -> None:
    called: list[str] = []
    calls = {name: (lambda name=name: called.append(name)) for name in "AB"}
    taken = interleaved.take(calls, budget=0, least=3)
    assert "".join(called) == "ABABABAB"  # the first two do not count
    assert {name: len(seconds) for name, seconds in taken.items()} == {"A": 3, "B": 3}


def test_a_ratio_is_taken_within_rounds() -> None:
    # The machine is ten times slower in the last two rounds, and three times in all is right.
    taken = {"slow": [3.0, 30.0, 30.0], "fast": [1.0, 10.0, 10.0]}
    assert interleaved.ratio(taken, "slow", "fast") == 3
    assert interleaved.over(taken, "textbook", "fast") is None


def test_a_row_says_what_share_of_the_limit_was_reached() -> None:
    taken = {"bmm": [2.0], "fast": [0.5]}
    row = interleaved.row(taken, "fast", images=10, extra=3_000_000, flops=40.0, limit=160.0)
    assert row == {
        "candidate": "fast",
        "ms": 500.0,
        "images/s": 20.0,
        "over textbook": None,
        "over bmm": 4.0,
        "extra MB": 3.0,
        "of matmul limit": 0.5,
    }


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_known_power_law_is_found(power: float) -> None:
    cost = {size: 7.0 * size**power for size in (3, 10, 64, 500)}
    assert math.isclose(scaling.exponent(cost), power, abs_tol=1e-12)


def test_increments_are_what_each_iteration_adds() -> None:
    assert scaling.increments({1: 5.0, 2: 15.0, 3: 18.0}) == [10.0, 3.0]


def test_further_iterations_are_counted_beyond_the_first() -> None:
    assert scaling.beyond_the_first({1: 5.0, 2: 15.0, 3: 18.0}) == {1: 10.0, 2: 13.0}


def test_necessary_operations_are_votes_and_two_sums_per_further_iteration() -> None:
    sizes = Sizes(batch=2, children=3, parents=5, child_pose=7, parent_pose=11)
    votes = 2 * 3 * 5 * 11
    assert sizes.with_iterations(1).flops("forward") == 2 * votes * 7
    assert sizes.flops("forward") == 2 * votes * 7 + 2 * 4 * votes
    assert sizes.flops("forward + backward") == 3 * sizes.flops("forward")


def test_memory_that_a_call_takes_for_a_moment_is_seen() -> None:
    numbers = 2**24
    growth = extra_memory.growth(lambda: torch.ones(numbers).sum())
    assert 0.9 * 4 * numbers < growth < 2 * 4 * numbers


def test_a_candidate_that_cannot_be_prepared_says_why() -> None:
    with pytest.raises(RuntimeError, match="no_such_candidate"):
        extra_memory.of(routing.PREPARED, "no_such_candidate", 2, 1, PASSES)


def test_what_would_need_too_much_memory_is_foreseen() -> None:
    known = routing.Case(Sizes(batch=32), "forward", extra={"textbook": 100})
    wanted = routing.Case(Sizes(batch=512), "forward")
    assert routing._predicted([known], "textbook", wanted) == 1600
    assert routing._predicted([known], "bmm", wanted) == 0
    other = routing.Case(Sizes(batch=512), "forward + backward")
    assert routing._predicted([known], "textbook", other) == 0


@pytest.mark.slow
def test_all_candidates_of_routing_are_measured() -> None:
    report = routing.measure(batches=(2,), iterations=(2,), budget=0)
    assert [(row["pass"], row["candidate"]) for row in report.timings] == [
        (which, name) for which in PASSES for name in routing.candidates()
    ]
    assert all(row["extra MB"] > 0 and row["ms"] > 0 for row in report.timings)


@pytest.mark.slow
def test_a_step_with_another_routing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    once = step.Candidate(
        "reference", route=lambda votes, _, *rest, **options: bmm(votes, 1, *rest)
    )
    right = step.candidates()["bmm"]
    monkeypatch.setattr(step, "candidates", lambda: {"right": right, "once": once})
    with pytest.raises(ParityError, match=r"once: scores differs by") as refused:
        step.gate()
    assert "right" not in str(refused.value)


@pytest.mark.slow
def test_a_sweep_costs_more_than_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    local, ray, per_cell = overhead.measure(cells=2).measured
    assert local.value is not None
    assert local.value > 0
    assert ray.told() == "skipped: Ray is not installed"
    assert per_cell.value == local.value / 2
