"""Bounds of a command: what starts within them, when what runs leaves, and what is said of it."""

import time

import pytest
from clock import Clock

from capsweep.errors import UserError
from capsweep.sweep.estimates import Limits, read_limits

HOUR = 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(time, "monotonic", clock := Clock())
    return clock


@pytest.mark.parametrize(
    ("budget", "max_hours", "expected"),
    [
        (None, "8", (None, 8 * HOUR)),
        ("9m", ".5", (540, HOUR / 2)),
        ("90s", None, (90, None)),
        ("1.5h", None, (5400, None)),
    ],
)
def test_bounds_are_hours_and_parts_of_them(
    budget: str | None, max_hours: str | None, expected: tuple[float | None, float | None]
) -> None:
    limits = read_limits(budget, max_hours)
    assert (limits.budget, limits.wall) == expected


@pytest.mark.parametrize("text", ["0", "-1", "8h", "nan", "inf", "", "9" * 400])
def test_what_is_no_number_of_hours_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^MAX_HOURS=.*must be a number of hours above 0"):
        read_limits(None, text)


def test_what_would_not_fit_into_the_hours_left_does_not_start(clock: Clock) -> None:
    limits = Limits(wall=8 * HOUR)
    clock.now += 5 * HOUR
    assert limits.can_start(3 * HOUR)
    assert not limits.can_start(3.1 * HOUR)
    assert limits.can_start(None), "of unknown length: it is cut where it must be"
    assert limits.can_start(9 * HOUR), "it would fit into no command, and goes on with the next"


def test_a_budget_starts_nothing_of_unknown_length_and_never_interrupts(clock: Clock) -> None:
    limits = Limits(budget=HOUR)
    assert not limits.can_start(None)
    assert not limits.can_start(2 * HOUR)
    clock.now += 2 * HOUR
    assert not limits.is_stopping
    assert limits.leave_at is None
    assert limits.stop_reason == "no other cell fits into BUDGET"


def test_cells_leave_when_the_hours_are_over(clock: Clock) -> None:
    limits = Limits(budget=9, wall=HOUR)
    clock.now += HOUR / 2
    assert limits.leave_at == pytest.approx(time.time() + HOUR / 2, abs=60)
    assert limits.stop_reason == "no other cell fits into BUDGET and MAX_HOURS"
    clock.now += HOUR / 2
    assert limits.stop_reason == "MAX_HOURS is reached"
    assert not limits.can_start(0.0)
