"""Two trainings on one device. Nothing here is a test of speed."""

import pytest

from capsweep.bench import machine, sharing


@pytest.mark.slow
def test_two_trainings_on_a_processor_have_numbers_and_no_bars() -> None:
    report = sharing.measure_sharing(seconds=0, images=2, steps=1)
    speed, memory = report.measured
    assert (speed.verdict, memory.verdict) == ("skipped", "skipped")
    assert speed.value is not None
    assert speed.value > 0
    one, two = report.timings
    assert 1.5 < two["MB"] / one["MB"] < 2.5
    assert (one["processes"], two["processes"]) == (1, 2)


def test_on_a_gpu_both_must_give_nine_tenths_of_one_and_take_what_a_sweep_expects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "is_gpu", lambda: True)
    rows = [
        {"processes": 1, "images/s": 100.0, "MB": 1000, "expected MB": 1100},
        {"processes": 2, "images/s": 89.0, "MB": 2000, "expected MB": 2200},
    ]
    speed, memory = sharing.judge_sharing(rows)
    assert (speed.value, speed.verdict) == (0.89, "missed")
    assert memory.value == pytest.approx(0.909, abs=1e-3)
    assert memory.verdict == "kept"
