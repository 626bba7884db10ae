"""Bars: kept, missed, or not judged at all."""

import pytest

from capsweep.bench import device, routing
from capsweep.bench.measured import Measured, Verdict
from capsweep.bench.routing import Case
from capsweep.bench.routing_problem import Pass, Sizes


@pytest.mark.parametrize(
    ("value", "bar", "at_least", "verdict"),
    [
        (5.0, 5.0, True, "kept"),
        (4.99, 5.0, True, "missed"),
        (5.0, 5.0, False, "kept"),
        (5.01, 5.0, False, "missed"),
        (5.0, None, True, "no bar"),
    ],
)
def test_a_bar_is_kept_or_missed(
    value: float, bar: float | None, at_least: bool, verdict: Verdict
) -> None:
    assert Measured("something", value, "x", bar, at_least).verdict == verdict


@pytest.mark.parametrize("value", [None, 1.0, 9.0])
def test_a_skipped_bar_is_neither_kept_nor_missed(value: float | None) -> None:
    measured = Measured("something", value, "x", 5.0, at_least=True, skipped="no AMX")
    assert measured.verdict == "skipped"
    assert measured.told() == "skipped: no AMX"


def test_what_has_no_value_says_why() -> None:
    with pytest.raises(ValueError, match="neither a value nor a reason"):
        Measured("something", None, "x")


def test_the_stretch_is_told_when_it_is_reached() -> None:
    assert Measured("something", 10.0, "x", 5, True, 10).told() == "kept, and the stretch"
    assert Measured("something", 9.0, "x", 5, True, 10).told() == "kept"


def test_a_missed_bar_says_by_how_much() -> None:
    assert Measured("something", 4.0, "x", 5, True, 10).told() == "MISSED: 0.80 of the bar"


def _case(which: Pass, textbook: float, bmm: float, fast: float) -> Case:
    taken = {"textbook": [textbook] * 3, "bmm": [bmm] * 3, "fast": [fast] * 3}
    extra = {"textbook": 1600, "bmm": 500, "fast": 100}
    return Case(Sizes(batch=128, num_iters=3), which, taken, extra)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "on_gpu", lambda: False)


@pytest.mark.usefixtures("on_a_cpu")
def test_the_bars_of_routing_compare_fast_with_the_baselines() -> None:
    cases = [_case("forward", 9.0, 3.0, 1.0), _case("forward + backward", 12.0, 2.5, 1.0)]
    found = routing.bars(cases)
    assert [(bar.value, bar.verdict) for bar in found] == [
        (12.0, "kept"),
        (9.0, "missed"),
        (2.5, "kept"),
        (1 / 16, "kept"),
    ]


@pytest.mark.usefixtures("on_a_cpu")
def test_bars_of_what_was_not_measured_are_skipped() -> None:
    assert {bar.told() for bar in routing.bars([])} == {"skipped: not measured in this run"}


def test_bars_for_two_cores_are_not_judged_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    found = routing.bars([_case("forward", 9.0, 3.0, 1.0)])
    assert {bar.verdict for bar in found} == {"skipped"}
    assert 9.0 in [bar.value for bar in found]
