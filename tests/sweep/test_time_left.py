"""Time left: cells that are unequal, a slow epoch, cells side by side, earlier runs."""

import pytest
from clock import Clock

from capsweep.sweep import time_left
from capsweep.sweep.time_left import Expected, TimeLeft

FULL, QUARTER = 2400.0, 300.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def left(clock: Clock) -> TimeLeft:
    """Four epochs each of a full network and of a quarter of it."""
    return TimeLeft.of({"full": 4, "quarter": 4}, {"full": FULL, "quarter": QUARTER}, clock)


def epoch(left: TimeLeft, clock: Clock, signature: str, number: int, seconds: float) -> None:
    clock.now += seconds
    left.epoch(signature, {"epoch": number, "seconds": seconds})


def test_a_large_cell_counts_for_more_than_a_small_one(left: TimeLeft, clock: Clock) -> None:
    left.started("full")
    epoch(left, clock, "full", 0, 660.0)  # a tenth longer than expected
    assert left.seconds() == pytest.approx(1.1 * (FULL * 3 / 4 + QUARTER))


def test_it_falls_while_an_epoch_runs_and_stays_where_that_is_late(
    left: TimeLeft, clock: Clock
) -> None:
    left.started("full")
    epoch(left, clock, "full", 0, 600.0)
    clock.now += 200.0
    assert left.seconds() == pytest.approx(FULL * 3 / 4 - 200 + QUARTER)
    clock.now += 2000.0
    assert left.seconds() == pytest.approx(FULL * 2 / 4 + QUARTER)


def test_cells_side_by_side_end_with_the_last(left: TimeLeft, clock: Clock) -> None:
    left.started("full")
    left.started("quarter")
    epoch(left, clock, "quarter", 0, 75.0)
    assert left.seconds() == pytest.approx(FULL - 75)
    clock.now += 225.0
    left.ended("quarter", is_typical=True, seconds=QUARTER)
    assert left.seconds() == pytest.approx(FULL - 300)


@pytest.mark.parametrize("told", [range(3), [2]], ids=["told again", "not told"])
def test_the_epochs_of_an_earlier_run_need_no_time_again(left: TimeLeft, told: range) -> None:
    left.started("full")
    for number in told:
        left.epoch("full", {"epoch": number, "seconds": 600.0})
    assert left.seconds() == pytest.approx(FULL / 4 + QUARTER)


def test_a_cell_that_starts_again_counts_once(left: TimeLeft, clock: Clock) -> None:
    left.started("quarter")
    epoch(left, clock, "quarter", 0, 75.0)
    left.started("quarter")
    left.ended("quarter", is_typical=False)
    left.started("quarter")
    epoch(left, clock, "quarter", 0, 75.0)
    assert left.seconds() == pytest.approx(FULL + QUARTER * 3 / 4)
    assert left.completed == 0.25


def test_a_cell_that_failed_says_nothing_of_the_others(left: TimeLeft, clock: Clock) -> None:
    left.started("quarter")
    clock.now += 5.0
    left.ended("quarter", is_typical=False)
    assert left.seconds() is None
    left.started("full")
    epoch(left, clock, "full", 0, 600.0)
    assert left.seconds() == pytest.approx(FULL * 3 / 4)


def test_the_last_word_of_a_lost_worker_may_come_late(left: TimeLeft) -> None:
    left.started("quarter")
    left.ended("quarter", is_typical=False)
    left.epoch("quarter", {"epoch": 3, "seconds": 75.0})
    assert left.running == {}


@pytest.mark.parametrize("known", [None, 800.0], ids=["no estimate", "that of another"])
def test_a_cell_without_an_estimate_takes_as_long_an_epoch_as_others(
    clock: Clock, known: float | None
) -> None:
    left = TimeLeft.of({"a": 8, "b": 4}, {"a": known, "b": None}, clock)
    assert left.seconds() is None
    left.started("a")
    epoch(left, clock, "a", 0, 50.0)
    assert left.seconds() == pytest.approx(50 * (7 + 4))


def test_trials_that_nobody_has_drawn_are_usual_ones(clock: Clock) -> None:
    left = TimeLeft({}, 3, Expected(1.0, 10), clock)
    left.started("x")
    epoch(left, clock, "x", 1, 20.0)
    left.ended("x", is_typical=True)  # by its search, after two of ten epochs
    assert left.seconds() == pytest.approx(2 * 20)


def test_a_cell_that_ended_without_a_start_here_took_no_slot(left: TimeLeft) -> None:
    left.started("full")
    left.ended("quarter", is_typical=True, seconds=QUARTER)
    assert left.seconds() == pytest.approx(FULL)
    assert left.completed == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "time left: unknown"), (119, "about 119 s left"), (150, "about 2 min left")],
)
def test_it_is_told_in_few_words(seconds: float | None, text: str) -> None:
    assert time_left.told(seconds) == text
