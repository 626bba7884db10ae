"""Bounds of a command: what starts within them, when what runs leaves, and what is said of it."""

import pytest
from clock import Clock

from capsweep.errors import UserError
from capsweep.sweep.limits import Bounds, Limits, read_bounds

HOUR = 3600.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ((None, "8", None), Bounds(wall=8 * HOUR)),
        ((None, ".5", "40"), Bounds(wall=HOUR / 2, gpu=40 * HOUR)),
        (("9m", None, "0.25"), Bounds(budget=540, gpu=HOUR / 4)),
        (("90s", None, None), Bounds(budget=90)),
        (("1.5h", None, None), Bounds(budget=5400)),
    ],
)
def test_bounds_are_hours_and_parts_of_them(
    typed: tuple[str | None, str | None, str | None], expected: Bounds
) -> None:
    assert read_bounds(*typed) == expected


@pytest.mark.parametrize("text", ["0", "-1", "8h", "nan", "inf", "", "9" * 400])
def test_what_is_no_number_of_hours_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^MAX_HOURS=.*must be a number of hours above 0"):
        read_bounds(None, text, None)


def test_what_would_not_fit_into_the_hours_left_does_not_start(clock: Clock) -> None:
    limits = Limits(Bounds(wall=8 * HOUR), clock)
    clock.now += 5 * HOUR
    assert limits.can_start(3 * HOUR, 0)
    assert not limits.can_start(3.1 * HOUR, 0)
    assert limits.can_start(None, 0), "of unknown length: it is cut where it must be"
    assert limits.can_start(9 * HOUR, 0), "it would fit into no command, and goes on with the next"


def test_a_budget_starts_nothing_of_unknown_length_and_never_interrupts(clock: Clock) -> None:
    limits = Limits(Bounds(budget=HOUR), clock)
    assert not limits.can_start(None, 0)
    assert not limits.can_start(2 * HOUR, 0)
    clock.now += 2 * HOUR
    assert not limits.is_stopping
    assert not limits.may_interrupt


def test_gpu_time_is_the_share_of_devices_times_the_time_that_cells_ran(clock: Clock) -> None:
    limits = Limits(Bounds(gpu=10 * HOUR), clock)
    limits.begin("four", 4)
    clock.now += HOUR
    limits.begin("quarter", 0.25)
    clock.now += HOUR
    limits.end("four")
    limits.end("four")  # told twice
    clock.now += HOUR
    assert limits.gpu_seconds == 8.5 * HOUR
    assert limits.can_start(HOUR, 1)
    assert not limits.is_stopping
    clock.now += 6 * HOUR
    assert limits.stop_reason == "MAX_GPU_HOURS=is reached"
    assert not limits.can_start(1.0, 0)


def test_a_reached_bound_stays_reached_and_is_told(clock: Clock) -> None:
    limits = Limits(Bounds(wall=HOUR, gpu=2 * HOUR), clock)
    clock.now += 1.5 * HOUR
    assert limits.stop_reason == "MAX_HOURS=is reached"


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(budget=9), "nothing more fits into --budget"),
        (Bounds(budget=9, gpu=HOUR), "nothing more fits into BUDGET=and --max-gpu-hours"),
        (Bounds(wall=0.0, gpu=HOUR), "MAX_HOURS=is reached"),
    ],
)
def test_why_cells_were_left_names_the_bound(clock: Clock, bounds: Bounds, why: str) -> None:
    assert Limits(bounds, clock).stop_reason == why


def test_a_bound_that_interrupts_is_told_with_what_may_exceed_it() -> None:
    (line,) = Limits(Bounds(budget=9, gpu=8 * HOUR)).describe()
    assert line.startswith("MAX_GPU_HOURS=8: what runs then leaves at its next epoch end")
